"""TPP331 to TPP339: does a quantized checkpoint load sharded, and does tp_size cut its blocks of one scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tpplan.checks.subject import Subject
from tpplan.choices import Device
from tpplan.codes import Severity
from tpplan.diagnostics import Diagnostic, Place
from tpplan.model.internals import versions
from tpplan.model.quantization import Quantized, Scheme
from tpplan.model.quantizer import (
    dequantizes,
    dropped_rules,
    failure,
    is_known,
    is_measured,
    quantized_weights,
)
from tpplan.model.skeleton import style_of, wildcard
from tpplan.scales import Spread, spread
from tpplan.styles import style

PACKED = ("packed_colwise", "packed_rowwise")  # gate and up in one weight, each cut by itself
LISTED = 3


@dataclass(frozen=True, kw_only=True)
class Weight:
    """Quantized weights of one rule and shape. name: with `*` for layers. shape: unsharded. style: None if whole.

    cut: the dim of `shape` that the plan cuts. halves: how many parts of that dim are cut each by itself.
    """

    name: str
    shape: tuple[int, ...]
    quantized: Quantized
    style: str | None
    cut: int | None
    halves: int = 1

    @property
    def matrix_dims(self) -> tuple[int, int]:
        """The dims of `shape` that are (out, in)."""
        last = len(self.shape) - 1
        return (last, last - 1) if self.quantized.transposed else (last - 1, last)

    @property
    def cut_of_matrix(self) -> int | None:
        """0 when the output dim is cut, 1 for the input dim, None for neither."""
        return self.matrix_dims.index(self.cut) if self.cut in self.matrix_dims else None


def check_quantization(subject: Subject) -> Iterator[Diagnostic]:
    """What the config's quantization means for this plan; nothing for a checkpoint that is not quantized."""
    scheme = subject.spec.scheme
    if scheme is None:
        return
    tp_size = subject.sharding.tp_size
    if not is_known(scheme.method):
        yield _unknown_method(subject, scheme)
        return
    if subject.device != Device.CPU:
        yield _on_tpu(subject, scheme)
    if tp_size > 1:
        yield _judged_without(subject, scheme)
    dropped = dropped_rules(subject.spec, scheme) if tp_size > 1 else ()
    if dropped:
        yield _dropped(subject, dropped)
    weights = list(weights_of(subject, scheme, dropped))
    if dequantizes(scheme) and weights:
        yield _dequantized(subject, scheme)
    if not scheme.described and tp_size > 1:
        yield _not_measured(subject, f"how {scheme.method} stores its weights is not known to tpplan")
        return
    failing = [weight for weight in weights if tp_size > 1 and _failure(scheme, weight)]
    if failing and is_measured():
        yield _not_shardable(subject, scheme, failing)
    elif failing or not is_measured():
        yield _not_measured(subject, "its methods were measured up to Transformers 5.24")
    yield from _block_findings(subject, scheme, [weight for weight in weights if weight not in failing])
    yield from _cut_groups(subject, failing)


def weights_of(subject: Subject, scheme: Scheme, dropped: tuple[str, ...] = ()) -> Iterator[Weight]:
    """Each kind of quantized weight with what the resolved plan does to it. dropped: rules the quantizer takes away."""
    rules = {rule: name for rule, name in subject.plan.items() if not rule.endswith(dropped)} if dropped else subject.plan
    seen = set()
    for name, quantized in quantized_weights(subject.skeleton.model, scheme).items():
        if name not in subject.skeleton.parameters:
            continue
        shape = subject.skeleton.parameters[name].shape
        kind = (wildcard(name), shape, quantized)
        if kind in seen:
            continue
        seen.add(kind)
        chosen = style_of(name, rules, is_parameter=True) if subject.sharding.tp_size > 1 else None
        if subject.sharding.ep_size and (style_of(name, subject.skeleton.expert_plan, is_parameter=True)):
            chosen = style_of(name, subject.skeleton.expert_plan, is_parameter=True)
        yield Weight(
            name=kind[0],
            shape=shape,
            quantized=quantized,
            style=chosen,
            cut=_cut_dim(chosen, len(shape)),
            halves=2 if chosen in PACKED else 1,
        )


def _cut_dim(name: str | None, dims: int) -> int | None:
    """The dim of a weight of so many dims: styles count from the last two, only `grouped_gemm` from the experts."""
    dim = style(name).cut_dim
    if dim is None or name == "grouped_gemm":
        return dim
    return dims - 2 + dim


def _failure(scheme: Scheme, weight: Weight) -> str:
    if weight.cut is None:
        return ""
    return failure(scheme, weight.quantized, weight.cut_of_matrix)


def _block_findings(subject: Subject, scheme: Scheme, weights: list[Weight]) -> Iterator[Diagnostic]:
    """TPP332 and TPP335: blocks that a rank's slice, or the weight itself, holds only a part of.

    Only where the weights are dequantized as they load by their blocks: Fp8Dequantize._dequantize_one of
    integrations/finegrained_fp8.py, and compressed-tensors with strategy block, give a slice's scales equal parts of it.
    """
    for weight in weights:
        layout = weight.quantized.layout
        if not dequantizes(scheme) or scheme.method == "mxfp4" or layout.kind not in ("fp8", "mxfp4"):
            continue
        cut, halves = weight.cut_of_matrix, weight.halves
        for axis, (dim, block) in enumerate(zip(weight.matrix_dims, layout.block, strict=True)):
            if block is None:
                continue
            size, ranks = weight.shape[dim], subject.sharding.tp_size if axis == cut else 1
            # the checkpoint has gate and up apart, whether or not the plan cuts them
            parts = halves if axis == cut else 2 if axis == 0 and weight.name.endswith(".gate_up_proj") else 1
            whole = spread(size // parts, block, 1)
            if whole.outcome:
                yield _partial_block(subject, weight, axis, whole)
            elif ranks > 1 and (found := spread(size // parts, block, ranks)).outcome:
                yield _cut_block(subject, weight, axis, found)


def _cut_groups(subject: Subject, weights: list[Weight]) -> Iterator[Diagnostic]:
    """TPP334: groups along a cut dim, for methods that do not shard here; other engines hold ranks to whole groups."""
    tp_size = subject.sharding.tp_size
    split = []
    for weight in weights:
        axis = weight.cut_of_matrix
        block = None if axis is None else weight.quantized.layout.block[axis]
        if axis is None or block is None or block == 1:
            continue
        size = weight.shape[weight.matrix_dims[axis]] // weight.halves
        if size % (tp_size * block):
            split.append(f"{weight.name} {size} / {tp_size} ranks = {size / tp_size:g}, {size / tp_size / block:g} groups of {block}")
    if split:
        more = f"; and {len(split) - LISTED} more" if len(split) > LISTED else ""
        yield Diagnostic(
            code="TPP334",
            message=f"at tp_size {tp_size} a rank's slice is not a whole number of groups that share a scale",
            where=_file(subject),
            evidence="; ".join(split[:LISTED]) + more,
        )


# What each finding says.


def _file(subject: Subject) -> Place:
    return Place(file=subject.spec.source.config_file or subject.spec.source.name)


def _unknown_method(subject: Subject, scheme: Scheme) -> Diagnostic:
    return Diagnostic(
        code="TPP331",
        message=f"the installed Transformers has no quantization method {scheme.method!r} and skips it: it takes packed "
        "weights for plain ones, and raises or computes with weights that lack their scales",
        where=_file(subject),
        evidence=f"quant_method = {scheme.method}; quantizers/auto.py of Transformers {versions().get('transformers')} "
        "skips methods that it does not know",
        fix="take a checkpoint that is not quantized, or quantized by a method that Transformers has",
    )


def _judged_without(subject: Subject, scheme: Scheme) -> Diagnostic:
    return Diagnostic(
        code="TPP306",
        message=f"the checkpoint is quantized ({scheme.method}), and the structure was judged without it: bytes are those "
        "of unquantized weights",
        where=_file(subject),
        evidence=f"quantization_config.quant_method = {scheme.method}",
    )


def _on_tpu(subject: Subject, scheme: Scheme) -> Diagnostic:
    return Diagnostic(
        code="TPP339",
        message=f"quantization on TPU is not finished in Transformers, and nothing of {scheme.method} was proven there",
        where=_file(subject),
        evidence="the TPU guide of Transformers says that quantization is still being integrated",
    )


def _dequantized(subject: Subject, scheme: Scheme) -> Diagnostic:
    return Diagnostic(
        code="TPP336",
        message=f"{subject.device} has no kernels for {scheme.method} here, so the weights are dequantized to "
        f"{subject.spec.dtype} while they load and each rank holds them unquantized",
        where=_file(subject),
        evidence="validate_environment of the quantizer sets dequantize",
    )


def _dropped(subject: Subject, rules: tuple[str, ...]) -> Diagnostic:
    return Diagnostic(
        code="TPP337",
        message=f"the fp8 quantizer replaces the plan of this model, and {len(rules)} of its rules are not applied",
        where=_file(subject),
        evidence=f"{', '.join(rules)}; update_tp_plan in quantizers/quantizer_finegrained_fp8.py of Transformers "
        f"{versions().get('transformers')}",
        fix="install Transformers 5.21 or newer",
    )


def _not_measured(subject: Subject, reason: str) -> Diagnostic:
    return Diagnostic(
        code="TPP338",
        message=f"whether this quantized checkpoint loads sharded was not proven: {reason}",
        where=_file(subject),
        evidence=f"quant_method = {subject.spec.quantization}, Transformers {versions().get('transformers')}",
    )


def _not_shardable(subject: Subject, scheme: Scheme, weights: list[Weight]) -> Diagnostic:
    names = ", ".join(f"{weight.name} ({weight.style})" for weight in weights[:LISTED])
    more = f", and {len(weights) - LISTED} more" if len(weights) > LISTED else ""
    return Diagnostic(
        code="TPP333",
        message=f"the plan cuts weights quantized by {scheme.method}, which Transformers does not shard",
        where=_file(subject),
        evidence=f"{names}{more}; {_failure(scheme, weights[0])}",
        fix="take a checkpoint that is not quantized, or load at tp_size 1",
    )


def _cut_block(subject: Subject, weight: Weight, axis: int, found: Spread) -> Diagnostic:
    return Diagnostic(
        code="TPP332",
        message=f"tp_size {subject.sharding.tp_size} cuts {weight.name} inside a block that shares a scale: {found.outcome}",
        where=_place(subject, weight),
        evidence=f"{weight.style}: {_rows(weight, axis)} {found.describe()}",
    )


def _partial_block(subject: Subject, weight: Weight, axis: int, found: Spread) -> Diagnostic:
    return Diagnostic(
        code="TPP335",
        message=f"{weight.name} is not a whole number of blocks, and dequantizing it goes wrong at every tp_size: "
        f"{found.outcome}",
        where=Place(file=subject.spec.source.name, parameter=weight.name),
        evidence=f"{_rows(weight, axis)} {found.describe()}",
        severity=Severity.ERROR,
    )


def _rows(weight: Weight, axis: int) -> str:
    word = ("rows", "columns")[axis]
    return f"{word} of each half:" if weight.name.endswith(".gate_up_proj") and axis == 0 else f"{word}:"


def _place(subject: Subject, weight: Weight) -> Place:
    """The rule that cuts the weight: its line where it stands in a plan file."""
    names = (weight.name, weight.name.rpartition(".")[0])
    rule = next((name for name in names if name in subject.sharding.overrides), None)
    place = subject.place_of_rule(rule) if rule else Place(file=subject.spec.source.name)
    file = place.file or subject.spec.source.name
    return Place(file=file, line=place.line, column=place.column, rule=rule, parameter=weight.name)

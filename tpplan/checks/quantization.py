"""TPP331 to TPP339: does a quantized checkpoint load sharded, and does tp_size cut its blocks of one scale."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass

from tpplan.checks.scales import Spread, spread
from tpplan.choices import Device
from tpplan.diagnostics import Diagnostic, Place
from tpplan.model.internals import versions
from tpplan.model.quantization import MEASURED_UP_TO, is_known, is_measured, method_of, quantized_weights
from tpplan.model.quantization.method import Failure
from tpplan.model.quantization.scheme import Quantized, Scheme
from tpplan.model.skeleton import style_of, wildcard
from tpplan.styles import style
from tpplan.subject import Subject
from tpplan.units import first_few

PACKED = ("packed_colwise", "packed_rowwise")  # gate and up in one weight, each cut by itself
AXES = ("rows", "columns")
LISTED = 3
UNQUANTIZED = "use a checkpoint of this model that is not quantized"


@dataclass(frozen=True, kw_only=True)
class Weight:
    """Quantized weights of one rule and shape. name: with `*` for layers. shape: unsharded. style: None if replicated.

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

    def rule_in(self, rules: Container[str]) -> str | None:
        """The rule of this parameter, or of its module, that is among `rules`."""
        return next((name for name in (self.name, self.name.rpartition(".")[0]) if name in rules), None)


@dataclass(frozen=True, kw_only=True)
class CutBlocks:
    """How the blocks of some weights are cut.

    axis: 0 or 1 of (out, in). parts: how many of that axis are cut each by itself. place: of the plan's own rule, which
    are told one by one; None for a rule of the model.
    """

    axis: int
    parts: int
    found: Spread
    place: Place | None


def check_quantization(subject: Subject) -> Iterator[Diagnostic]:
    """What the config's quantization means for this plan; nothing for a checkpoint that is not quantized."""
    scheme = subject.spec.scheme
    if scheme is None:
        return
    if not is_known(scheme.method):
        yield _unknown_method(subject, scheme)
        return
    if subject.device != Device.CPU:
        yield _on_tpu(subject, scheme)
    sharded = subject.sharding.tp_size > 1
    if sharded:
        yield _judged_without(subject, scheme)
    dropped = method_of(scheme.method).dropped_rules(subject.spec.config) if sharded else ()
    if dropped:
        yield _dropped(subject, dropped)
    weights = list(_weights(subject, scheme, dropped))
    if scheme.dequantized and weights:
        yield _dequantized(subject, scheme)
    failures = {weight: failure for weight in weights if sharded and (failure := _failure(scheme, weight))}
    if sharded:
        yield from _sharding_findings(subject, scheme, failures)
    yield from _block_findings(subject, scheme, [weight for weight in weights if weight not in failures])
    yield from _cut_groups(subject, list(failures))


def _sharding_findings(subject: Subject, scheme: Scheme, failures: dict[Weight, Failure]) -> Iterator[Diagnostic]:
    """TPP333, or TPP338 where nobody ran it."""
    failure = method_of(scheme.method).failure_with_any_plan(scheme) or next(iter(failures.values()), None)
    if failure and is_measured():
        yield _not_shardable(subject, scheme, list(failures), failure)
    elif failure or (scheme.described and not is_measured()):
        newest = ".".join(map(str, MEASURED_UP_TO))
        yield _not_proven(subject, f"Transformers newer than {newest} was not tried")
    elif not scheme.described:
        yield _not_proven(subject, f"tpplan does not know how {scheme.method} stores weights")


def _weights(subject: Subject, scheme: Scheme, dropped: tuple[str, ...]) -> Iterator[Weight]:
    """Each kind of quantized weight with what the resolved plan does to it. dropped: rules the quantizer takes away."""
    rules = {rule: name for rule, name in subject.plan.items() if not (dropped and rule.endswith(dropped))}
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
        if subject.sharding.ep_size:
            chosen = style_of(name, subject.skeleton.expert_plan, is_parameter=True) or chosen
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


def _failure(scheme: Scheme, weight: Weight) -> Failure | None:
    if weight.cut is None:
        return None
    return method_of(scheme.method).failure(scheme, weight.quantized, weight.cut_of_matrix)


def _block_findings(subject: Subject, scheme: Scheme, weights: list[Weight]) -> Iterator[Diagnostic]:
    """TPP332 and TPP335: blocks that a rank's slice, or the weight itself, holds only a part of.

    Only where the weights are dequantized as they load by their blocks: Fp8Dequantize._dequantize_one of
    integrations/finegrained_fp8.py, and compressed-tensors with strategy block, give a slice's scales equal parts.
    """
    if not scheme.dequantized or not method_of(scheme.method).spreads_scales:
        return
    cut: dict[CutBlocks, list[Weight]] = defaultdict(list)
    for weight in weights:
        for axis, block in enumerate(weight.quantized.layout.block):
            if block is None:
                continue
            size = weight.shape[weight.matrix_dims[axis]]
            ranks = subject.sharding.tp_size if axis == weight.cut_of_matrix else 1
            # the checkpoint has gate and up apart, whether or not the plan cuts them
            apart = weight.quantized.parts if axis == 0 else 1
            parts = weight.halves if ranks > 1 else apart
            whole, found = spread(size // parts, block, 1), spread(size // parts, block, ranks)
            if whole.outcome:
                yield _partial_block(subject, weight, axis, whole)
            elif found.outcome:
                place = _place(subject, weight) if weight.rule_in(subject.sharding.overrides) else None
                cut[CutBlocks(axis=axis, parts=parts, found=found, place=place)].append(weight)
    for blocks, alike in cut.items():
        yield _cut_block(subject, alike, blocks)


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
            share = size / tp_size
            split.append(f"{weight.name} {size} / {tp_size} ranks = {share:g}, {share / block:g} groups of {block}")
    if split:
        more = f"; and {len(split) - LISTED} more" if len(split) > LISTED else ""
        yield Diagnostic(
            code="TPP334",
            message=f"tp_size {tp_size} cuts groups that share a scale, which engines that shard such checkpoints refuse",
            where=_file(subject),
            evidence="; ".join(split[:LISTED]) + more,
        )


# What each finding says.


def _file(subject: Subject) -> Place:
    return Place(file=subject.spec.source.config_file or subject.spec.source.name)


def _unknown_method(subject: Subject, scheme: Scheme) -> Diagnostic:
    return Diagnostic(
        code="TPP331",
        message=f"the installed Transformers has no method {scheme.method!r}: loading raises or leaves weights without scales",
        where=_file(subject),
        evidence=f"quant_method = {scheme.method}; quantizers/auto.py of Transformers {versions().get('transformers')} "
        "skips methods that it does not know: packed weights raise where their shape differs, others are used unscaled",
        fix=UNQUANTIZED,
    )


def _judged_without(subject: Subject, scheme: Scheme) -> Diagnostic:
    packed = scheme.described and not scheme.dequantized
    return Diagnostic(
        code="TPP306",
        message=f"{scheme.method} quantization is left out of shapes and numbers, and bytes are those of "
        f"{'packed' if packed else 'unquantized'} weights",
        where=_file(subject),
        evidence=f"quantization_config.quant_method = {scheme.method}",
    )


def _on_tpu(subject: Subject, scheme: Scheme) -> Diagnostic:
    return Diagnostic(
        code="TPP339",
        message=f"quantization on TPU is not finished in Transformers, so nothing of {scheme.method} was proven there",
        where=_file(subject),
        evidence="the TPU guide of Transformers says that quantization is still being integrated",
    )


def _dequantized(subject: Subject, scheme: Scheme) -> Diagnostic:
    return Diagnostic(
        code="TPP336",
        message=f"{scheme.method} weights are dequantized at load, so each rank holds them in {subject.spec.dtype}",
        where=_file(subject),
        evidence=scheme.dequantized,
    )


def _dropped(subject: Subject, rules: tuple[str, ...]) -> Diagnostic:
    return Diagnostic(
        code="TPP337",
        message=f"the quantizer replaces the plan of this model, so {len(rules)} of its rules are not applied",
        where=_file(subject),
        evidence=f"{', '.join(rules)}; update_tp_plan in quantizers/quantizer_finegrained_fp8.py of Transformers "
        f"{versions().get('transformers')}",
        fix="pip install 'transformers>=5.22'",
    )


def _not_proven(subject: Subject, reason: str) -> Diagnostic:
    return Diagnostic(
        code="TPP338",
        message=f"{reason}, so the sharded load of this checkpoint was not proven",
        where=_file(subject),
        evidence=f"quant_method = {subject.spec.quantization}, Transformers {versions().get('transformers')}",
    )


def _not_shardable(subject: Subject, scheme: Scheme, weights: list[Weight], failure: Failure) -> Diagnostic:
    cut = f"the plan cuts {first_few([weight.name for weight in weights], LISTED)}; " if weights else ""
    return Diagnostic(
        code="TPP333",
        message=f"{scheme.method} weights do not run with this plan at tp_size {subject.sharding.tp_size}: "
        f"{failure.outcome}",
        where=_file(subject),
        evidence=cut + failure.cause,
        fix=UNQUANTIZED,
    )


def _cut_block(subject: Subject, weights: list[Weight], blocks: CutBlocks) -> Diagnostic:
    unit = AXES[blocks.axis]
    half = " of each half" if blocks.parts == 2 else ""
    others = [weight.name for weight in weights[1:]]
    return Diagnostic(
        code="TPP332",
        message=f"tp_size {subject.sharding.tp_size} cuts blocks of {blocks.found.block} {unit} that share a scale: "
        f"{blocks.found.outcome}",
        where=_place(subject, weights[0]),
        evidence=f"{weights[0].style}: {blocks.found.describe(unit + half)}"
        + (f"; the same holds for {first_few(others, LISTED)}" if others else ""),
    )


def _partial_block(subject: Subject, weight: Weight, axis: int, found: Spread) -> Diagnostic:
    return Diagnostic(
        code="TPP335",
        message=f"{found.size} {AXES[axis]} are not whole blocks of {found.block} that share a scale: "
        f"at every tp_size {found.outcome}",
        where=Place(file=subject.spec.source.name, parameter=weight.name),
        evidence=found.describe(AXES[axis]),
        fix="dequantize the checkpoint once on a GPU with FP8 kernels, and save it",
    )


def _place(subject: Subject, weight: Weight) -> Place:
    """The rule that cuts the weight: its line where it stands in a plan file."""
    rule = weight.rule_in(subject.sharding.overrides)
    place = subject.place_of_rule(rule) if rule else Place(file=subject.spec.source.name)
    file = place.file or subject.spec.source.name
    return Place(file=file, line=place.line, column=place.column, rule=rule, parameter=weight.name)

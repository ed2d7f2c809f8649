"""TPP331 to TPP339: does a quantized checkpoint load sharded, and does tp_size cut its blocks of one scale."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from tpplan.checks.scales import Spread, spread
from tpplan.choices import Device
from tpplan.diagnostics import Diagnostic, Place
from tpplan.model.internals import versions
from tpplan.model.quantization import is_known, is_measured, method_of, quantized_weights
from tpplan.model.quantization.method import Failure
from tpplan.model.quantization.scheme import Quantized, Scheme
from tpplan.model.releases import FP8_KEEPS_THE_PLAN, MEASURED_UP_TO, dotted, install
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
    """Quantized weights of one rule and shape. name: with `*` for layers. shape: unsharded. style: None for no rule."""

    name: str
    shape: tuple[int, ...]
    quantized: Quantized
    style: str | None

    @property
    def halves(self) -> int:
        """How many parts of the dim that is cut are cut each by itself."""
        return 2 if self.style in PACKED else 1

    @property
    def is_cut(self) -> bool:
        return style(self.style).cut_dim is not None

    @property
    def cut_of_matrix(self) -> int | None:
        """0 when the output dim is cut, 1 for the input dim, None for neither, or for the dim of experts."""
        cuts_experts = self.style == "grouped_gemm" and len(self.shape) == 3
        dim = None if cuts_experts else style(self.style).cut_dim
        return 1 - dim if dim is not None and self.quantized.transposed else dim

    def rule_in(self, rules: Container[str]) -> str | None:
        """The rule of this parameter, or of its module, that is among `rules`."""
        return next((name for name in (self.name, self.name.rpartition(".")[0]) if name in rules), None)


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
        newest = dotted(MEASURED_UP_TO)
        yield _not_proven(subject, scheme, f"Transformers newer than {newest} was not tried")
    elif not scheme.described:
        yield _not_proven(subject, scheme, f"tpplan does not know how {scheme.method} stores weights")


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
        yield Weight(name=kind[0], shape=shape, quantized=quantized, style=chosen)


def _failure(scheme: Scheme, weight: Weight) -> Failure | None:
    return method_of(scheme.method).failure(scheme, weight.quantized, weight.cut_of_matrix) if weight.is_cut else None


def _block_findings(subject: Subject, scheme: Scheme, weights: list[Weight]) -> Iterator[Diagnostic]:
    """TPP332 and TPP335: blocks that a rank's slice, or the weight itself, holds only a part of.

    Only where the weights are dequantized as they load by their blocks: Fp8Dequantize._dequantize_one of
    integrations/finegrained_fp8.py, and compressed-tensors with strategy block, give a slice's scales equal parts.
    """
    if not scheme.dequantized or not method_of(scheme.method).spreads_scales:
        return
    cut: dict[tuple[Spread, Place | None], list[Weight]] = defaultdict(list)
    for weight in weights:
        for axis, block in enumerate(weight.quantized.layout.block):
            if block is None:
                continue
            size = weight.quantized.out_in(weight.shape)[axis]
            ranks = subject.sharding.tp_size if axis == weight.cut_of_matrix else 1
            # the checkpoint has gate and up apart, whether or not the plan cuts them
            apart = weight.quantized.parts if axis == 0 else 1
            parts = weight.halves if ranks > 1 else apart
            unit = AXES[axis] + (" of each half" if parts == 2 else "")
            whole, found = spread(size // parts, block, 1, unit), spread(size // parts, block, ranks, unit)
            if whole.outcome:
                yield _partial_block(subject, weight, whole)
            elif found.outcome:
                # the plan's own rules are told one by one
                place = _place(subject, weight) if weight.rule_in(subject.sharding.overrides) else None
                cut[(found, place)].append(weight)
    for (found, _), alike in cut.items():
        yield _cut_block(subject, alike, found)


def _cut_groups(subject: Subject, weights: list[Weight]) -> Iterator[Diagnostic]:
    """TPP334: groups along a cut dim, for methods that do not shard here; other engines hold ranks to whole groups."""
    tp_size = subject.sharding.tp_size
    split = []
    for weight in weights:
        axis = weight.cut_of_matrix
        block = None if axis is None else weight.quantized.layout.block[axis]
        if axis is None or block is None or block == 1:
            continue
        size = weight.quantized.out_in(weight.shape)[axis] // weight.halves
        if size % (tp_size * block):
            share = size / tp_size
            split.append(f"{weight.name} {size} / {tp_size} ranks = {share:g}, {share / block:g} groups of {block}")
    if split:
        more = f"; and {len(split) - LISTED} more" if len(split) > LISTED else ""
        yield _of_config(
            subject,
            "TPP334",
            f"tp_size {tp_size} cuts groups that share a scale, which engines that shard such checkpoints refuse",
            "; ".join(split[:LISTED]) + more,
        )


# What each finding says.


def _of_config(subject: Subject, code: str, message: str, evidence: str, fix: str = "") -> Diagnostic:
    place = Place(file=subject.spec.source.config_file or subject.spec.source.name)
    return Diagnostic(code=code, message=message, where=place, evidence=evidence, fix=fix)


def _unknown_method(subject: Subject, scheme: Scheme) -> Diagnostic:
    message = (
        f"the installed Transformers has no method {scheme.method!r}: loading raises or gives weights without scales"
    )
    evidence = (
        f"quant_method = {scheme.method}; quantizers/auto.py of Transformers {versions().get('transformers')} skips "
        "methods that it does not know: packed weights raise where their shape differs, others are used unscaled"
    )
    return _of_config(subject, "TPP331", message, evidence, UNQUANTIZED)


def _judged_without(subject: Subject, scheme: Scheme) -> Diagnostic:
    kind = "packed" if scheme.described and not scheme.dequantized else "unquantized"
    message = f"{scheme.method} quantization is left out of shapes and numbers, and bytes are those of {kind} weights"
    return _of_config(subject, "TPP306", message, f"quantization_config.quant_method = {scheme.method}")


def _on_tpu(subject: Subject, scheme: Scheme) -> Diagnostic:
    message = f"quantization on TPU is not finished in Transformers, so nothing of {scheme.method} was proven there"
    evidence = "the TPU guide of Transformers says that quantization is still being integrated"
    return _of_config(subject, "TPP339", message, evidence)


def _dequantized(subject: Subject, scheme: Scheme) -> Diagnostic:
    message = f"{scheme.method} weights are dequantized at load, so each rank holds them in {subject.spec.dtype}"
    return _of_config(subject, "TPP336", message, scheme.dequantized)


def _dropped(subject: Subject, rules: tuple[str, ...]) -> Diagnostic:
    message = f"the quantizer replaces the plan of this model, so {len(rules)} of its rules are not applied"
    evidence = (
        f"{', '.join(rules)}; update_tp_plan in quantizers/quantizer_finegrained_fp8.py of Transformers "
        f"{versions().get('transformers')}"
    )
    return _of_config(subject, "TPP337", message, evidence, install(FP8_KEEPS_THE_PLAN))


def _not_proven(subject: Subject, scheme: Scheme, reason: str) -> Diagnostic:
    message = f"{reason}, so the sharded load of this checkpoint was not proven"
    evidence = f"quant_method = {scheme.method}, Transformers {versions().get('transformers')}"
    return _of_config(subject, "TPP338", message, evidence)


def _not_shardable(subject: Subject, scheme: Scheme, weights: list[Weight], failure: Failure) -> Diagnostic:
    tp_size, named = subject.sharding.tp_size, first_few([weight.name for weight in weights], LISTED)
    message = f"{scheme.method} weights do not run with this plan at tp_size {tp_size}: {failure.outcome}"
    evidence = f"the plan cuts {named}; {failure.cause}" if weights else failure.cause
    return _of_config(subject, "TPP333", message, evidence, UNQUANTIZED)


def _cut_block(subject: Subject, weights: list[Weight], found: Spread) -> Diagnostic:
    first, *others = weights
    more = f"; the same holds for {first_few([weight.name for weight in others], LISTED)}" if others else ""
    return Diagnostic(
        code="TPP332",
        message=f"tp_size {found.ranks} cuts blocks of {found.block} {found.unit} that share a scale: {found.outcome}",
        where=_place(subject, first),
        evidence=f"{first.style}: {found.describe()}{more}",
    )


def _partial_block(subject: Subject, weight: Weight, found: Spread) -> Diagnostic:
    whole = f"{found.size} {found.unit} are not whole blocks of {found.block} that share a scale"
    return Diagnostic(
        code="TPP335",
        message=f"{whole}: at every tp_size {found.outcome}",
        where=Place(file=subject.spec.source.name, parameter=weight.name),
        evidence=found.describe(),
        fix="dequantize the checkpoint once on a GPU with FP8 kernels, and save it",
    )


def _place(subject: Subject, weight: Weight) -> Place:
    """The rule that cuts the weight: its line where it stands in a plan file."""
    rule = weight.rule_in(subject.sharding.overrides)
    place = subject.place_of_rule(rule) if rule else Place(file=subject.spec.source.name)
    return replace(place, file=place.file or subject.spec.source.name, rule=rule, parameter=weight.name)

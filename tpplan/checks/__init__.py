"""The static checks: each reads a Subject and yields diagnostics; none runs the model."""

from __future__ import annotations

from collections.abc import Iterator

from tpplan.checks.config import check_defaults, check_facts
from tpplan.checks.experts import check_ep_size, check_experts_divide
from tpplan.checks.heads import check_heads
from tpplan.checks.pairs import check_key_value_alone, check_logits, check_partners
from tpplan.checks.quantization import check_quantization
from tpplan.checks.reading import check_architectures, check_groups, check_tie_flags
from tpplan.checks.rules import check_plan_exists, check_rule_names, check_styles, with_names_mended
from tpplan.checks.targets import check_device_count, check_generation, check_training_on_tpu
from tpplan.checks.ties import check_tied_styles, check_tied_weights_on_tpu
from tpplan.checks.widths import check_gathered_widths
from tpplan.diagnostics import Diagnostic
from tpplan.subject import Subject

# With an error from one of these, Transformers rejects the plan before it cuts anything.
REJECTING = (check_plan_exists, check_rule_names, check_styles, check_ep_size, check_experts_divide)
EXPLAINING = (
    check_facts,
    check_defaults,
    check_tie_flags,
    check_architectures,
    check_groups,
    check_quantization,
    check_key_value_alone,
    check_partners,
    check_logits,
    check_heads,
    check_gathered_widths,
    check_tied_styles,
    check_tied_weights_on_tpu,
    check_device_count,
    check_generation,
    check_training_on_tpu,
)


def rejections(subject: Subject) -> list[Diagnostic]:
    """Errors in the plan itself, for which Transformers refuses it or never looks a rule up."""
    return list(_run(subject, REJECTING))


def findings(subject: Subject) -> list[Diagnostic]:
    """Everything the other checks say; names that match nothing are taken for what was meant."""
    return list(_run(with_names_mended(subject), EXPLAINING))


def _run(subject: Subject, checks: tuple) -> Iterator[Diagnostic]:
    for check in checks:
        yield from check(subject)

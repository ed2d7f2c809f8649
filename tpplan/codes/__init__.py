"""The table of codes: every diagnostic that tpplan can give, with its page for `tpplan explain`.

A number names its family (1xx files and input, 2xx names and styles, 3xx heads, shapes, ties and memory,
4xx the shapes stage, 5xx numerics and launch, 6xx the TPU's compiler, 9xx the environment) and is never used for
anything else.
"""

from __future__ import annotations

from tpplan.codes.code import Code, Severity
from tpplan.codes.compiled import COMPILED
from tpplan.codes.environment import ENVIRONMENT
from tpplan.codes.inputs import INPUTS
from tpplan.codes.launches import LAUNCHES
from tpplan.codes.quantized import QUANTIZED
from tpplan.codes.rules import RULES
from tpplan.codes.runs import RUNS
from tpplan.codes.structure import STRUCTURE
from tpplan.codes.target import TARGET

__all__ = ["CODES", "Code", "Severity"]

CODES: dict[str, Code] = {
    **INPUTS,
    **RULES,
    **STRUCTURE,
    **TARGET,
    **QUANTIZED,
    **RUNS,
    **LAUNCHES,
    **COMPILED,
    **ENVIRONMENT,
}

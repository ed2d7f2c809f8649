"""tpplan: tensor-parallel plans for Hugging Face Transformers, checked, repaired and proven before they are used.

Importing tpplan loads neither torch nor Transformers; each call loads what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpplan.api import check, check_all, distributed_config, plan, sizes, verify
    from tpplan.diagnostics import Diagnostic, InputError, PlanError, Report
    from tpplan.plan_files.document import Plan

__version__ = "0.1.0"
__all__ = [
    "Diagnostic",
    "InputError",
    "Plan",
    "PlanError",
    "Report",
    "check",
    "check_all",
    "distributed_config",
    "plan",
    "sizes",
    "verify",
]
_HOMES = {
    "check": "api",
    "check_all": "api",
    "distributed_config": "api",
    "sizes": "api",
    "verify": "api",
    "plan": "api",
    "Diagnostic": "diagnostics",
    "InputError": "diagnostics",
    "PlanError": "diagnostics",
    "Report": "diagnostics",
    "Plan": "plan_files.document",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(f"tpplan.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tpplan' has no attribute {name!r}")

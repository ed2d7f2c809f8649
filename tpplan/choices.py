"""The closed sets that a caller chooses from, and the options that all calls share. Nothing heavy is imported here.

Depths and strategies are the rows of tables of their own: `tpplan.stages.table` and `tpplan.planner.strategies`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypedDict, TypeVar

from tpplan.diagnostics import Diagnostic, InputError

MAX_TP_SIZE = 65536

Choice = TypeVar("Choice", bound=str)


class Device(StrEnum):
    """What a plan is made for: torch's cpu, any TPU, or one generation of TPUs."""

    CPU = "cpu"
    TPU = "tpu"
    TPU_V4 = "tpu-v4"
    TPU_V5E = "tpu-v5e"
    TPU_V5P = "tpu-v5p"
    TPU_V6E = "tpu-v6e"
    TPU_V7 = "tpu-v7"


class Purpose(StrEnum):
    """What the sharded model is for: with training, gradients must be right too."""

    INFERENCE = "inference"
    TRAINING = "training"


class Dtype(StrEnum):
    """Dtype of the weights, as torch names it."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class Optimize(StrEnum):
    """What a plan is chosen for. memory: fewest bytes per rank. latency: fewest collectives, then bytes they move."""

    MEMORY = "memory"
    LATENCY = "latency"


class Phase(StrEnum):
    """The programs that generating runs: of the prompt, and of each further token."""

    PREFILL = "prefill"
    DECODE = "decode"


class Trust(StrEnum):
    """What is taken for proof of a plan. seal: the seal in it, where it holds. never: only the stages, run now."""

    SEAL = "seal"
    NEVER = "never"


class Options(TypedDict, total=False):
    """Keyword arguments that every call of the library takes. What is left out is what the plan says, or the default.

    auto_class: name of the auto class that loads the model, found from its config when left out. device: a value of
    `Device`, default `cpu`. purpose: a value of `Purpose`, default `inference`. dtype: a value of `Dtype`, default the
    config's own. trust_remote_code: run the Python code that the model brings, default False. batch, max_length:
    sequences, and tokens of each, for which the memory of a rank must be enough; by default 1, and 4096 or what the
    model takes. prefill: tokens of the prefill that the TPU's compiler is given, by default 512. full: have it compile
    every layer, in place of a few and the growth that one more brings. cache: answer from the cache where
    the same was answered before, and keep the answer, default True.
    """

    auto_class: str | None
    device: str | None
    purpose: str | None
    dtype: str | None
    trust_remote_code: bool
    batch: int | None
    max_length: int | None
    prefill: int | None
    full: bool
    cache: bool


class PlanOptions(Options, total=False):
    """The same for calls that take a plan. model: what the plan is used with, where it is not the model it names."""

    model: str | None


def chosen(name: str, value: object, allowed: Iterable[Choice], model: str = "") -> Choice:
    """The one of `allowed` that `value` is. Raises InputError TPP130, which names them all."""
    known = tuple(allowed)
    for one in known:
        if one == value:
            return one
    raise usage_error(f"{name} is {str(value)!r}", fix=f"give one of {', '.join(known)}", model=model)


def usage_error(message: str, fix: str, model: str = "") -> InputError:
    """An InputError with TPP130."""
    return InputError(Diagnostic(code="TPP130", message=message, fix=fix), model=model)

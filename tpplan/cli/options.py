"""The arguments and options that commands share: each stands here once, and a command names those that it takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer

from tpplan.choices import Device, Dtype, Purpose
from tpplan.planner.strategies import STRATEGIES
from tpplan.stages import table


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class Language(StrEnum):
    JSON = "json"
    PYTHON = "python"
    STABLEHLO = "stablehlo"


ModelOrPlanArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL|PLAN", help="A directory or file with a config.json, a hub id, or a plan (.yaml)."),
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A directory or file with a config.json, or a hub id.")
]
ModelsOrPlansArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL|PLAN...",
        help="A directory or file with a config.json, a hub id, a plan (.yaml), or a directory of plans; or several.",
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="json: exactly one document on stdout.")]
TpSizeOption = Annotated[
    int | None, typer.Option("--tp-size", metavar="N", help="Number of ranks. A plan has its own.")
]
RanksOption = Annotated[int | None, typer.Option("--tp-size", metavar="N", help="Number of ranks; required.")]


def row_option(names: Iterable[str], words: str, default: str) -> Any:
    """An option whose values are the names of a table's rows."""
    known = tuple(names)

    def row(value: str) -> str:
        if value not in known:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(known)}.")
        return value

    return typer.Option(parser=row, metavar=f"[{'|'.join(known)}]", help=words, show_default=default)


StrategyOption = Annotated[
    str | None,
    row_option(
        STRATEGIES,
        "What becomes of a block that cannot be sharded. "
        + " ".join(f"{name}: {entry.summary}." for name, entry in STRATEGIES.items()),
        "the first that fits",
    ),
]


def depth_option(*, measured: bool = False) -> Any:
    """The option of how far a check goes. measured: only depths at which the model runs."""
    stages = table.STAGES[1:] if measured else table.STAGES
    words = " ".join(f"{stage.name}: {stage.adds}." for stage in stages)
    return row_option((stage.name for stage in stages), f"The last stage to run. {words}", table.deepest())


# What goes to the library as it is, by the name that it has there. The order is that of --help.
SHARED: dict[str, Any] = {
    "model": Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="The model a PLAN will be used with, if not the one it names."),
    ],
    "auto_class": Annotated[
        str | None, typer.Option(metavar="CLASS", help="The auto class that loads the model. Found from the config.")
    ],
    "device": Annotated[Device | None, typer.Option(help="What the model will run on.", show_default="cpu")],
    "purpose": Annotated[
        Purpose | None, typer.Option(help="training: gradients must be right too.", show_default="inference")
    ],
    "dtype": Annotated[Dtype | None, typer.Option(help="Dtype of the weights.", show_default="the config's")],
    "batch": Annotated[
        int | None, typer.Option(metavar="N", help="Sequences that memory must be enough for.", show_default="1")
    ],
    "max_length": Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens of each sequence.", show_default="4096, or what the model takes"),
    ],
    "prefill": Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens of the prefill that --depth aot compiles.", show_default="512"),
    ],
    "full": Annotated[
        bool, typer.Option("--full", help="With --depth aot: compile every layer, however long that takes.")
    ],
    "trust_remote_code": Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the Python code that the model brings.")
    ],
    "cache": Annotated[
        bool, typer.Option(" /--no-cache", help="Run the stages though the same was answered before, and keep nothing.")
    ],
}

DEFAULTS = {"full": False, "trust_remote_code": False, "cache": True}  # None for the others


def shares(*left_out: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the shared options but for `left_out`; it gets their values as one dict, `options`."""
    taken = {name: kind for name, kind in SHARED.items() if name not in left_out}

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def called(*args: Any, **kwargs: Any) -> int:
            return command(*args, options={name: kwargs.pop(name) for name in taken}, **kwargs)

        own = inspect.signature(command, eval_str=True)
        shared = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=DEFAULTS.get(name),
                annotation=kind,
            )
            for name, kind in taken.items()
        ]
        kept = [parameter for name, parameter in own.parameters.items() if name != "options"]
        last = [parameter for parameter in kept if parameter.name == "output_format"]
        first = [parameter for parameter in kept if parameter.name != "output_format"]
        made: Any = called  # typing has no name for what inspect and typer read
        made.__signature__ = own.replace(parameters=[*map(_by_name, first), *shared, *map(_by_name, last)])
        called.__annotations__ = {p.name: p.annotation for p in (*first, *shared, *last)}
        return called

    return decorate


def _by_name(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)

"""The arguments and options that commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tpplan.choices import Device, Dtype, Purpose, Strategy


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class Language(StrEnum):
    JSON = "json"
    PYTHON = "python"


class SchemaName(StrEnum):
    PLAN = "plan"
    REPORT = "report"
    SIZES = "sizes"
    DOCTOR = "doctor"


ModelOrPlanArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL|PLAN", help="A directory or file with a config.json, a hub id, or a plan (.yaml)."),
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A directory or file with a config.json, or a hub id.")
]
TpSizeOption = Annotated[
    int | None, typer.Option("--tp-size", metavar="N", help="Number of ranks. A plan has its own.")
]
RanksOption = Annotated[int | None, typer.Option("--tp-size", metavar="N", help="Number of ranks; required.")]
AutoClassOption = Annotated[
    str | None, typer.Option(metavar="CLASS", help="The auto class that loads the model. Found from the config.")
]
DeviceOption = Annotated[Device | None, typer.Option(help="What the model will run on.", show_default="cpu")]
PurposeOption = Annotated[
    Purpose | None, typer.Option(help="training: gradients must be right too.", show_default="inference")
]
DtypeOption = Annotated[Dtype | None, typer.Option(help="Dtype of the weights.", show_default="the config's")]
TrustOption = Annotated[bool, typer.Option("--trust-remote-code", help="Run the Python code that the model brings.")]
FormatOption = Annotated[Format, typer.Option("--format", help="json: exactly one document on stdout.")]
StrategyOption = Annotated[Strategy, typer.Option(help="What becomes of a block that cannot be sharded.")]
WithModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="The model a PLAN will be used with, if not the one it names."),
]
BatchOption = Annotated[
    int | None, typer.Option(metavar="N", help="Sequences that memory is to suffice for.", show_default="1")
]
MaxLengthOption = Annotated[
    int | None, typer.Option(metavar="N", help="Tokens of each sequence.", show_default="4096, or what the model takes")
]

"""The closed sets that a caller chooses from, and the options that all calls share. Nothing heavy is imported here."""

from __future__ import annotations

from enum import StrEnum
from typing import TypedDict

MAX_TP_SIZE = 65536


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


class Depth(StrEnum):
    """How far a check goes; each depth includes the ones before."""

    STATIC = "static"
    SHAPES = "shapes"
    NUMERICS = "numerics"


class Strategy(StrEnum):
    """replicate: every rank holds and computes the whole block. gather: weights stay cut, activations are gathered."""

    REPLICATE = "replicate"
    GATHER = "gather"


class Optimize(StrEnum):
    """What a plan is chosen for. memory: fewest bytes on a rank. latency: fewest collectives, then bytes they move."""

    MEMORY = "memory"
    LATENCY = "latency"


class Options(TypedDict, total=False):
    """Keyword arguments that every call of the library takes. What is left out is what the plan says, or the default.

    model: the model that a plan will be used with, when it is not the one that the plan names. auto_class: name of the
    auto class that loads the model, found from its config when left out. device: a value of `Device`, default `cpu`.
    purpose: a value of `Purpose`, default `inference`. dtype: a value of `Dtype`, default the config's own.
    trust_remote_code: run the Python code that the model brings, default False. batch, max_length: sequences, and tokens
    of each, that a rank's memory is to suffice for; by default 1, and 4096 or what the model takes.
    """

    model: str | None
    auto_class: str | None
    device: str | None
    purpose: str | None
    dtype: str | None
    trust_remote_code: bool
    batch: int | None
    max_length: int | None

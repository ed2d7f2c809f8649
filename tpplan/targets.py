"""The devices a plan can be made for."""

from __future__ import annotations

DEVICES = ("cpu", "tpu", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7")
MAX_TP_SIZE = 65536

"""NVFP4 as a method of its own, whose storage is not described here; compressed-tensors has its format too."""

from __future__ import annotations

from tpplan.model.quantization.method import Failure, Method

# quantizers/quantizer_nvfp4.py, update_parallel_plan (update_tp_plan in 5.20 and older): raises ValueError.
REFUSED = Failure(
    outcome="from_pretrained raises", cause="quantizers/quantizer_nvfp4.py refuses tp_size above 1 (ValueError)"
)
NVFP4 = Method(failure_with_any_plan=lambda scheme: REFUSED)

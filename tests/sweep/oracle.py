"""The oracle: raw torch and Transformers on one config. It imports nothing of tpplan, and so shares no mistake with it.

The model is built on the meta device with its weights untied, cut by `maybe_distribute_model` under a fake process
group, given fake weights, and called with real token ids: every layer, on the first rank and, where shards are
uneven, on the last.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import random
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

TOKENS = 12
# In the order in which a person would try them.
AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForMultimodalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModel",
)


class Status(StrEnum):
    RUNS = "runs"
    RAISES = "raises"
    WRONG_WIDTH = "wrong-width"  # logits of another width than unsharded
    REFUSED = "refused"  # no config or no class
    UNSHARDED_RAISES = "unsharded-raises"
    UNSUPPORTED = "unsupported"  # fake weights cannot represent an operation


@dataclass(frozen=True, kw_only=True)
class Run:
    """What happened. phase: where it stopped; module: the innermost module on torch's stack. width: columns of the
    logits. share: elements that rank 0 holds / (elements of the whole model / tp_size)."""

    status: Status
    class_name: str | None = None
    phase: str | None = None
    module: str | None = None
    error: str | None = None
    width: int | None = None
    share: float | None = None
    seconds: float = 0.0


class Oracle:
    """One config. file: a config.json. auto_class: its auto class, found from `architectures` when left out."""

    def __init__(self, file: Path, auto_class: str | None, *, training: bool = False) -> None:
        self._training = training
        self._unsharded: Run | None = None
        self.refused: Run | None = None
        try:
            self._config = _read(file)
            self._auto_class = auto_class or _find_auto_class(self._config)
            self._elements, self._class_name = _measure(self._build())
        except Exception as error:  # config and model classes refuse with exceptions of every kind
            self.refused = Run(status=Status.REFUSED, phase="build", error=_words(error))

    def unsharded(self) -> Run:
        """The model on one device. The first call runs it."""
        if self.refused:
            return self.refused
        if self._unsharded is None:
            started = time.perf_counter()
            with _silence():
                model = self._build()
                model.tie_weights(recompute_mapping=False)
                run = self._run(model)
            self._unsharded = _timed(run, started, self._class_name)
        return self._unsharded

    def sharded(self, tp_size: int, overrides: Mapping[str, str] | None = None, ep_size: int | None = None) -> Run:
        """The model at tp_size with the overrides over its own plan: the first failure of the ranks, else rank 0's run.

        The last rank is run only where some shard is uneven: elsewhere its shapes are those of rank 0.
        """
        if self.refused:
            return self.refused
        started = time.perf_counter()
        with _silence(), _fake_group(0, tp_size):
            run, even = self._run_rank(tp_size, overrides, ep_size)
        if run.status is Status.RUNS and not even and tp_size > 1:
            with _silence(), _fake_group(tp_size - 1, tp_size):
                last, _ = self._run_rank(tp_size, overrides, ep_size)
            run = run if last.status is Status.RUNS and last.width == run.width else replace(last, share=run.share)
        return _timed(self._beside_unsharded(run), started, self._class_name)

    def _beside_unsharded(self, run: Run) -> Run:
        """The run, judged again by the unsharded model's where it stopped or its logits are not the vocabulary."""
        if run.phase == "sharding" or (run.status is Status.RUNS and run.width == self._vocabulary()):
            return run
        whole = self.unsharded()
        if whole.status is not Status.RUNS:
            status = whole.status if whole.status is Status.UNSUPPORTED else Status.UNSHARDED_RAISES
            return replace(whole, status=status, share=run.share)
        if run.status is Status.RUNS and run.width != whole.width:
            words = f"{run.width} columns of logits, unsharded {whole.width}"
            return replace(run, status=Status.WRONG_WIDTH, error=words)
        return run

    def _vocabulary(self) -> int | None:
        return getattr(self._config.get_text_config(decoder=True), "vocab_size", None)

    def _build(self) -> Any:
        import torch
        import transformers
        from transformers.initialization import no_tie_weights

        auto_class = getattr(transformers, self._auto_class)
        with torch.device("meta"), no_tie_weights(), _silence():
            return auto_class.from_config(copy.deepcopy(self._config), dtype=torch.bfloat16)

    def _run_rank(self, tp_size: int, overrides: Mapping[str, str] | None, ep_size: int | None) -> tuple[Run, bool]:
        """The run of one rank, and whether all of its shards are as large as every other rank's."""
        from transformers import DistributedConfig

        extra = {name: value for name, value in (("tp_plan", dict(overrides or {})), ("ep_size", ep_size)) if value}
        try:
            model = self._build()
            arguments, _, mesh = type(model).prepare_distribute_model(DistributedConfig(tp_size=tp_size, **extra))
            model = type(model).maybe_distribute_model(model, arguments, mesh)
            model.tie_weights(recompute_mapping=False)
        except Exception as error:  # whatever from_pretrained would raise
            return Run(status=Status.RAISES, phase="sharding", error=_words(error)), True
        held, _ = _measure(model)
        even = _is_even(model)
        run = replace(self._run(model), share=round(held * tp_size / self._elements, 4))
        if run.status is Status.RAISES and ep_size and _exchanges_tokens(model, run.module or ""):
            run = replace(run, status=Status.UNSUPPORTED)
        return run, even

    def _run(self, model: Any) -> Run:
        import torch
        from torch._subclasses import fake_tensor as fake

        inputs = self._inputs()
        _fake_weights(model)
        model.train(self._training)
        phase = "forward"
        try:
            with torch.set_grad_enabled(self._training):
                found = _callable(model)(**inputs)
                logits = found.logits if getattr(found, "logits", None) is not None else found[0]
                if self._training:
                    phase = "backward"
                    logits.float().pow(2).mean().backward()
        except Exception as error:  # the model's own code may raise anything
            beyond = (
                fake.DataDependentOutputException,
                fake.DynamicOutputShapeException,
                fake.UnsupportedOperatorException,
            )
            status = Status.UNSUPPORTED if isinstance(error, beyond) else Status.RAISES
            return Run(status=status, phase=phase, module=_innermost(model, error), error=_words(error))
        return Run(status=Status.RUNS, width=int(logits.shape[-1]))

    def _inputs(self) -> dict[str, Any]:
        import torch

        text = self._config.get_text_config(decoder=True)
        vocab = getattr(text, "vocab_size", None) or getattr(self._config, "vocab_size", None) or 1000
        special = set(_special_tokens(self._config.to_dict()))
        allowed = [token for token in range(min(vocab, 500)) if token not in special]
        ids = torch.tensor([random.Random(len(allowed)).choices(allowed, k=TOKENS)])
        inputs = {"input_ids": ids}
        if getattr(self._config, "is_encoder_decoder", False):
            inputs["decoder_input_ids"] = ids.clone()
        return inputs


def _read(file: Path) -> Any:
    """The config as AutoConfig reads it, without the quantization: a quantizer wants weights."""
    from transformers import AutoConfig

    raw = _unquantized(json.loads(file.read_text(encoding="utf-8")))
    with _silence(), tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(raw), encoding="utf-8")
        return AutoConfig.from_pretrained(directory)


def _unquantized(raw: dict) -> dict:
    return {
        key: _unquantized(value) if isinstance(value, dict) else value
        for key, value in raw.items()
        if key != "quantization_config"
    }


def _find_auto_class(config: Any) -> str:
    """The auto class that maps the config to the class that `architectures` names, else the first that fits."""
    import transformers

    fitting = {}
    for name in AUTO_CLASSES:
        mapping = getattr(getattr(transformers, name, None), "_model_mapping", {})
        if type(config) in mapping:
            classes = mapping[type(config)]
            fitting[name] = [cls.__name__ for cls in (classes if isinstance(classes, (list, tuple)) else [classes])]
    wanted = set(getattr(config, "architectures", None) or [])
    named = [name for name, classes in fitting.items() if wanted & set(classes)]
    found = named or list(fitting)
    if not found:
        raise ValueError(f"no auto class for {type(config).__name__}")
    return found[0]


def _measure(model: Any) -> tuple[int, str]:
    """Elements of the parameters on this rank, tied pairs once by the model's own list; the class's name."""
    tied = set(model.all_tied_weights_keys or {})
    sizes = [
        (parameter.to_local() if hasattr(parameter, "to_local") else parameter).numel()
        for name, parameter in model.named_parameters()
        if name not in tied
    ]
    return sum(sizes), type(model).__name__


def _exchanges_tokens(model: Any, module: str) -> bool:
    """Whether `module` is experts that get their tokens from other ranks: the fake ones send none."""
    style = (model.ep_plan or {}).get(re.sub(r"\.\d+(?=\.|$)", ".*", module))
    return style == "ep_dispatch_experts"


def _callable(model: Any) -> Any:
    """What answers with logits: the model, or for a class without a forward its first part that generates."""
    from torch.nn.modules.module import _forward_unimplemented
    from transformers import GenerationMixin

    if type(model).forward is not _forward_unimplemented:
        return model
    return next((part for part in model.children() if isinstance(part, GenerationMixin)), model)


def _is_even(model: Any) -> bool:
    """Whether every shard is one of equal ones, so that all ranks have the same shapes."""
    from torch.distributed.tensor import DTensor

    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            size = parameter.device_mesh.size()
            cut = any(placement.is_shard() for placement in parameter.placements)
            if parameter.to_local().numel() * (size if cut else 1) != parameter.numel():
                return False
    return True


def _fake_weights(model: Any) -> None:
    """A fake tensor on cpu for each meta parameter (a shard for a shard), a real one for each meta buffer."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.tensor import DTensor

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    replaced: dict[int, Any] = {}
    olds = []  # kept alive, so that no id is used twice
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is None:
                continue
            if id(old) not in replaced:
                local = old.to_local() if isinstance(old, DTensor) else old
                with mode:
                    new = torch.empty(local.shape, dtype=local.dtype)
                if isinstance(old, DTensor):
                    new = DTensor.from_local(
                        new, old.device_mesh, old.placements, run_check=False, shape=old.shape, stride=old.stride()
                    )
                replaced[id(old)] = torch.nn.Parameter(new, requires_grad=old.requires_grad)
                olds.append(old)
            module._parameters[name] = replaced[id(old)]
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                make = torch.ones if buffer.is_floating_point() else torch.zeros
                module._buffers[name] = make(buffer.shape, dtype=buffer.dtype)


@contextmanager
def _fake_group(rank: int, tp_size: int) -> Iterator[None]:
    import torch.distributed as dist
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook
    os.environ["LOCAL_RANK"] = "0"
    _clear_sharding_prop_cache()
    dist.init_process_group("fake", rank=rank, world_size=tp_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()
        sys.excepthook = hook


@contextmanager
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def _special_tokens(values: Any) -> Iterator[int]:
    if isinstance(values, dict):
        for name, value in values.items():
            if str(name).endswith(("token_id", "token_index")):
                yield from (
                    token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)
                )
            else:
                yield from _special_tokens(value)


def _innermost(model: Any, error: BaseException) -> str | None:
    """The module whose method is deepest on the stack of the error."""
    import torch

    names = {id(module): name for name, module in model.named_modules()}
    found, trace = None, error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            found = names.get(id(owner), found)
        trace = trace.tb_next
    return found


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _timed(run: Run, started: float, class_name: str, **changes: Any) -> Run:
    return replace(run, seconds=round(time.perf_counter() - started, 3), class_name=class_name, **changes)

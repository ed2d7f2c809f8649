"""From a raw config to the config object, and what it says of the language model."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import Any

from tpplan import scratch
from tpplan.diagnostics import InputError, Place
from tpplan.model.auto_class import find_auto_class, remote_code
from tpplan.model.bounds import refuse_unreal_sizes
from tpplan.model.config_values import (
    config_value,
    names_read_by,
    place_named_by,
    refuse_contradictions,
    refuse_odd_counts,
    refuse_unread_counts,
)
from tpplan.model.internals import environment_error, versions
from tpplan.model.quantization import method_of, read_scheme
from tpplan.model.quantization.scheme import Scheme
from tpplan.model.quantization.values import Malformed
from tpplan.model.quiet import quiet
from tpplan.source import CONFIG_NAME, Source
from tpplan.units import first_few, joined, one_line

# Values without which a config describes no particular model; the class default would be another model's.
DECIDING_FIELDS = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
DTYPE_KEYS = ("dtype", "torch_dtype")  # the name of today, and that of older configs


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Everything needed to build a model's class without weights.

    config: the config object, without its quantization. auto_class: name of the auto class that loads it.
    dtype: the dtype the parameters would have, as torch names it. quantization: the quant_method of the checkpoint.
    quantization_config: the value that Transformers would follow, as it stands in config.json. scheme: what it says.
    auto_class_is_chosen: whether the caller named it, and the config alone leads to another or to none.
    dtype_is_assumed: whether neither caller nor config names the dtype, and the weights that decide are not at hand.
    """

    source: Source
    config: Any
    auto_class: str
    dtype: str
    quantization: str | None = None
    quantization_config: dict | None = None
    scheme: Scheme | None = None
    trust_remote_code: bool = False
    auto_class_is_chosen: bool = False
    dtype_is_assumed: bool = False

    @property
    def runs_own_code(self) -> bool:
        """Whether Python files of the model's repository are run, which no config and no version tells about."""
        return self.trust_remote_code and bool(remote_code(self.source.config))

    @property
    def loaded_as(self) -> str:
        """The dtype that weights have on a device, and the method of those that stay as their checkpoint packs them."""
        packed = self.scheme is not None and not self.scheme.dequantized
        return f"{self.dtype} and {self.quantization}" if packed else self.dtype


def load_spec(
    source: Source, *, auto_class: str | None = None, dtype: str | None = None, trust_remote_code: bool = False
) -> ModelSpec:
    """The spec of the model in `source`.

    Raises InputError: TPP111 to TPP122 when Transformers cannot load this config, TPP130 for an auto class that
    does not exist.
    """
    raw = without_quantization(source.config)
    refuse_unreal_sizes(source, raw)
    config = _build_config(source, raw, trust_remote_code)
    _require_text_config(source, config)
    _refuse_impossible_values(source, config)
    _require_deciding_fields(source, raw, config)
    _refuse_traps(source, raw, config)
    quantization_config = _quantization_of(source.config, config)
    scheme = _read_scheme(source, quantization_config, config)
    return ModelSpec(
        source=source,
        config=config,
        auto_class=find_auto_class(source, config, auto_class, trust_remote_code),
        dtype=dtype or _dtype_of(source, config, scheme),
        dtype_is_assumed=not (dtype or _named_dtype(config) or source.checkpoint_dtype),
        quantization=scheme.method if scheme else None,
        quantization_config=quantization_config,
        scheme=scheme,
        trust_remote_code=trust_remote_code,
        auto_class_is_chosen=auto_class is not None and auto_class != _fitting_auto_class(source, config),
    )


def text_config(config: Any) -> Any:
    """The part of the config that describes the language model (the config itself when it is not nested)."""
    return config.get_text_config(decoder=True)


def text_config_place(spec: ModelSpec) -> str:
    """Where the language model's values stand, as people say: `config.json`, a plan's config, or the nested config."""
    return text_config_name(spec.config) or spec.source.called


def text_config_name(config: Any) -> str:
    """The dotted name of the nested config of the language model; empty where the config is not nested."""
    if text_config(config) is config:
        return ""
    return ".".join(text_config_path(config)) or "the nested text config"


def text_config_path(config: Any) -> tuple[str, ...]:
    """The keys that lead to the language model's part of a config; () where that is all of it, or has no key."""
    return _path_to(text_config(config), config) or ()


def _path_to(wanted: Any, config: Any) -> tuple[str, ...] | None:
    if config is wanted:
        return ()
    for name in type(config).sub_configs:
        nested = config_value(config, name)
        path = None if nested is None or not hasattr(nested, "sub_configs") else _path_to(wanted, nested)
        if path is not None:
            return (name, *path)
    return None


def text_part(raw: dict, config: Any) -> dict:
    """The part of `raw`, the config as it was parsed, that describes the language model; empty where it has none."""
    part: Any = raw
    for name in text_config_path(config):
        part = part.get(name) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}


def defaulted(source: Source, config: Any, name: str) -> bool:
    """Whether `name` of the language model's part of `config` came from the class default and not from the file.

    Wrappers of older models take such values from the top level of the file too.
    """
    raw, text = source.config, text_config(config)
    if _stands_in(text_part(raw, config), text, name) or name not in names_read_by(type(text)):  # or it is computed
        return False
    return text is config or not (_stands_in(raw, text, name) and raw.get(name) == config_value(text, name))


def _stands_in(raw: dict, config: Any, name: str) -> bool:
    """Whether the file gives this value, under the name of the class or under one that the class maps to or from it."""
    names = type(config).attribute_map
    return name in raw or names.get(name) in raw or any(names.get(key) == name for key in raw)


def without_quantization(raw: dict) -> dict:
    """The config without any quantization_config, nested ones included."""
    return {
        key: without_quantization(value) if isinstance(value, dict) else value
        for key, value in raw.items()
        if key != "quantization_config"
    }


def _quantization_of(raw: dict, config: Any) -> Any:
    """The quantization_config that Transformers follows: the config's own, else that of its language model.

    As get_hf_quantizer (quantizers/auto.py): an empty one of its own gives way, and null means that there is none.
    """
    return raw.get("quantization_config") or text_part(raw, config).get("quantization_config")


def _read_scheme(source: Source, quantization_config: Any, config: Any) -> Scheme | None:
    try:
        return read_scheme(quantization_config, expert_dtype=config_value(config, "expert_dtype"))
    except Malformed as error:
        key = f"quantization_config.{error.key}" if error.key else "quantization_config"
        raise source.refused(
            code="TPP330",
            message=f"{error}, and from_pretrained cannot read it",
            where=Place(file=source.config_file or source.name),
            evidence=f"{key} of {CONFIG_NAME}",
            fix="correct the value, or take quantization_config out where the weights are not quantized",
        ) from error


def _build_config(source: Source, raw: dict, trust_remote_code: bool) -> Any:
    place = Place(file=source.config_file or source.name)
    auto_map = remote_code(raw)
    if trust_remote_code and "AutoConfig" in auto_map:
        from transformers import AutoConfig

        origin = str(source.directory) if source.directory else source.name
        try:
            return AutoConfig.from_pretrained(origin, trust_remote_code=True)
        except Exception as error:  # the repository's own code may raise anything
            raise _rejected(source, place, error) from error
    model_type = raw.get("model_type")
    if not model_type:
        raise source.refused(
            code="TPP112",
            message="the config has no model_type, so Transformers cannot tell which model it is",
            where=place,
            evidence=f"its keys are {first_few(sorted(raw), 5) or 'none'}",
            fix=f"put model_type into {source.called}",
        )
    known = _known_model_types()
    if model_type not in known:
        raise _unknown_type(source, source.place_of("model_type"), model_type, known, bool(auto_map))
    refuse_odd_counts(source, raw)
    for key in DTYPE_KEYS:
        if isinstance(raw.get(key), str):
            _dtype_name(source, key, raw[key])
    try:
        return read_config(raw)
    except Exception as error:  # config classes validate with exceptions of many kinds
        raise _rejected(source, source.place_of(*place_named_by(source, raw, error)), error) from error


def read_config(raw: dict) -> Any:
    """The config as AutoConfig reads it from a file, so that its own rules (mistral to ministral) hold."""
    from transformers import AutoConfig

    raw = {key: value for key, value in raw.items() if key != "auto_map"}
    with quiet(), scratch.directory() as directory:
        (directory / CONFIG_NAME).write_text(json.dumps(raw), encoding="utf-8")
        return AutoConfig.from_pretrained(directory)


def _known_model_types() -> list[str]:
    try:
        from transformers import CONFIG_MAPPING
    except ImportError as error:
        raise environment_error("Transformers cannot be imported", evidence=str(error)) from error
    return list(CONFIG_MAPPING.keys())


def _unknown_type(source: Source, place: Place, model_type: Any, known: list[str], has_code: bool) -> InputError:
    if has_code:
        return source.refused(
            code="TPP114",
            message="the model brings its own code, which is not run unasked, and Transformers does not know its type",
            where=place,
            evidence=f"model_type is {model_type!r}; auto_map names "
            + ", ".join(sorted(map(str, remote_code(source.config).values()))[:3]),
            fix="read that code, then give --trust-remote-code",
        )
    nearest = difflib.get_close_matches(str(model_type), known, n=1)
    return source.refused(
        code="TPP111",
        message="the installed Transformers does not know this model_type, so it loads no such model",
        where=place,
        evidence=f"model_type is {model_type!r}; Transformers {versions().get('transformers')} knows {len(known)} "
        "model types",
        fix=f"write {nearest[0]!r}" if nearest else "install a Transformers release that has it",
    )


def _rejected(source: Source, place: Place, error: Exception) -> InputError:
    return source.refused(
        code="TPP113",
        message="Transformers refuses the config, so no model can be built",
        where=place,
        evidence=one_line(error),
        fix=f"correct the value in {source.called}",
    )


def _refuse_impossible_values(source: Source, config: Any) -> None:
    for field in DECIDING_FIELDS:
        value = config_value(config, field)
        if isinstance(value, int) and value < 1:
            raise source.refused(
                code="TPP119",
                message=f"{field} is {value}, must be at least 1, so no model can be built",
                where=source.place_of(field),
                evidence=f"{field} = {value}",
                fix=f"correct the value in {source.called}",
            )


def _require_deciding_fields(source: Source, raw: dict, config: Any) -> None:
    """Refuse a flat config without the values that make it one model; nested ones legally hold only what differs."""
    if getattr(config, "sub_configs", None):
        return
    names = type(config).attribute_map
    missing = [
        names.get(field, field)
        for field in DECIDING_FIELDS
        if config_value(config, field) is not None
        and not isinstance(getattr(type(config), field, None), property)  # computed from other values
        and not _stands_in(raw, config, field)
    ]
    if missing:
        raise source.refused(
            code="TPP112",
            message=f"the config lacks {len(missing)} size{'s' * (len(missing) > 1)}, and the defaults of the class "
            "are those of a different model",
            where=Place(file=source.config_file or source.name),
            evidence=", ".join(f"{type(config).__name__}.{name} = {config_value(config, name)}" for name in missing),
            fix=f"put {joined(missing)} into {source.called}",
        )


def _require_text_config(source: Source, config: Any) -> None:
    """Refuse a flat config with a value that Transformers takes for the config of its language model, and is none."""
    text = text_config(config)
    if hasattr(type(text), "sub_configs"):
        return
    key = next((key for key in source.config if config_value(config, key) is text), "text_config")
    raise source.refused(
        code="TPP122",
        message=f"Transformers takes {key} for the config of a language model, and it is none",
        where=source.place_of(key),
        evidence=f"{type(config).__name__} has no nested configs; its get_text_config() returns {key}",
        fix=f"remove {key} from {source.called}",
    )


def _refuse_traps(source: Source, raw: dict, config: Any) -> None:
    """Refuse what the class of the config would read otherwise than it was meant."""
    if type(config).__module__.startswith("transformers_modules."):
        return  # a class of the model's own, whose names are its own too
    text, path, part = text_config(config), text_config_path(config), text_part(raw, config)
    heads = config_value(text, "num_attention_heads")
    used = {
        "num_attention_heads": heads,
        "num_key_value_heads": config_value(text, "num_key_value_heads") or heads,
    }
    refuse_contradictions(source, part, text, path)
    refuse_unread_counts(source, part, text, path, used)


def _named_dtype(config: Any) -> Any:
    return config_value(config, "dtype") or config_value(text_config(config), "dtype")


def _fitting_auto_class(source: Source, config: Any) -> str | None:
    """The auto class that the config alone leads to, None where there is none."""
    try:
        return find_auto_class(source, config, None, False)
    except InputError:
        return None


def _dtype_of(source: Source, config: Any, scheme: Scheme | None) -> str:
    """The dtype from_pretrained gives the parameters: the config's, else the weights', else the most likely."""
    key = next((key for key in DTYPE_KEYS if key in source.config), DTYPE_KEYS[0])
    likely = method_of(scheme.method).dtype if scheme else "float32"
    return _dtype_name(source, key, _named_dtype(config) or source.checkpoint_dtype or likely)


def _dtype_name(source: Source, key: str, dtype: Any) -> str:
    """The name of a dtype of torch. Raises InputError (TPP121) for a value that is none, at its key in the config."""
    import torch

    name = str(dtype).removeprefix("torch.")
    if isinstance(getattr(torch, name, None), torch.dtype):
        return name
    raise source.refused(
        code="TPP121",
        message="the config names a dtype that torch does not have, so the parameters have no dtype",
        where=source.place_of(key),
        evidence=f"{key} = {json.dumps(dtype, default=str)}",
        fix=f"write a dtype of torch into {source.called}, such as bfloat16",
    )

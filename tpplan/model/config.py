"""From a raw config to the config object, the auto class and the facts that a plan depends on."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpplan.diagnostics import Diagnostic, InputError, Place
from tpplan.model.config_values import (
    names_read_by,
    place_named_by,
    refuse_contradictions,
    refuse_odd_counts,
    refuse_unread_counts,
)
from tpplan.model.internals import environment_error
from tpplan.model.quantization import Scheme
from tpplan.model.quantization_config import Malformed, read_scheme
from tpplan.model.quiet import quiet
from tpplan.source import CONFIG_NAME, Source
from tpplan.units import one_line

# Auto classes that load a model for text generation, in the order in which they are tried.
AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForMultimodalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModel",
)
# Values without which a config describes no particular model; the class default would be another model's.
DECIDING_FIELDS = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
MAX_LAYERS = 4096  # far above any model; a larger number is a mistake that would take hours to build
# Values that change neither names, shapes, placement nor the code that runs: no plan depends on them.
INCIDENTAL_FIELDS = frozenset(
    """_name_or_path architectures auto_map transformers_version dtype torch_dtype use_cache initializer_range
    initializer_factor bos_token_id eos_token_id pad_token_id decoder_start_token_id sep_token_id output_attentions
    output_hidden_states return_dict chunk_size_feed_forward id2label label2id problem_type quantization_config
    distributed_config attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop router_aux_loss_coef
    output_router_logits pretraining_tp use_return_dict bos_token eos_token pad_token unk_token _attn_implementation
    quantization finetuning_task task_specific_params""".split()
)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Everything needed to build a model's class without weights.

    config: the config object, without its quantization. auto_class: name of the auto class that loads it.
    dtype: the dtype the parameters would have, as torch names it. quantization: the quant_method of the checkpoint.
    quantization_config: the value that Transformers would follow, as it stands in config.json. scheme: what it says.
    """

    source: Source
    config: Any
    auto_class: str
    dtype: str
    quantization: str | None = None
    quantization_config: dict | None = None
    scheme: Scheme | None = None
    trust_remote_code: bool = False


def load_spec(
    source: Source, *, auto_class: str | None = None, dtype: str | None = None, trust_remote_code: bool = False
) -> ModelSpec:
    """The spec of the model in `source`.

    Raises InputError: TPP111 to TPP115 when Transformers cannot load this config, TPP130 for an auto class that
    does not exist.
    """
    raw = _without_quantization(source.config)
    config = _build_config(source, raw, trust_remote_code)
    _require_text_config(source, config)
    _require_deciding_fields(source, raw, config)
    _refuse_traps(source, raw, config)
    quantization_config = _quantization_of(source.config, config)
    scheme = _read_scheme(source, quantization_config, config)
    return ModelSpec(
        source=source,
        config=config,
        auto_class=_find_auto_class(source, config, auto_class, trust_remote_code),
        dtype=dtype or _dtype_of(source, config),
        quantization=scheme.method if scheme else None,
        quantization_config=quantization_config,
        scheme=scheme,
        trust_remote_code=trust_remote_code,
    )


def facts_of(config: Any) -> dict:
    """The config values that a plan depends on: those that differ from the class default and are not incidental.

    A config built from them has the same structure as `config`. Plain JSON values, nested as in config.json.
    """
    # JSON turns tuples into lists and keys into strings, as they are when read back.
    kept = _keep_structural(json.loads(json.dumps(config.to_diff_dict(), default=str)))
    return {"model_type": config.model_type} | kept


def changed_facts(facts: dict, config: Any) -> list[str]:
    """Dotted names of the values in which the model described by `facts` differs from `config`, with both values."""
    made_for = facts_of(_read_config(_without_quantization(facts)))
    return list(_differences(made_for, facts_of(config)))


def text_config(config: Any) -> Any:
    """The part of the config that describes the language model (the config itself when it is not nested)."""
    return config.get_text_config(decoder=True)


def text_config_place(spec: ModelSpec) -> str:
    """Where the language model's values stand, as people call it: `config.json`, a plan's config, or the nested config."""
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


def config_value(config: Any, name: str) -> Any:
    """The value of a config attribute, or None when it has none or holds one per layer.

    Heterogeneous configs raise a RuntimeError of their own for values that differ by layer.
    """
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return None


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


def _without_quantization(raw: dict) -> dict:
    """The config without any quantization_config, nested ones included."""
    return {
        key: _without_quantization(value) if isinstance(value, dict) else value
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
        raise _input_error(
            source,
            code="TPP330",
            message=f"{error}, and from_pretrained cannot read it",
            where=Place(file=source.config_file or source.name),
            evidence=f"{key} of {CONFIG_NAME}",
            fix="correct the value, or take quantization_config out where the weights are not quantized",
        ) from error


def _build_config(source: Source, raw: dict, trust_remote_code: bool) -> Any:
    place = Place(file=source.config_file or source.name)
    auto_map = _remote_code(raw)
    if trust_remote_code and "AutoConfig" in auto_map:
        from transformers import AutoConfig

        origin = str(source.directory) if source.directory else source.name
        try:
            return AutoConfig.from_pretrained(origin, trust_remote_code=True)
        except Exception as error:  # the repository's own code may raise anything
            raise _rejected(source, place, error) from error
    model_type = raw.get("model_type")
    if not model_type:
        raise _input_error(
            source,
            code="TPP112",
            message="the config has no model_type, so Transformers cannot tell which model it is",
            where=place,
            fix=f"put model_type into {source.called}",
        )
    known = _known_model_types()
    if model_type not in known:
        raise _unknown_type(source, source.place_of("model_type"), model_type, known, bool(auto_map))
    refuse_odd_counts(source, raw)
    try:
        return _read_config(raw)
    except Exception as error:  # config classes validate with exceptions of many kinds
        raise _rejected(source, source.place_of(*place_named_by(source, raw, error)), error) from error


def _remote_code(raw: dict) -> dict:
    """What the config says about Python files of the model's repository: auto class -> file and class."""
    auto_map = raw.get("auto_map")
    return auto_map if isinstance(auto_map, dict) else {}


def _read_config(raw: dict) -> Any:
    """The config as AutoConfig reads it from a file, so that its own rules (mistral to ministral) hold."""
    from transformers import AutoConfig

    raw = {key: value for key, value in raw.items() if key != "auto_map"}
    with quiet(), tempfile.TemporaryDirectory(prefix="tpplan-") as directory:
        (Path(directory) / CONFIG_NAME).write_text(json.dumps(raw), encoding="utf-8")
        return AutoConfig.from_pretrained(directory)


def _known_model_types() -> list[str]:
    try:
        from transformers import CONFIG_MAPPING
    except ImportError as error:
        raise environment_error("Transformers cannot be imported", evidence=str(error)) from error
    return list(CONFIG_MAPPING.keys())


def _unknown_type(source: Source, place: Place, model_type: Any, known: list[str], has_code: bool) -> InputError:
    if has_code:
        return _input_error(
            source,
            code="TPP114",
            message=f"model_type {model_type!r} is not in the installed Transformers and the model brings its own code",
            where=place,
            evidence="auto_map names " + ", ".join(sorted(map(str, _remote_code(source.config).values()))[:3]),
            fix="read that code, then give --trust-remote-code",
        )
    nearest = difflib.get_close_matches(str(model_type), known, n=1)
    from tpplan.model.internals import versions

    return _input_error(
        source,
        code="TPP111",
        message=f"the installed Transformers has no model_type {model_type!r}",
        where=place,
        evidence=f"Transformers {versions().get('transformers')} knows {len(known)} model types",
        fix=f"did you mean {nearest[0]!r}?" if nearest else "install a Transformers release that has it",
    )


def _rejected(source: Source, place: Place, error: Exception) -> InputError:
    return _input_error(
        source,
        code="TPP113",
        message="no model can be built from this config",
        where=place,
        evidence=one_line(error),
        fix=f"correct the value in {source.called}",
    )


def _require_deciding_fields(source: Source, raw: dict, config: Any) -> None:
    """Refuse a flat config without the values that make it one model; nested ones legally hold only what differs."""
    layers = config_value(text_config(config), "num_hidden_layers")
    if isinstance(layers, int) and layers > MAX_LAYERS:
        raise _rejected(source, source.place_of("num_hidden_layers"), ValueError(f"{layers} hidden layers"))
    for field in DECIDING_FIELDS:
        value = config_value(config, field)
        if isinstance(value, int) and value < 1:
            raise _rejected(source, source.place_of(field), ValueError(f"{field} is {value}"))
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
        raise _input_error(
            source,
            code="TPP112",
            message=f"the config has no {', '.join(missing)}, and the defaults of {type(config).__name__} are another model's",
            where=Place(file=source.config_file or source.name),
            evidence=", ".join(f"the default of {name} is {config_value(config, name)}" for name in missing),
            fix=f"put the model's own values into {source.called}",
        )


def _require_text_config(source: Source, config: Any) -> None:
    """Refuse a flat config with a value that Transformers takes for the config of its language model, and is none."""
    text = text_config(config)
    if hasattr(type(text), "sub_configs"):
        return
    key = next((key for key in source.config if config_value(config, key) is text), "text_config")
    said = f"{type(config).__name__} has no nested configs, and Transformers takes {key} for one"
    raise _rejected(source, source.place_of(key), ValueError(said))


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


def _find_auto_class(source: Source, config: Any, requested: str | None, trust_remote_code: bool) -> str:
    if requested is not None:
        return _check_auto_class(source, config, requested, trust_remote_code)
    fitting = [name for name in AUTO_CLASSES if _classes_for(name, config)]
    if trust_remote_code:
        remote = _remote_code(source.config)
        fitting += [name for name in AUTO_CLASSES if name in remote]
    if not fitting:
        raise _input_error(
            source,
            code="TPP115",
            message=f"no auto class that tpplan tries loads {type(config).__name__}",
            where=Place(file=source.config_file or source.name),
            evidence="tried " + ", ".join(AUTO_CLASSES),
            fix="name the auto class with --auto-class",
        )
    named = config_value(config, "architectures")
    architectures = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    for name in fitting:
        if {cls.__name__ for cls in _classes_for(name, config)} & set(architectures):
            return name
    return fitting[0]


def _check_auto_class(source: Source, config: Any, name: str, trust_remote_code: bool) -> str:
    import transformers

    if not (name.startswith("AutoModel") and hasattr(transformers, name)):
        raise _input_error(
            source,
            code="TPP130",
            message=f"Transformers has no auto class {name!r}",
            fix=f"give one of {', '.join(AUTO_CLASSES)}",
        )
    remote = _remote_code(source.config) if trust_remote_code else {}
    if not _classes_for(name, config) and name not in remote:
        raise _input_error(
            source,
            code="TPP115",
            message=f"{name} does not load {type(config).__name__}",
            where=Place(file=source.config_file or source.name),
            fix="leave --auto-class out, and it is found from the config",
        )
    return name


def _classes_for(auto_class: str, config: Any) -> tuple[type, ...]:
    """The model classes that `auto_class` maps this config class to."""
    import transformers

    mapping = getattr(getattr(transformers, auto_class, None), "_model_mapping", {})
    if type(config) not in mapping:
        return ()
    found = mapping[type(config)]
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def _dtype_of(source: Source, config: Any) -> str:
    """The dtype from_pretrained gives the parameters: the config's own, else torch's default."""
    import torch

    dtype = config_value(config, "dtype") or config_value(text_config(config), "dtype") or torch.float32
    name = str(dtype).removeprefix("torch.")
    if not isinstance(getattr(torch, name, None), torch.dtype):
        key = next((key for key in ("dtype", "torch_dtype") if key in source.config), "dtype")
        raise _rejected(source, source.place_of(key), ValueError(f"{key} is {dtype!r}, which is no dtype of torch"))
    return name


def _keep_structural(values: dict) -> dict:
    return {
        key: _keep_structural(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if key not in INCIDENTAL_FIELDS and not key.endswith(("_token_id", "_token_index"))
    }


def _differences(old: Any, new: Any, name: str = "") -> Iterable[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield f"{name}: the plan has {json.dumps(old)}, the config {json.dumps(new)}"


def _input_error(source: Source, **fields: Any) -> InputError:
    return InputError(Diagnostic(**fields), model=source.name)

"""The auto class that loads a config: the one that was asked for, or the first that fits."""

from __future__ import annotations

from typing import Any

from tpplan.diagnostics import Place
from tpplan.model.config_values import config_value
from tpplan.source import Source

# Auto classes that load a model for text generation, in the order in which they are tried.
AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForMultimodalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModel",
)


def find_auto_class(source: Source, config: Any, requested: str | None, trust_remote_code: bool) -> str:
    """The auto class that was asked for; else one that loads a class that the config names, or the first that fits."""
    if requested is not None:
        return _check_auto_class(source, config, requested, trust_remote_code)
    remote = remote_code(source.config) if trust_remote_code else {}
    fitting = [name for name in AUTO_CLASSES if _classes_for(name, config)]
    fitting += [name for name in AUTO_CLASSES if name in remote]
    if not fitting:
        raise source.refused(
            code="TPP115",
            message=f"no auto class that tpplan tries loads {type(config).__name__}, so there is no model to judge",
            where=Place(file=source.config_file or source.name),
            evidence="tried " + ", ".join(AUTO_CLASSES),
            fix="name another auto class with --auto-class",
        )
    named = config_value(config, "architectures")
    architectures = named if isinstance(named, list) else []
    loads = (name for name in fitting if any(cls.__name__ in architectures for cls in _classes_for(name, config)))
    return next(loads, fitting[0])


def _check_auto_class(source: Source, config: Any, name: str, trust_remote_code: bool) -> str:
    import transformers

    if not (name.startswith("AutoModel") and hasattr(transformers, name)):
        raise source.refused(
            code="TPP130",
            message=f"Transformers has no auto class {name!r}",
            fix=f"give one of {', '.join(AUTO_CLASSES)}",
        )
    remote = remote_code(source.config) if trust_remote_code else {}
    if not _classes_for(name, config) and name not in remote:
        raise source.refused(
            code="TPP115",
            message=f"{name} does not load {type(config).__name__}, so there is no model to judge",
            where=Place(file=source.config_file or source.name),
            evidence=f"the model mapping of {name} has no {type(config).__name__}",
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


def remote_code(raw: dict) -> dict:
    """What the config says about Python files of the model's repository: auto class -> file and class."""
    auto_map = raw.get("auto_map")
    return auto_map if isinstance(auto_map, dict) else {}

"""What is swept: config files, and the default config of every architecture of the installed Transformers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

# Auto classes of the architectures that are swept, and the module-level tables that list their model types.
TABLES = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
}

LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "depth")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One config. name: unique. file: the config file, None for an architecture's default. auto_class: None where it
    is to be found from the config."""

    name: str
    model_type: str
    file: Path | None = None
    auto_class: str | None = None


def config_cases(directory: Path) -> Iterator[Case]:
    """A case for each config file, the first of every model type before all others."""
    seen: set[str] = set()
    later = []
    for file in sorted(directory.glob("*.json")):
        case = Case(name=file.stem, model_type=str(_model_type(file)), file=file)
        if case.model_type in seen:
            later.append(case)
        else:
            seen.add(case.model_type)
            yield case
    yield from later


def architecture_cases() -> list[Case]:
    """A case for each model type and class; a type whose auto classes load the same class has one.

    In the order of a hash of their names, so that a sweep which is stopped has seen a fair sample.
    """
    from transformers.models.auto import modeling_auto

    seen = set()
    cases = []
    for auto_class, table in TABLES.items():
        for model_type, class_name in sorted(getattr(modeling_auto, table).items()):
            if (model_type, str(class_name)) not in seen:
                seen.add((model_type, str(class_name)))
                short = auto_class.removeprefix("AutoModelFor")
                cases.append(Case(name=f"{model_type}:{short}", model_type=model_type, auto_class=auto_class))
    return sorted(cases, key=_hash)


def chosen(cases: list[Case], only: str | None, sample: int | None) -> list[Case]:
    """The cases that match the glob `only`; of these, `sample` picked by a hash of their names, the same each time."""
    kept = [case for case in cases if only is None or fnmatch(case.name, only) or fnmatch(case.model_type, only)]
    if sample is None or sample >= len(kept):
        return kept
    picked = sorted(kept, key=_hash)[:sample]
    return [case for case in kept if case in picked]


def write_config(case: Case, directory: Path, layers: int | None = None) -> Path:
    """The case's config as `config.json` in `directory`; an architecture's default has every value written out.

    layers: the most layers that an architecture keeps, where its config class takes fewer; None keeps all.

    Raises what the config class raises when it cannot be made without arguments.
    """
    file = directory / "config.json"
    if case.file:
        file.write_bytes(case.file.read_bytes())
        return file
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[case.model_type]
    text = config_class().to_json_string(use_diff=False)
    if layers is not None:
        fewer = _fewer_layers(json.loads(text), layers)
        with suppress(Exception):  # it wants the layers that it lists elsewhere: they are all kept
            text = config_class.from_dict(fewer).to_json_string(use_diff=False)
    file.write_text(text, encoding="utf-8")
    return file


def _fewer_layers(values: dict, layers: int) -> dict:
    """The config with its first `layers` layers, nested configs likewise."""
    kept = {key: _fewer_layers(value, layers) if isinstance(value, dict) else value for key, value in values.items()}
    for name in LAYER_COUNTS:
        depth = kept.get(name)
        if isinstance(depth, int) and depth > layers:
            lists = {
                key: value[:layers] for key, value in kept.items() if isinstance(value, list) and len(value) == depth
            }
            kept |= lists | {name: layers}
    return kept


def _hash(case: Case) -> int:
    return zlib.crc32(case.name.encode())


def _model_type(file: Path) -> str | None:
    try:
        return json.loads(file.read_text(encoding="utf-8")).get("model_type")
    except ValueError:
        return None

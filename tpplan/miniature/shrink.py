"""The config of a miniature: the values of a model's config, with smaller widths and fewer layers.

Head counts, KV groups, experts and routing stay as they are, and head widths where the config gives them, but for those
of linear attention. What is shrunk keeps its remainder by 8 * tp_size, so that what is uneven stays uneven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tpplan.miniature.values import AROUND, TEXT, TOKEN_OFFSETS, TOWER, Row, matches, shrunk
from tpplan.miniature.widths import Hidden, Part, Size, Widths, number_of_layers
from tpplan.model.config import config_value

# Parts of a model that text does not run through, by words in the names of their modules and configs.
TOWERS = (
    "vision",
    "visual",
    "audio",
    "image",
    "speech",
    "video",
    "talker",
    "token2wav",
    "code2wav",
    "vqmodel",
    "vq_config",
)


def is_tower(name: str) -> bool:
    """Whether this module, or nested config, belongs to a part that text does not run through."""
    return any(word in name for word in TOWERS)


def shrink(config: Any, text: Any, size: Size) -> tuple[dict, dict[str, tuple[Any, Any]]]:
    """The plain values of the smaller config, and what was changed: dotted name -> (full size, miniature).

    text: the part of `config` that describes the language model.
    """
    values: dict[str, Any] = config.to_dict()
    changes: dict[str, tuple[Any, Any]] = {}
    _shrink(values, config, "", Widths(text, size), size, changes)
    return values, changes


def _shrink(values: dict, config: Any, path: str, text: Widths, size: Size, changes: dict) -> None:
    """Change `values`, the plain form of `config`, in place; nested configs likewise."""
    table, part = _table(config, path, text, size)
    for name, value in list(values.items()):
        nested = config_value(config, name) if isinstance(value, dict) else None
        where = f"{path}.{name}" if path else name
        if nested is not None and hasattr(nested, "to_dict"):
            _shrink(value, nested, where, text, size, changes)
            continue
        new = shrunk(table, part, name, value)
        if new != value:
            changes[where] = (_brief(value), _brief(new))
            values[name] = new


def _table(config: Any, path: str, text: Widths, size: Size) -> tuple[Sequence[Row], Part]:
    """What becomes of the values of this config, and what that depends on."""
    if is_tower(path):
        depth, own = number_of_layers(config), Widths(config, replace(size, hidden=Hidden.HEADS))
        layers = size.tower_layers.get(depth, (0,))
        return TOWER, Part(config=config, own=own, text=text, size=size, depth=depth, layers=layers)
    own = text if config is text.config else Widths(config, size)
    if own is not text and getattr(config, "sub_configs", None):
        values = config.to_dict()
        offsets = sorted(values[name] for name in values if matches(name, TOKEN_OFFSETS))
        return AROUND, Part(config=config, own=own, text=text, size=size, offsets=tuple(offsets))
    depth = number_of_layers(config) if size.layers else 0
    return TEXT, Part(config=config, own=own, text=text, size=size, depth=depth, layers=size.layers)


def _brief(value: Any) -> Any:
    return f"[{len(value)}]" if isinstance(value, (list, dict)) else value

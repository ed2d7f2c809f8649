"""Sizes that no real model has, refused where they stand, before anything is built from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tpplan.diagnostics import Diagnostic, Keys
from tpplan.source import Source

LONGEST = 20  # digits of a number that are shown
NAMED_BY_TOKENS = re.compile(r"label2id|.*_map")  # their keys are labels or tokens, and no names of sizes


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a size may be at most. what: it counts. most: far above the largest known. names: of keys, as a pattern."""

    what: str
    most: int
    names: re.Pattern[str]


def _named(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?:.*_)?(?:{pattern})")


# The largest known are those of the published configs, and of the defaults of all config classes, of Transformers 5.24.
BOUNDS = (
    Bound(  # known: 128 (hrm_text), 126 (Llama 3.1 405B)
        what="layers",
        most=1024,
        names=_named(r"layers?|depths?|num_blocks|encoder_blocks|res_blocks|num_stages|layers_per_\w+"),
    ),
    Bound(what="labels", most=2**18, names=_named(r"labels|num_classes")),  # 50,257 (mgp-str)
    Bound(  # 20,000,000 (qwen4_exp's n-grams), 500,002 (blt); 290,943 of vocab_size
        what="entries of a vocabulary",
        most=2**27,
        names=_named(r"vocab|vocab_sizes?|vocab_size_\w+|num_embeddings|num_embeds|codebook_size"),
    ),
    Bound(what="heads", most=4096, names=_named(r"heads?|heads_per_\w+|query_groups|multi_query_group_num|head_kv")),
    Bound(what="experts", most=2**16, names=_named(r"experts|expert_num")),  # 16,384 (Doge); 512 of others
    Bound(  # 53,248 of intermediate_size, 16,384 of hidden_size (Llama 3.1 405B)
        what="columns",
        most=2**20,
        names=_named(
            r"(?:hidden|intermediate|embedding)_(?:size|dim)s?(?:_\w+)?|dims?|d_model|n_embd|n_inner|d_inner|d_ff|"
            r"d_kv|lora_rank|lru_width|state_size|channels"
        ),
    ),
    Bound(  # 10,485,760 (Llama 4 Scout)
        what="positions",
        most=2**27,
        names=_named(r"position_embeddings|n_positions|n_ctx|seq_len|seq_length|max_length|num_positions"),
    ),
    Bound(what="pixels a side", most=2**13, names=_named(r"image_size|img_size|patch_size")),  # 2,048 (glm_image)
)


def refuse_unreal_sizes(source: Source, raw: dict) -> None:
    """Raise InputError (TPP119) for every size of BOUNDS, nested and in lists, that is larger than any model has."""
    found: dict[Keys, tuple[int, Bound]] = {}
    for keys, value in _numbers(raw):
        while isinstance(keys[-1], int):  # a list is told once
            keys = keys[:-1]
        bound = bound_of(str(keys[-1]))
        if bound and value > bound.most:
            found.setdefault(keys, (value, bound))
    if found:
        raise source.refused(
            *(
                Diagnostic(
                    code="TPP119",
                    message=f"{keys[-1]} is {_shown(value)}, must be at most {bound.most}, "
                    "far above that of any known model",
                    where=source.place_of(*keys),
                    evidence=f"{'.'.join(map(str, keys))} = {_shown(value)}; at most {bound.most} {bound.what}",
                    fix=f"correct the value in {source.called}",
                )
                for keys, (value, bound) in found.items()
            )
        )


def bound_of(name: str) -> Bound | None:
    """The bound that holds for a key of a config, or None where its value is no such size."""
    return next((bound for bound in BOUNDS if bound.names.fullmatch(name)), None)


def _numbers(value: Any, path: Keys = ()) -> Iterator[tuple[Keys, int]]:
    """(keys, value) of every whole number in a parsed config; the index of a list is a key."""
    if isinstance(value, dict):
        items: Any = [pair for pair in value.items() if not NAMED_BY_TOKENS.fullmatch(pair[0])]
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        if type(value) is int:
            yield path, value
        return
    for key, item in items:
        yield from _numbers(item, (*path, key))


def _shown(value: int) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else f"a number of {len(text)} digits"

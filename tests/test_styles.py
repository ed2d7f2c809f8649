"""The table of styles against the installed Transformers: it names every style, and says what each really cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.subjects import sharded
from tpplan.model.ranks import fake_rank
from tpplan.model.skeleton import known_styles
from tpplan.planner.strategies import GATHERED, GRADIENTS_SUMMED, GRADIENTS_WHOLE
from tpplan.styles import STYLES, UNTOUCHED, WHOLE_STYLES, Flow, style

TP_SIZE = 4
WIDTHS = (16, 24)  # of the weight: dim 0 and dim 1; each half divides by TP_SIZE, for packed styles
CUTTING = sorted(name for name, entry in STYLES.items() if entry.cut_dim is not None and name in known_styles())
LINEAR = [name for name in CUTTING if not STYLES[name].experts and not name.startswith("embedding")]
EMBEDDING = [name for name in CUTTING if name.startswith("embedding")]
LEAVING_WEIGHTS = sorted(name for name, entry in STYLES.items() if entry.cut_dim is None and name in known_styles())


def test_every_installed_style_is_in_the_table() -> None:
    assert set(known_styles()) <= set(STYLES), "a new style: say in tpplan/styles.py what it does"


def test_a_style_of_another_package_is_taken_to_touch_nothing() -> None:
    assert style("registered_elsewhere") is style(None) is UNTOUCHED


def linear() -> Any:
    import torch

    return torch.nn.Linear(WIDTHS[1], WIDTHS[0], bias=False, device="meta")


def embedding() -> Any:
    import torch

    return torch.nn.Embedding(*WIDTHS, device="meta")


@pytest.mark.parametrize("rank", [0, TP_SIZE - 1])
@pytest.mark.parametrize(
    ("make", "name"), [(linear, name) for name in LINEAR] + [(embedding, name) for name in EMBEDDING]
)
def test_cut_dim_is_the_dim_that_transformers_cuts(make: Callable[[], Any], name: str, rank: int) -> None:
    expected = list(WIDTHS)
    expected[STYLES[name].cut_dim] //= TP_SIZE
    assert local_shape(make(), name, rank) == tuple(expected)


@pytest.mark.parametrize("name", LEAVING_WEIGHTS)
def test_without_a_cut_dim_a_matrix_stays_whole(name: str) -> None:
    if STYLES[name].experts:
        pytest.skip("cuts fused experts, which are no matrices")
    assert local_shape(linear(), name, 0) == WIDTHS


@pytest.mark.parametrize("name", ["colwise", "colwise_gather_output", "rowwise", "rowwise_split_input"])
def test_reads_and_leaves_are_the_widths_that_the_forward_takes_and_gives(name: str) -> None:
    import torch

    with fake_rank(0, TP_SIZE):
        module = torch.nn.Linear(WIDTHS[1], WIDTHS[0], bias=False)
        sharded(module, name, TP_SIZE)
        with torch.no_grad():
            taken = WIDTHS[1] // (TP_SIZE if STYLES[name].reads is Flow.CUT else 1)
            given = module(torch.zeros(1, 1, taken))
    assert given.shape[-1] == WIDTHS[0] // (TP_SIZE if STYLES[name].leaves is Flow.CUT else 1)


def test_the_strategies_use_styles_of_the_table() -> None:
    assert WHOLE_STYLES == {GRADIENTS_SUMMED, GRADIENTS_WHOLE} <= set(STYLES)
    for cut, gathered in GATHERED.items():
        assert STYLES[cut].cut_dim == STYLES[gathered].cut_dim, "the weight stays cut"
        assert STYLES[gathered].reads is STYLES[gathered].leaves is Flow.WHOLE, "the activations are whole"


def local_shape(module: Any, name: str, rank: int) -> tuple[int, ...]:
    with fake_rank(rank, TP_SIZE):
        weight = sharded(module, name, TP_SIZE).weight
        return tuple((weight.to_local() if hasattr(weight, "to_local") else weight).shape)

"""What is rounding and what is a difference: the tolerances with their literal values, and the two comparisons.

An error just beyond a tolerance is found, one just within it is not: neither the constants nor the comparison can move.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tpplan.difference import GRADIENT_FLOOR, TOLERANCES, Tolerance, difference
from tpplan.launch.compare import UnshardedNumbers
from tpplan.launch.records import Gradients

# Powers of two, so that what is added to 1 and taken off again is what was added.
WANT = torch.tensor([[1.0, -2.0], [0.5, 4.0]])
LOGITS = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
GRADIENTS = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 1e-1}


def off(by: float) -> torch.Tensor:
    """WANT, with its second element off by this part of the largest value."""
    return WANT + torch.tensor([[0.0, 4.0 * by], [0.0, 0.0]], dtype=torch.float64)


def test_tolerances() -> None:
    expected = {name: Tolerance(logits=LOGITS[name], gradients=GRADIENTS[name]) for name in LOGITS}
    assert expected == TOLERANCES
    assert GRADIENT_FLOOR == 1e-3


class TestDifference:
    def test_an_error_is_a_part_of_the_largest_absolute_value(self) -> None:
        assert difference(off(0.25), WANT, 1e-4).error == 0.25
        assert difference(-WANT, WANT, 1e-4).error == 2.0
        negative = torch.tensor([-8.0, 1.0])
        assert difference(negative + 2.0, negative, 1e-4).error == 0.25, (
            "the largest absolute value is a negative one's"
        )

    def test_equal_is_no_error(self) -> None:
        assert difference(WANT, WANT.clone(), 0.0).error == 0.0
        assert difference(torch.zeros(3), torch.zeros(3), 0.0).error == 0.0

    def test_an_error_as_large_as_the_tolerance_is_within_it(self) -> None:
        assert difference(off(0.25), WANT, 0.25).first == ""
        assert difference(off(0.25), WANT, 0.2499).first == "at [0, 1] -1, unsharded -2"

    def test_the_first_element_beyond_the_tolerance_is_named(self) -> None:
        two = WANT + torch.tensor([[0.0, 0.0], [1.0, 2.0]])
        assert difference(two, WANT, 0.1).first == "at [1, 0] 1.5, unsharded 0.5"
        assert difference(two, WANT, 0.25).first == "at [1, 1] 6, unsharded 4", "the one at [1, 0] is within"

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_what_is_not_finite_is_an_error_without_end(self, value: float) -> None:
        got = WANT.clone()
        got[1, 1] = value
        found = difference(got, WANT, 1e9)
        assert found.error == math.inf and found.ratio is None
        assert found.first.startswith("at [1, 1] ")

    def test_another_shape_is_an_error_without_end(self) -> None:
        found = difference(WANT[:1], WANT, 1e9)
        assert found.error == math.inf
        assert found.first == "the shape is (1, 2), unsharded (2, 2)"
        assert difference(WANT.reshape(4), WANT, 1e9).error == math.inf, "as many elements are not the same shape"

    def test_what_is_below_the_floor_is_weighed_by_the_floor(self) -> None:
        tiny = WANT * 1e-6
        assert difference(2 * tiny, tiny, 1e-3).error == pytest.approx(1.0)
        assert difference(2 * tiny, tiny, 1e-3, floor=1.0).error == pytest.approx(4e-6)
        assert difference(off(0.25), WANT, 1e-3, floor=1.0).error == 0.25, "a floor below the largest value is none"

    def test_where_nothing_is_expected_an_error_is_absolute(self) -> None:
        assert difference(torch.full((2,), 0.5), torch.zeros(2), 1e-3).error == 0.5

    def test_float32_is_compared_in_more_than_float32(self) -> None:
        """1 + 2e-8 is 1 in float32."""
        got = torch.tensor([1.0 + 2e-8], dtype=torch.float64)
        assert difference(got, torch.ones(1), 1e-9).error == pytest.approx(2e-8, rel=1e-6)


class TestRatio:
    @pytest.mark.parametrize("factor", [4.0, 0.5, -1.0, 0.0])
    def test_one_factor_between_all_elements(self, factor: float) -> None:
        assert difference(WANT * factor, WANT, 1e-4).ratio == pytest.approx(factor)

    def test_no_factor_where_one_element_has_another(self) -> None:
        assert difference(off(0.25) * 2, WANT, 1e-4).ratio is None
        assert difference(WANT + 1.0, WANT, 1e-4).ratio is None

    def test_a_factor_holds_to_the_tolerance_times_itself(self) -> None:
        """Values twice as large round twice as much, half as large no less. Beyond it there is no one factor."""
        want = torch.tensor([4.0, 0.0])
        assert difference(torch.tensor([8.0, 2.0]), want, 0.25).ratio == 2.0, "2 of 2 * 4"
        assert difference(torch.tensor([8.0, 2.0]), want, 0.2499).ratio is None
        assert difference(torch.tensor([2.0, 1.0]), want, 0.25).ratio == 0.5, "1 of 4"
        assert difference(torch.tensor([2.0, 1.0]), want, 0.2499).ratio is None

    def test_no_factor_where_nothing_is_expected(self) -> None:
        assert difference(torch.ones(2), torch.zeros(2), 1e-4).ratio is None


def numbers(tmp_path: Path, dtype: str, **gradients: torch.Tensor) -> UnshardedNumbers:
    made = UnshardedNumbers(tmp_path / "numbers.safetensors", dtype)
    made.save(WANT, {name: gradient.clone() for name, gradient in gradients.items()})
    return made


def parameter(gradient: torch.Tensor | None) -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.zeros(2, 2))
    made.grad = None if gradient is None else gradient.to(torch.float32)
    return made


class Model:
    """What is compared of a model: its parameters by name."""

    def __init__(self, **gradients: torch.Tensor | None) -> None:
        self._parameters = {name: parameter(gradient) for name, gradient in gradients.items()}

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return list(self._parameters.items())


@pytest.mark.parametrize("dtype", LOGITS)
class TestOfALaunch:
    """What a rank writes down of its logits and gradients, each dtype by its own tolerance."""

    def test_logits(self, tmp_path: Path, dtype: str) -> None:
        saved = numbers(tmp_path, dtype)
        assert saved.compare_logits(off(0.9 * LOGITS[dtype])).first == ""
        assert saved.compare_logits(off(1.1 * LOGITS[dtype])).first.startswith("at [0, 1] ")

    def test_gradients(self, tmp_path: Path, dtype: str) -> None:
        saved = numbers(tmp_path, dtype, a=WANT, b=WANT)
        within, beyond = off(0.9 * GRADIENTS[dtype]), off(1.1 * GRADIENTS[dtype])
        found = saved.compare_gradients(Model(a=within, b=within), scale=4.0)
        assert found.wrong == () and found.compared == 2
        assert found.worst == pytest.approx(0.9 * GRADIENTS[dtype], rel=1e-3)
        found = saved.compare_gradients(Model(a=within, b=beyond), scale=4.0)
        assert [wrong.parameter for wrong in found.wrong] == ["b"]
        assert found.worst == pytest.approx(1.1 * GRADIENTS[dtype], rel=1e-3)

    def test_a_thousandth_of_the_largest_gradient_is_rounding(self, tmp_path: Path, dtype: str) -> None:
        """A gradient that is wrong by 8 is too little beside those of which 8 is the tolerance of a thousandth."""
        saved = numbers(tmp_path, dtype, a=WANT)
        scale = 8 / (1e-3 * GRADIENTS[dtype])
        assert saved.compare_gradients(Model(a=-WANT), scale=1.1 * scale).wrong == ()
        assert saved.compare_gradients(Model(a=-WANT), scale=0.9 * scale).wrong != ()


class TestMissingGradients:
    def test_one_that_is_missing_is_wrong(self, tmp_path: Path) -> None:
        found = numbers(tmp_path, "float32", a=WANT, b=WANT).compare_gradients(Model(a=WANT, b=None), scale=4.0)
        (wrong,) = found.wrong
        assert (wrong.parameter, wrong.error, wrong.first) == ("b", math.inf, "missing")
        assert found.worst == math.inf and found.compared == 2

    def test_one_too_many_is_wrong(self, tmp_path: Path) -> None:
        found = numbers(tmp_path, "float32", a=WANT).compare_gradients(Model(a=WANT, b=WANT), scale=4.0)
        (wrong,) = found.wrong
        assert (wrong.parameter, wrong.error) == ("b", math.inf)
        assert wrong.first == "there, unsharded there is none"

    def test_one_that_neither_has_is_not_compared(self, tmp_path: Path) -> None:
        found = numbers(tmp_path, "float32", a=WANT).compare_gradients(Model(a=WANT, b=None), scale=4.0)
        assert found == Gradients(compared=1, worst=0.0)

"""The change point is the drop between two plateaus, and neither a slope, nor noise, nor a spike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lab.observation.change_point import change_point, last_visible

EPOCHS = np.arange(300)


def noise(size: int = 300, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size)


def drop(at: float, over: float = 1.0) -> np.ndarray:
    """Falls from 1 to 0."""
    return 1 / (1 + np.exp((EPOCHS - at) / over))


def test_a_step_is_found_where_it_is() -> None:
    found = change_point(4 + 2.0 * (EPOCHS < 37))
    assert found is not None and (found.index, found.before, found.after, found.strength) == (37, 6, 4, 1)


@pytest.mark.parametrize("rises", [False, True])
@pytest.mark.parametrize(
    ("size", "at"), [(2001, 999), (2500, 1000), (2500, 1001), (3000, 1234), (5000, 2004), (5000, 1007)]
)
def test_a_step_of_a_long_curve_is_found_to_the_value(size: int, at: int, rises: bool) -> None:
    """Though the search sees medians of neighbours alone."""
    curve = (np.arange(size) < at) + 0.1 * noise(size)
    found = change_point(-curve if rises else curve, rises)
    assert found is not None and found.index == at


@pytest.mark.parametrize("spread", [0.05, 0.7])
def test_a_drop_is_found_under_noise(spread: float) -> None:
    found = change_point(4 + 2 * drop(160, over=4) + spread * noise())
    assert found is not None and found.index == pytest.approx(160, abs=8)
    assert (found.before, found.after) == pytest.approx((6, 4), abs=0.25) and 0.85 < found.strength < 1


def test_a_language_model_s_first_epochs_are_no_plateau() -> None:
    loss = 5 + 1.5 * drop(60, over=5) + 3 * np.exp(-EPOCHS / 2) + 0.5 * np.exp(-EPOCHS / 200) + 0.01 * noise()
    found = change_point(loss)
    assert found is not None and found.index == pytest.approx(60, abs=3)
    assert change_point(6 + 3 * np.exp(-EPOCHS / 2) + 0.01 * noise()) is None


@pytest.mark.parametrize(
    "curve",
    [
        np.ones(300),
        np.linspace(9, 2, 300) + 0.05 * noise(),
        3 + 6 * (1 + EPOCHS) ** -0.4 + 0.01 * noise(),
        *(3 + 6 * np.exp(-EPOCHS / scale) + 0.01 * noise() for scale in (5, 30, 300)),
        [6.0] * 5 + [4.0] * 6,
        [],
        [float("nan")] * 50,
    ],
)
def test_without_two_plateaus_there_is_none(curve) -> None:
    assert change_point(curve) is None


def test_noise_alone_has_none() -> None:
    sizes = [12, 20, 50, 100, 300] * 20
    assert [change_point(noise(size, seed)) for seed, size in enumerate(sizes)] == [None] * 100


def test_slingshots_are_no_drops_and_hide_none() -> None:
    loss = 4 + 0.01 * noise()
    for start, end in ((50, 53), (120, 126), (200, 210)):
        loss[start:end] += 5
    assert change_point(loss) is None
    storm = 4 + 4.0 * ((EPOCHS > 100) & (EPOCHS < 180)) + 0.01 * noise()
    assert change_point(storm) is None  # the way back to where it was
    found = change_point(loss + 2 * (EPOCHS < 160))
    assert found is not None and found.index == 160


@pytest.mark.parametrize("values", [None, [[0, 1]] * 6])
def test_what_is_no_curve_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="a curve is a list of one number per validation, got"):
        change_point(values)


def test_what_is_no_number_is_left_out() -> None:
    loss = 4 + 2.0 * (EPOCHS < 150)
    loss[[0, 5, 148, 152, 299]] = [np.nan, np.inf, np.nan, -np.inf, np.nan]
    found = change_point(loss)
    assert found is not None and found.index == 150


def test_an_accuracy_rises() -> None:
    found = change_point(1 - 0.5 * (EPOCHS < 80), rises=True)
    assert found is not None and (found.index, found.before, found.after) == (80, 0.5, 1)
    assert change_point(1 - 0.5 * (EPOCHS < 80)) is None


def test_a_long_curve_is_thinned_not_lost() -> None:
    found = change_point(np.repeat(4 + 2.0 * (EPOCHS < 100), 50))
    assert found is not None and found.index == pytest.approx(5000, abs=15)


@pytest.mark.parametrize(("step", "found"), [(7.2, False), (7.3, True)])
def test_a_step_is_more_than_six_standard_errors_of_the_noise(step: float, found: bool) -> None:
    curve = np.tile([1.0, -1.0], 6) + np.repeat([step, 0.0], 6)
    error = 2 / 0.6745 / 2**0.5 * (2 / 6) ** 0.5  # neighbours differ by 2; plateaus have six values
    assert (change_point(curve) is not None) is found is (step > 6 * error)


@pytest.mark.parametrize("values", [12, 13, 40, 1000, 1001, 2003])
def test_the_last_visible_step_is_the_last_that_is_found(values: int) -> None:
    last = last_visible(values)
    assert last is not None
    at_last = change_point(np.where(np.arange(values) < last, 1.0, 0.0))
    assert at_last is not None and at_last.index == last
    every = -(-values // 1000)  # a longer curve is thinned
    assert change_point(np.where(np.arange(values) < last + every, 1.0, 0.0)) is None


def test_a_curve_of_less_than_two_plateaus_has_no_visible_step() -> None:
    assert last_visible(11) is None and last_visible(12) == 6

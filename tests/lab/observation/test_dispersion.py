"""Entropy, best temperature and slingshots against worked examples and brute force."""

import math

import numpy as np
import pytest
import torch

from lab.attention.rules.adaptive import AdaptiveTemperature
from lab.observation.dispersion import best_inverse_temperature, entropy, fit_beta
from lab.observation.slingshots import slingshots
from lab.report.statistics import eureka_ratio


def test_entropy_of_known_rows() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, math.log(3.0), -1e9, -torch.inf]]).double()
    wanted = torch.tensor([math.log(4), -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))]).double()
    torch.testing.assert_close(entropy(logits), wanted)
    assert (entropy(logits, torch.tensor([2.0, 2.0]).double())[1] < wanted[1]).all()


def test_best_temperature_is_where_a_search_finds_it() -> None:
    torch.manual_seed(0)
    logits = torch.randn(50, 12).double()
    second = logits.argsort(1)[:, -2]
    best = best_inverse_temperature(logits, second)
    grid = torch.linspace(0.01, 20, 4000).double()
    chances = (logits.unsqueeze(1) * grid.view(1, -1, 1)).softmax(-1)
    of_wanted = chances.gather(2, second.view(-1, 1, 1).expand(-1, len(grid), 1)).squeeze(2)
    searched = grid[of_wanted.argmax(1)]
    inside = searched < 19
    assert inside.sum() > 40
    assert (best[inside] - searched[inside]).abs().max() < 0.01


def test_best_temperature_has_its_ends() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    best = best_inverse_temperature(logits, torch.tensor([2, 0]))
    assert best[0] > 9e3, "the largest logit wants the sharpest softmax"
    assert best[1] < 1e-3, "one below the mean wants the flattest"


def test_the_fit_finds_a_polynomial_that_adaptive_temperature_takes() -> None:
    wanted = [-0.037, 0.481, -2.3, 4.917, -1.791]
    entropies = np.linspace(0.6, 5, 200)
    found = fit_beta(entropies, np.polyval(wanted, entropies))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    rule = AdaptiveTemperature(1, 4, coefficients=found)
    value = rule.beta(torch.tensor([2.0]))
    assert value.item() == pytest.approx(np.polyval(wanted, 2.0), rel=1e-5)
    with pytest.raises(ValueError, match="too few"):
        fit_beta(entropies[:5], entropies[:5])


def test_eureka_ratio_has_the_textbook_interval() -> None:
    # Wilson's interval of 3 of 5: Newcombe 1998's formula, worked by hand.
    n, p, z = 5, 0.6, 1.959963985
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    ratio = eureka_ratio(3, 5)
    assert (ratio.low, ratio.high) == pytest.approx((centre - half, centre + half), abs=1e-6)
    assert str(eureka_ratio(10, 10)) == "10/10 (72% to 100%)"
    # Clopper-Pearson of 10 of 10: 0.025^(1/10).
    assert eureka_ratio(10, 10, method="exact").low == pytest.approx(0.025**0.1, abs=1e-9)
    with pytest.raises(ValueError, match="0 of 0"):
        eureka_ratio(0, 0)


def test_slingshots_are_spikes_and_counted_once() -> None:
    falling = [1.0, 0.5, 0.1, 0.05, 0.01]
    assert slingshots(falling) == []
    # Up at 5 and still up at 6; back at 7; up again at 9, from a lower floor.
    assert slingshots([*falling, 0.2, 0.3, 0.02, 0.001, 0.02, 0.002]) == [5, 9]
    assert slingshots([*falling, 0.0, 1e-9, 0.0, 1e-9]) == []  # less than float32 can tell from 0
    assert slingshots([*falling, 0.0, 1e-3]) == [6]
    assert slingshots([1, 0.1, 5, math.nan, 5, 0.1, 5]) == [2, 6]  # a loss that is no number ends no spike
    with pytest.raises(ValueError, match="above 1"):
        slingshots(falling, factor=1)

"""Statistics of attention against their definitions, written out with loops."""

import math
from functools import partial

import pytest
import torch

from lab.attention.functional import attend_explicit
from lab.attention.layers import Attention, CrossAttention, Tap
from lab.attention.normalisers.hard import Hard
from lab.attention.normalisers.linear import Linear
from lab.attention.normalisers.local import Local
from lab.attention.normalisers.plus_one import PlusOne
from lab.attention.normalisers.softmax import Softmax
from lab.attention.rules.adaptive import AdaptiveTemperature
from lab.attention.rules.fixed import Fixed
from lab.attention.rules.learnable import LearnableTemperature
from lab.attention.rules.norm import NormSoftmax
from lab.models.observable import Observable
from lab.observation.attention_statistics import (
    dispersion_bound,
    entropy_slope,
    keys_seen,
    log_critical_items,
    logit_spread,
    lower_dispersion_bound,
    mass_on,
    null_mass,
    output_derivatives,
    received,
    rollout,
    share_of_log,
    shares,
    sink_value_norms,
    smallest_weight,
    spread_bound,
    temperature_of,
    weight_entropy,
)
from lab.observation.recorder import Recorder


@pytest.fixture
def qkv() -> list[torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    return [2 * torch.randn(3, 2, 7, 4, generator=make) for _ in range(3)]


def test_entropy_mass_and_spread_by_hand(qkv) -> None:
    seen = attend_explicit(*qkv, Fixed(2, 4))
    entropy, spread = weight_entropy(seen.weights), logit_spread(seen.logits)
    row = seen.weights[1, 0, 3].tolist()
    assert float(entropy[1, 0, 3]) == pytest.approx(-sum(p * math.log(p) for p in row), rel=1e-5)
    logits = seen.logits[1, 0, 3].tolist()
    assert float(spread[1, 0, 3]) == pytest.approx(max(logits) - min(logits), rel=1e-5)
    got = received(seen.weights)
    assert float(got[2, 1, 5]) == pytest.approx(float(seen.weights[2, 1, :, 5].mean()), rel=1e-5)
    region = torch.zeros(3, 7, dtype=torch.bool)
    region[:, [1, 4]] = True
    assert float(mass_on(got, region)[2, 1]) == pytest.approx(float(got[2, 1, 1] + got[2, 1, 4]), rel=1e-5)
    with pytest.raises(ValueError, match="are on 5 tokens, attention on 7"):
        mass_on(got, region[:, :5])
    uniform = torch.full((1, 1, 1, 8), 1 / 8)
    assert float(share_of_log(weight_entropy(uniform), torch.tensor(8))) == pytest.approx(1.0)
    assert float(share_of_log(torch.tensor(0.0), torch.tensor(1))) == 0.0


def test_temperatures_and_bounds_are_those_within_a_window() -> None:
    """The tap keeps what the rule was given: of a window less than the model allows."""
    torch.manual_seed(0)
    layer = Attention(16, 2, NormSoftmax(2, 8, tau=1.0), Local(2, 8, window=1, first=0))
    layer.tap = Tap(explicit=True)
    layer(torch.randn(2, 12, 16))
    seen = layer.tap
    allowed = layer.normaliser.allowed(None, seen["q"], seen["k"])
    assert torch.equal(seen["mask"], allowed[None, None])
    tau = temperature_of(layer.rule, seen["q"], seen["k"], seen["mask"])
    raw = (seen["q"] @ seen["k"].transpose(-2, -1)) / tau
    torch.testing.assert_close(raw[allowed.expand_as(raw)], seen["logits"][allowed.expand_as(raw)])


def test_the_sink_is_that_of_shares() -> None:
    weights = torch.tensor([[10.0, 0, 0], [0, 0.1, 0], [0, 0.1, 0]])[None, None]
    v = torch.arange(3.0).view(1, 1, 3, 1)
    assert sink_value_norms(shares(weights, "anything"), v)[0].item() == 1


def test_masked_logits_and_hard_weights_give_finite_numbers(qkv) -> None:
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    seen = attend_explicit(*qkv, Fixed(2, 4), mask)
    spread = logit_spread(seen.logits)
    assert float(spread[0, 0, 0]) == 0.0
    assert torch.isfinite(spread).all() and torch.isfinite(weight_entropy(seen.weights)).all()


@pytest.mark.parametrize(
    "rule",
    [
        Fixed(2, 8, 0.3),
        NormSoftmax(2, 8),
        LearnableTemperature(2, 8, granularity="channel"),
        AdaptiveTemperature(2, 8, when="always"),
    ],
    ids=lambda rule: type(rule).__name__,
)
@pytest.mark.parametrize("bias", [False, True])
def test_no_spread_exceeds_its_bound_and_no_weight_the_dispersion_bound(rule, bias) -> None:
    torch.manual_seed(0)
    layer = Attention(16, 2, rule, qkv_bias=bias)
    if bias:
        torch.nn.init.normal_(layer.qkv.bias)
    x = 3 * torch.randn(4, 9, 16)
    check_bounds(layer, x, x, lambda: layer(x))


def test_the_bound_holds_for_cross_attention() -> None:
    torch.manual_seed(0)
    layer = CrossAttention(16, 2, Fixed(2, 8))
    queries, tokens = torch.randn(4, 1, 16), 2 * torch.randn(4, 9, 16)
    check_bounds(layer, queries, tokens, lambda: layer(queries, tokens))


def recorded(layer, run):
    """What the recorder sees of a layer in a pass."""
    model = Observable()
    model.layer = layer
    recorder = Recorder(model)
    with torch.no_grad(), recorder.on():
        run()
    return recorder[0]


def check_bounds(layer, queries, tokens, run) -> None:
    seen = recorded(layer, run)
    assert torch.equal(seen["queries"], queries) and torch.equal(seen["tokens"], tokens)
    spread = logit_spread(seen["logits"])
    beta = layer.rule.inverse_temperature(seen["q"], seen["k"])
    bound = spread_bound(layer, seen["queries"], seen["tokens"], beta).expand_as(spread)
    assert (spread <= bound * (1 + 1e-5)).all()
    # The bound is no empty one: within two orders of magnitude.
    assert (spread.mean() > bound.mean() / 100) or not isinstance(layer.rule, Fixed)
    assert (seen["weights"].amax(-1) <= dispersion_bound(spread, keys_seen(seen["logits"])) * (1 + 1e-5)).all()


@pytest.mark.parametrize("normaliser", [Softmax, partial(Local, window=2)])
def test_smallest_weight_critical_size_and_entropy_slope_by_hand(qkv, normaliser) -> None:
    seen = attend_explicit(*(x.double() for x in qkv), Fixed(2, 4), None, normaliser(2, 4))
    spread, keys = logit_spread(seen.logits), keys_seen(seen.logits)
    smallest, slope = smallest_weight(seen.weights, seen.logits), entropy_slope(seen.weights, seen.logits)
    bound, critical = lower_dispersion_bound(spread, keys), log_critical_items(spread, 0.02)
    assert (smallest >= bound * (1 - 1e-5)).all()
    for place in ((0, 0, 0), (2, 1, 3), (1, 0, 6)):
        logits = seen.logits[place][~seen.logits[place].isneginf()].clone().requires_grad_()
        assert smallest[place].item() == pytest.approx(logits.softmax(-1).min().item(), rel=1e-5)
        assert bound[place].item() == pytest.approx(
            math.exp(-(logits.max() - logits.min()).item()) / len(logits), rel=1e-5
        )
        beta = torch.ones((), dtype=torch.float64, requires_grad=True)
        p = (beta * logits).softmax(-1)
        (wanted,) = torch.autograd.grad(-(p * p.log()).sum(), beta)
        assert slope[place].item() == pytest.approx(wanted.item(), rel=1e-4)
        # The worst case of Lemma 2.1, one logit above the others by the spread: so many keys take it below epsilon.
        n = math.ceil(math.exp(critical[place].item()))
        worst = torch.zeros(n, dtype=torch.float64)
        worst[0] = spread[place]
        assert worst.softmax(-1)[0] < 0.02
    # A single query on one key has nothing to choose.
    assert entropy_slope(torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 1), 7.0)).item() == 0


def test_rollout_is_the_product_of_layers() -> None:
    weights = [torch.randn(2, 3, 5, 5).softmax(-1) for _ in range(3)]
    whole = rollout(weights)
    eye = torch.eye(5)
    expected = eye
    for layer in weights:
        expected = (layer[1].mean(0) / 2 + eye / 2) @ expected
    torch.testing.assert_close(whole[1], expected)
    torch.testing.assert_close(whole.sum(-1), torch.ones(2, 5))


def test_derivatives_of_the_output_by_finite_differences(qkv) -> None:
    rule = NormSoftmax(2, 4)
    found = output_derivatives(rule, *qkv)
    assert [found[name].shape for name in "qkv"] == [(3, 2, 7)] * 3
    qkv = [x.double() for x in qkv]
    for index, name in enumerate("qkv"):
        slopes = []
        for channel in range(4):
            sums = []
            for step in (1e-5, -1e-5):
                moved = [x.clone() for x in qkv]
                moved[index][1, 0, 2, channel] += step
                sums.append(attend_explicit(*moved, rule).z.sum())
            slopes.append(abs(float(sums[0] - sums[1]) / 2e-5))
        assert float(found[name][1, 0, 2]) == pytest.approx(sum(slopes) / 4, rel=1e-2)


def test_temperature_in_use_is_what_divides_the_scores(qkv) -> None:
    q, k, _ = qkv
    assert float(temperature_of(Fixed(2, 4, 0.5), q, k).unique()) == 0.5
    scores = q @ k.mT
    expected = scores.var(-1, correction=0).clamp(max=2.0)
    torch.testing.assert_close(temperature_of(NormSoftmax(2, 4), q, k).squeeze(-1), expected)


def test_weights_that_are_no_shares_are_told_apart_from_nothing() -> None:
    logits = torch.tensor([[[[0.0, 1.0, -2.0, 0.5]]]])
    weights = PlusOne(1, 1, initial=2.0).weights(logits)
    b, left = 2.0, logits.exp().sum().item()
    assert null_mass(weights).item() == pytest.approx(b / (b + left), rel=1e-5)
    row = [*weights.flatten().tolist(), b / (b + left)]
    assert sum(row) == pytest.approx(1)
    assert weight_entropy(weights, "at most one").item() == pytest.approx(-sum(p * math.log(p) for p in row), rel=1e-5)
    torch.testing.assert_close(shares(weights, "at most one"), weights)
    signed = torch.tensor([[[[-3.0, 1.0, 0.0, 4.0], [0.0, 0.0, 0.0, 0.0]]]])
    assert shares(signed, "anything").tolist() == [[[[0.375, 0.125, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0]]]]
    want = -sum(p * math.log(p) for p in (0.375, 0.125, 0.5))
    assert weight_entropy(signed, "anything").flatten().tolist() == pytest.approx([want, 0.0])


@pytest.mark.parametrize("make", [Softmax, PlusOne, partial(Local, window=1), Linear, Hard])
def test_bounds_hold_or_are_not_defined(make) -> None:
    torch.manual_seed(0)
    layer, x = Attention(16, 2, Fixed(2, 8), make(2, 8)), 2 * torch.randn(4, 9, 16)
    seen = recorded(layer, lambda: layer(x))
    spread, largest = logit_spread(seen["logits"]), seen["weights"].amax(-1)
    bound = spread_bound(layer, x, x, layer.rule.inverse_temperature(seen["q"], seen["k"]))
    assert (spread <= bound).all() if make is not Linear else bound.isnan().all()
    if layer.normaliser.exponential:
        # Of the keys in the window: all nine would be a bound that is passed.
        assert (largest <= dispersion_bound(spread, keys_seen(seen["logits"])) * (1 + 1e-5)).all()

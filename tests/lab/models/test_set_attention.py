"""The set model of max retrieval, and cross-attention's short way for a single query."""

from functools import partial

import pytest
import torch

from lab.attention.contract import check_rule
from lab.attention.layers import CrossAttention, Tap
from lab.attention.rules.adaptive import AdaptiveTemperature
from lab.attention.rules.fixed import Fixed
from lab.attention.rules.learnable import LearnableTemperature
from lab.attention.rules.norm import NormSoftmax
from lab.models.set_attention import SetAttention
from lab.observation.recorder import Recorder

RULES = {
    "fixed": Fixed,
    "norm": NormSoftmax,
    "norm_std": partial(NormSoftmax, statistic="std"),
    "adaptive": partial(AdaptiveTemperature, when="always"),
    "channel": partial(LearnableTemperature, granularity="channel", initial=1.3),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("items", [1, 7, 40, 300])
def test_one_query_gives_what_projected_tokens_give(rule: str, items: int) -> None:
    torch.manual_seed(0)
    layer = CrossAttention(32, 2, RULES[rule](heads=2, head_dim=16)).double()
    check_rule(layer.rule)
    assert layer.rule.weighs_channels == (rule == "channel")
    query, tokens = torch.randn(3, 1, 32).double(), 2 * torch.randn(3, items, 32).double()
    parameters = [p for p in layer.parameters() if p is not layer.key.bias]
    short = layer(query, tokens)
    slopes = torch.autograd.grad(short.square().sum(), parameters)
    layer.tap = Tap(explicit=True)
    whole = layer(query, tokens)
    torch.testing.assert_close(short, whole, rtol=0, atol=1e-10)
    for mine, theirs in zip(slopes, torch.autograd.grad(whole.square().sum(), parameters), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)


def test_several_queries_attend_as_well() -> None:
    layer = CrossAttention(8, 2, Fixed(heads=2, head_dim=4))
    assert layer(torch.randn(3, 5, 8), torch.randn(3, 20, 8)).shape == (3, 5, 8)
    with pytest.raises(ValueError, match="3 heads do not divide"):
        CrossAttention(8, 3, Fixed(heads=3, head_dim=2))


def test_the_model_follows_its_equations() -> None:
    torch.manual_seed(0)
    model = SetAttention().double()
    items, query = torch.rand(4, 9, 11).double(), torch.rand(4, 1).double()
    h, q = model.items(items), model.query(query)
    tau = model.attention.rule.tau
    assert float(tau) == pytest.approx(128**0.5, rel=1e-7)  # as float32 has it
    scores = torch.einsum("bd,bnd->bn", model.attention.query(q), model.attention.key(h)) / tau
    z = torch.einsum("bn,bnd->bd", scores.softmax(-1), model.attention.value(h))
    wanted = model.head(model.attention.proj(z))
    torch.testing.assert_close(model((items, query)), wanted, rtol=0, atol=1e-13)
    assert sum(p.numel() for p in model.parameters()) == (11 * 128 + 128) + 8 * (128 * 128 + 128) - (
        128 * 128 + 128
    ) + (128 + 128) + (128 * 10 + 10)


def test_it_starts_as_flax_starts() -> None:
    torch.manual_seed(0)
    model = SetAttention(width=512)
    weight = model.items[2].weight
    assert abs(weight.std().item() * 512**0.5 - 1) < 0.02
    assert weight.abs().max() <= 2 * 512**-0.5 / 0.8796 + 1e-6
    assert not model.items[2].bias.any()


def test_the_recorder_reads_it() -> None:
    model = SetAttention()
    recorder = Recorder(model)
    recorder.run((torch.rand(4, 9, 11), torch.rand(4, 1)))
    assert recorder[0]["weights"].shape == (4, 1, 1, 9)
    assert recorder[0]["k"].shape == (4, 1, 9, 128)


def test_among_processes_every_parameter_has_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or DDP, which waits for all of them, ends at the second step."""
    torch.manual_seed(0)
    layer = CrossAttention(8, 2, Fixed(2, 4))
    query, tokens = torch.randn(3, 1, 8), torch.randn(3, 5, 8)
    alone = layer(query, tokens)
    monkeypatch.setattr("lab.attention.layers._in_processes", lambda: True)
    among = layer(query, tokens)
    among.sum().backward()
    assert torch.equal(alone, among) and all(one.grad is not None for one in layer.parameters())

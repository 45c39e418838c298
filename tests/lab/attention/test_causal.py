"""A causal mask without a tensor gives the numbers of the same mask written out."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.attention.causal_moments import causal_variance
from lab.attention.functional import attend, attend_explicit
from lab.attention.layers import Attention
from lab.attention.masks import Causal, key_counts, mean_key, rows_of, written_out
from lab.attention.normalisers.local import Local
from lab.attention.normalisers.plus_one import PlusOne
from lab.attention.normalisers.scaled import Scaled
from lab.attention.normalisers.sigmoid import Sigmoid
from lab.attention.normalisers.softmax import Softmax
from lab.attention.rule import TemperatureRule
from lab.attention.rules.adaptive import AdaptiveTemperature
from lab.attention.rules.fixed import Fixed
from lab.attention.rules.learnable import LearnableTemperature
from lab.attention.rules.norm import NormSoftmax
from lab.attention.score_variance import score_variance
from lab.models.in_context import InContextTransformer

CPU = torch.device("cpu")


def drawn(queries: int, keys: int, dtype: Any = torch.float64, leading: tuple[int, ...] = (2, 2)) -> list[Tensor]:
    """Queries, keys and values of heads of 8; keys lie off the origin."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(*leading, rows, 8, dtype=torch.float64) for rows in (queries, keys, keys))
    return [x.to(dtype).requires_grad_() for x in (q, k + 2, v)]


@pytest.mark.parametrize("normaliser", [Softmax, PlusOne, Scaled, Sigmoid, Local])
@pytest.mark.parametrize("rule", [Fixed, LearnableTemperature, AdaptiveTemperature, NormSoftmax])
@pytest.mark.parametrize(("queries", "keys"), [(20, 20), (3, 20), (1, 5)])
def test_attention_is_that_under_the_mask_written_out(rule: type, normaliser: type, queries: int, keys: int) -> None:
    q, k, v = drawn(queries, keys)
    causal = Causal(queries, keys, CPU)
    one, weights = rule(2, 8).double(), normaliser(2, 8).double()
    z = attend(q, k, v, one, causal, weights)
    torch.testing.assert_close(z, attend(q, k, v, one, written_out(causal), weights), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(z, attend_explicit(q, k, v, one, causal, weights).z, rtol=1e-10, atol=1e-10)


def test_what_is_asked_of_a_mask_is_the_same() -> None:
    causal = Causal(3, 5, CPU)
    mask: Any = written_out(causal)
    assert mask.tolist() == [[True] * 3 + [False] * 2, [True] * 4 + [False], [True] * 5]
    k = torch.randn(1, 1, 5, 2)
    assert torch.equal(key_counts(causal, k), key_counts(mask, k))
    torch.testing.assert_close(mean_key(k, causal), mean_key(k, mask))
    assert torch.equal(rows_of(causal, 1, 9), mask[1:])


def test_a_layer_s_is_causal_is_its_mask() -> None:
    layer = Attention(16, 2, NormSoftmax(2, 8))
    x = torch.randn(2, 150, 16)
    mask = torch.ones(150, 150, dtype=torch.bool).tril()
    torch.testing.assert_close(layer(x, is_causal=True), layer(x, mask), rtol=1e-4, atol=1e-5)
    both = mask & (torch.arange(150) != 1)
    torch.testing.assert_close(layer(x, both), layer(x, torch.arange(150) != 1, is_causal=True))


def test_what_would_tell_of_later_tokens_is_refused() -> None:
    block, causal = NormSoftmax(2, 8, over="block"), Causal(20, 20, CPU)
    block.couples_queries = True  # as the check of a model finds
    with pytest.raises(ValueError, match="NormSoftmax"):
        Attention(16, 2, block)(torch.zeros(1, 20, 16), torch.ones(20, dtype=torch.bool), is_causal=True)
    for path in (attend, attend_explicit):
        with pytest.raises(ValueError, match="NormSoftmax a query depends on the other queries"):
            path(*drawn(20, 20), block, causal)
    with pytest.raises(ValueError, match="a causal model would see later tokens"):
        InContextTransformer(softmax=partial(NormSoftmax, over="block"), layers=1)
    attend(*drawn(20, 20), block.double(), written_out(causal))


class Own(NormSoftmax):
    """A rule of a user's, derived from one that knows Causal, and written for tensors."""

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Any = None) -> Tensor:
        assert isinstance(mask, Tensor)
        return mask.sum(-1, keepdim=True) / self.tau


class OwnNormaliser(Softmax):
    """A normaliser of a user's, written for tensors."""

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, mask: Any = None) -> Tensor:
        assert isinstance(mask, Tensor)
        return super().attend(q_BHND, k_BHMD, v_BHMD, mask & mask)


def test_what_users_write_is_given_tensors() -> None:
    q, k, v = drawn(20, 20)
    rule: TemperatureRule = Own(2, 8)
    causal = Causal(20, 20, CPU)
    z = attend(q, k, v, rule.double(), causal, OwnNormaliser(2, 8))
    torch.testing.assert_close(z, attend_explicit(q, k, v, rule, causal).z)


@pytest.mark.parametrize(("queries", "keys"), [(300, 300), (5, 5), (129, 129), (40, 200), (200, 457)])
def test_moments_are_those_of_the_scores(queries: int, keys: int) -> None:
    causal = Causal(queries, keys, CPU)
    slopes = []
    for mask in (causal, written_out(causal)):
        q, k, _ = drawn(queries, keys)
        variance, count = score_variance(q, k, mask)
        (variance * torch.linspace(1, 2, queries, dtype=torch.float64).unsqueeze(-1)).sum().backward()
        slopes.append((variance, count.expand_as(variance), q.grad, k.grad))
    for ours, right in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-10, atol=1e-10)
    q, k, _ = drawn(queries, keys, torch.float32)
    torch.testing.assert_close(causal_variance(q, k, causal), slopes[1][0].float(), rtol=1e-5, atol=1e-5)


def test_moments_under_vmap_compiled_and_differentiated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.attention.causal_moments._CHUNK", 3)
    causal = Causal(7, 8, CPU)
    q, k, _ = drawn(7, 8, leading=(2, 1, 1))
    variance = partial(causal_variance, mask=causal)
    right = variance(q, k)
    torch.testing.assert_close(torch.func.vmap(variance)(q, k), right)
    compiled = torch.compile(causal_variance, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(q, k, causal), right)
    assert torch.autograd.gradcheck(variance, (q, k))

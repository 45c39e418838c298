"""NormSoftmax at every size of its scores, and its statistics beside variance and standard deviation."""

import math

import pytest
import torch
from torch import Tensor

from lab.attention import chunks
from lab.attention.norm_weights import norm_weights
from lab.attention.rules.norm import NormSoftmax
from lab.attention.score_variance import RowVariance, rounding_variance

CAUSAL = torch.ones(9, 9, dtype=torch.bool).tril()
STATISTICS = ("var", "std", "range", "mad", "max")
# Sizes of the scores over 20 orders of magnitude.
SIZES = [10.0**power for power in range(-10, 11, 4)]


def qkv(size: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, 1, 2, 9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return tuple(t.to(dtype).requires_grad_() for t in (q * size**0.5, (k + 0.7) * size**0.5, v))


def sigma(scores: Tensor, statistic: str) -> Tensor:
    """The definition, of one row's scores or one block's."""
    match statistic:
        case "var":
            return scores.var(correction=0)
        case "std":
            return scores.std()
        case "range":
            return scores.max() - scores.min()
        case "mad":
            return (scores - scores.mean()).abs().mean()
    return scores.abs().max()


def defined(q: Tensor, k: Tensor, statistic: str, over: str, mask: Tensor | None, tau: float) -> Tensor:
    """1 / min(sigma, tau) row by row or block by block; tau where a row has a single score."""
    scores, seen = q @ k.mT, torch.ones(9, 9, dtype=torch.bool) if mask is None else mask
    beta = torch.full((1, 2, 9, 1), 1 / tau, dtype=q.dtype)
    for b, h, n in torch.cartesian_prod(*map(torch.arange, (1, 2, 9))).tolist():
        of_row = scores[b, h, n][seen[n]] if over == "row" else scores[b, h][seen]
        if len(of_row) > 1 or statistic == "max":
            beta[b, h, n] = 1 / sigma(of_row, statistic).clamp_max(tau)
    return beta


@pytest.mark.parametrize("mask", [None, CAUSAL], ids=["all", "causal"])
@pytest.mark.parametrize("over", ["row", "block"])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_sigma_is_its_definition_at_every_size_of_the_scores(statistic, over, mask) -> None:
    for size in SIZES:
        for tau in (0.5, 1e30):
            q, k, _ = qkv(size)
            beta = NormSoftmax(2, 4, tau, statistic, over).double().inverse_temperature(q, k, mask)
            want = defined(q, k, statistic, over, mask, tau)
            torch.testing.assert_close(beta.expand_as(want), want, rtol=1e-7, atol=0)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            if dtype == torch.float16 and size > 1e8:
                continue  # no queries of float16
            q, k, v = qkv(size, dtype)
            rule = NormSoftmax(2, 4, None, statistic, over)
            scaled = (rule.inverse_temperature(q, k, mask) * q).to(dtype)
            assert scaled.isfinite().all() and (scaled.float() @ k.float().mT).isfinite().all()
            # As a GPU does it: the rule is given 16 bit, and so is the kernel; a CPU would go to float32 before.
            logits = scaled.float() @ k.float().mT
            weights = (logits if mask is None else logits.masked_fill(~mask, -math.inf)).softmax(-1)
            gradients = torch.autograd.grad((weights @ v.float()).square().sum(), (q, k, v))
            assert all(gradient.isfinite().all() for gradient in gradients), (size, dtype)


@pytest.mark.parametrize("over", ["row", "block"])
def test_rescaled_queries_and_logits_stay_within_float16(over) -> None:
    """Keys that are nearly alike: their variance is tiny, its inverse is not, and the queries are not small."""
    q, k, _ = qkv(1.0)
    q, k = (30 * q).half(), (1 + 0.002 * k).half()
    beta = NormSoftmax(2, 4, None, "var", over).inverse_temperature(q, k)
    assert (1 / (q.double() @ k.double().mT).var(-1, correction=0)).max() * q.abs().max() > 1e3
    assert (beta * q).half().isfinite().all() and ((beta * q).half() @ k.mT).isfinite().all()
    tiny = NormSoftmax(2, 4, None, "var", over).inverse_temperature(q * 0.01, k * 0.01)
    assert (tiny * q * 0.01).half().isfinite().all()


@pytest.mark.parametrize("mask", [None, CAUSAL], ids=["all", "causal"])
@pytest.mark.parametrize("statistic", ["var", "std", "range", "mad"])
def test_keys_alike_to_rounding_have_no_spread(statistic, mask) -> None:
    q, k, _ = qkv(1.0, torch.float32)
    alike = k[..., :1, :] * (1 + 1e-7 * torch.randn(k.shape, generator=torch.Generator().manual_seed(1)))
    beta = NormSoftmax(2, 4, 0.25, statistic).inverse_temperature(q, alike, mask)
    assert (beta == 4).all()


@pytest.mark.parametrize("mask", [None, CAUSAL], ids=["all", "causal"])
@pytest.mark.parametrize("over", ["row", "block"])
@pytest.mark.parametrize("statistic", ["range", "mad", "max"])
def test_statistics_of_chunks_and_their_gradients_are_those_of_the_whole(statistic, over, mask, monkeypatch) -> None:
    rule, (q, k, _) = NormSoftmax(2, 4, 1e6, statistic, over).double(), qkv(1.0)
    assert torch.autograd.gradcheck(lambda q, k: rule.inverse_temperature(q, k, mask), (q, k))
    whole = rule.inverse_temperature(q, k, mask)
    slopes = torch.autograd.grad(whole.sum(), (q, k))
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 40)
    parts = rule.inverse_temperature(q, k, mask)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(parts.sum(), (q, k)), slopes, rtol=1e-10, atol=1e-12)
    stacked = torch.func.vmap(lambda q, k: rule.inverse_temperature(q, k, mask))(q.unsqueeze(0), k.unsqueeze(0))
    torch.testing.assert_close(stacked[0], whole, rtol=1e-12, atol=0)


def test_a_small_spread_is_no_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 1, 3, 8, generator=generator), 1 + 1e-4 * torch.randn(1, 1, 20, 8, generator=generator)
    spread = (q.double() @ k.double().mT).var(-1, correction=0, keepdim=True)
    assert (spread > rounding_variance(q, k)).all()


@pytest.mark.parametrize("mask", [None, CAUSAL], ids=["all", "causal"])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_second_derivatives_are_right(statistic, mask) -> None:
    rule, (q, k, _) = NormSoftmax(2, 4, 1e6, statistic).double(), qkv(1.0)
    # One head of two channels is enough: all directions are tried.
    q, k = (x[:, :1, :, :2].detach().requires_grad_() for x in (q, k))
    assert torch.autograd.gradgradcheck(lambda q, k: rule.inverse_temperature(q, k, mask), (q, k))


def test_the_variance_has_its_gradient_in_float32_where_backward_is_called_within_autocast() -> None:
    q, k, _ = (x[:, :, :, :2].detach().requires_grad_() for x in qkv(1.0, torch.float32))
    variance = RowVariance.apply(q, k)[0].sum()
    expected = torch.autograd.grad(variance, (q, k), retain_graph=True)
    with torch.autocast("cpu"):
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(variance, (q, k)), expected, strict=True))


@pytest.mark.parametrize("statistic", ["var", "std"])
def test_second_derivatives_in_bfloat16_are_those_of_the_definition(statistic) -> None:
    found = []
    for dtype in (torch.bfloat16, torch.float64):
        q, k = (x.to(dtype).requires_grad_() for x in torch.randn(2, 1, 2, 40, 8, generator=torch.manual_seed(0)))
        tau = torch.full((1, 1, 1, 1), 0.7)
        if dtype == torch.bfloat16:
            factor, root = (40 / 39, True) if statistic == "std" else (1.0, False)
            weights = norm_weights(q, k, tau, factor, root)
        else:
            beta = NormSoftmax(2, 8, 0.7, statistic).double().inverse_temperature(q, k)
            weights = ((beta * q) @ k.mT).softmax(-1)
        slope = torch.autograd.grad(weights.square().sum(), (q, k), create_graph=True)
        found.append(torch.autograd.grad(sum(x.double().square().sum() for x in slope), (q, k)))
    for mine, want in zip(*found, strict=True):
        assert (mine.double() - want).norm() < 0.05 * want.norm()

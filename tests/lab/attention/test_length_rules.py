"""Rules that count keys, look at a first softmax or normalise queries and keys, against their equations."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.attention import chunks
from lab.attention.contract import check_rule
from lab.attention.functional import attend, attend_explicit
from lab.attention.normaliser import Normaliser
from lab.attention.normaliser_contract import check_together
from lab.attention.normalisers.plus_one import PlusOne
from lab.attention.rules.entropy_matched import EntropyMatched
from lab.attention.rules.entropy_scaled import EntropyScaled
from lab.attention.rules.log_length import LogLength
from lab.attention.rules.query_key_norm import QueryKeyNorm
from lab.config.compose import compose_config
from lab.console import LabError
from lab.models.compact_vit import CompactViT
from lab.models.composed_softmax import softmax_config
from lab.models.reasoner import Reasoner
from lab.models.set_attention import SetAttention

B, H, N, M, D, T = 2, 3, 6, 8, 4, 5
CAUSAL = torch.ones(N, M, dtype=torch.bool).tril(1)
PADDING = torch.ones(B, 1, 1, M, dtype=torch.bool)
PADDING[0, ..., 3:] = False
MASKS = {"all": None, "causal": CAUSAL, "padding": PADDING, "blind": CAUSAL & (torch.arange(N) > 0)[:, None]}

RULES: dict[str, Any] = {
    "log_n": partial(LogLength, form="log_n"),
    **{form: partial(LogLength, form=form, trained_length=T) for form in ("learned", "sqrt_log_ratio")},
    **{anchor: partial(EntropyMatched, anchor=anchor, trained_length=T) for anchor in ("entropy", "share")},
    **{f"{bias} bias": partial(EntropyScaled, bias=bias) for bias in ("constant", "log")},
    "linear bias": partial(EntropyScaled, bias="linear", trained_length=T),
    **{statistic: partial(EntropyScaled, statistic=statistic) for statistic in ("hhi", "variance")},
    "l2": partial(QueryKeyNorm, trained_length=T),
    "layer_norm": partial(QueryKeyNorm, norm="layer_norm"),
}


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, H, rows, D, generator=generator).double().requires_grad_() for rows in (N, M, M))
    return q, k, v


def made(name: str) -> Any:
    """A rule of which every parameter has moved."""
    rule = RULES[name](H, D).double()
    with torch.no_grad():
        for step, parameter in enumerate(rule.parameters(), start=1):
            parameter.add_(0.1 * torch.arange(parameter.numel()).view_as(parameter).sin() + 0.05 * step)
    return rule


def logits_of(name: str, rule: Any, q: Tensor, k: Tensor, head: int) -> Tensor:
    """Logits of one query [D] over the keys [n, D] that it sees, as the equation has them."""
    n, scores = len(k), (k @ q) / math.sqrt(D)
    p = scores.softmax(0)
    match name:
        case "log_n":
            return math.log(n) * scores
        case "learned":
            return (rule.scale[head, 0, 0] * math.log(n) / math.log(T) + rule.bias[head, 0, 0]) * scores
        case "sqrt_log_ratio" | "share":
            return math.sqrt(math.log(n) / math.log(T)) * scores
        case "entropy":
            if n == 1:
                return scores
            # H(n) = log n - f^2 u^2 / 2 is to be H(T) = log T - u^2 / 2.
            squared = 1 + 2 * math.log(n / T) / scores.var(correction=0)
            return squared.clamp_min(1e-4).sqrt() * scores
        case "l2":
            return rule.gain[head, 0, 0] * (k / k.norm(dim=-1, keepdim=True)) @ (q / q.norm())
        case "layer_norm":
            norm = partial(torch.nn.functional.layer_norm, normalized_shape=(D,))
            return (norm(k) * rule.key_gain[head]) @ (norm(q) * rule.query_gain[head, 0]) / math.sqrt(D)
    ramp = {"linear bias": math.log(T) * (n - 1) / (T - 1), "log bias": math.log(n)}.get(name, 0.0)
    statistic = {"hhi": p.square().sum(), "variance": scores.var(correction=0)}.get(name, -(p * p.log()).sum())
    scale1, scale2, offset = (one[head, 0, 0] for one in (rule.scale1, rule.scale2, rule.offset))
    return scale1 * (scale2 * (statistic - offset - ramp)).sigmoid() * scores


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", RULES)
def test_each_rule_is_its_equation_row_by_row(name: str, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (q, k, v), rule, allowed = qkv(), made(name), MASKS[mask]
    seen = torch.ones(B, H, N, M, dtype=torch.bool) if allowed is None else allowed.expand(B, H, N, M)
    want = torch.zeros(B, H, N, D, dtype=torch.float64)
    for b, h, n in torch.cartesian_prod(*map(torch.arange, (B, H, N))).tolist():
        keys = seen[b, h, n]
        if keys.any():
            weights = logits_of(name, rule, q[b, h, n], k[b, h, keys], h).softmax(0)
            want[b, h, n] = weights @ v[b, h, keys]
    z = attend(q, k, v, rule, allowed)
    torch.testing.assert_close(z, want, rtol=1e-6, atol=1e-7)  # tau is kept in float32
    torch.testing.assert_close(attend_explicit(q, k, v, rule, allowed).z, z, rtol=1e-10, atol=1e-10)
    inputs = (q, k, v, *rule.parameters())
    slopes = torch.autograd.grad(z.square().sum(), inputs, allow_unused=True)
    assert all(slope is None or slope.isfinite().all() for slope in slopes)
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 2 * B * H * M)
    parts = attend(q, k, v, rule, allowed)
    torch.testing.assert_close(parts, z, rtol=1e-10, atol=1e-10)
    of_parts = torch.autograd.grad(parts.square().sum(), inputs, allow_unused=True)
    torch.testing.assert_close(of_parts, slopes, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", RULES)
def test_each_rule_keeps_the_contract(name: str) -> None:
    q, k, v = (t[:1, :, :4].detach().requires_grad_() for t in qkv())
    rule, mask = made(name), CAUSAL[:4, :4]
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, rule, mask), (q, k, v))
    check_rule(one := RULES[name](H, D))
    assert (one.couples_queries, one.weighs_channels) == (False, isinstance(rule, QueryKeyNorm))
    check_together(one, PlusOne(H, D))
    stacked = torch.func.vmap(lambda *x: attend(*x, rule, mask))(*(t.unsqueeze(0) for t in (q, k, v)))
    torch.testing.assert_close(stacked[0], attend(q, k, v, rule, mask), rtol=1e-8, atol=1e-10)
    before = attend(q, k, v, rule)
    rule.set_tau(0.1)
    assert not torch.allclose(attend(q, k, v, rule), before)


@pytest.mark.parametrize("size", [1e-8, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("keys", [1, 3, 5, 40])
def test_entropy_matching_is_finite_and_leaves_the_trained_length_alone(size: float, keys: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (size * torch.randn(2, 1, n, 4, generator=generator).requires_grad_() for n in (6, keys))
    q.retain_grad(), k.retain_grad()
    beta = EntropyMatched(1, 4, trained_length=5).inverse_temperature(q, k).expand(2, 1, 6, 1)
    (beta * q).sum().backward()
    assert beta.isfinite().all() and all(t.grad is None or t.grad.isfinite().all() for t in (q, k))
    assert torch.allclose(beta, torch.tensor(0.5)) == (keys in (1, 5)) or size == 1e4


def test_gaussian_logits_come_near_the_entropy_of_the_trained_length() -> None:
    """N(0, 1) logits: 2.78 nats at 25 items, 6.41 at 1,000, where the approximation brings back most of it."""
    x = torch.randn(500, 1, 1000, 1, generator=torch.Generator().manual_seed(0))
    rule = EntropyMatched(1, 1, trained_length=25)
    found = {}
    for n in (25, 1000):
        items = x[..., :n, :]
        weights = attend_explicit(torch.ones(500, 1, 1, 1), items, items, rule).weights
        found[n] = torch.special.entr(weights).sum(-1).mean().item()
    assert found == {25: pytest.approx(2.78, abs=0.03), 1000: pytest.approx(3.5, abs=0.1)}


@pytest.mark.parametrize("rule", [LogLength, partial(EntropyMatched, anchor="share"), EntropyMatched])
def test_a_model_tells_the_length_it_is_made_for_and_the_config_counts_more(rule: Any) -> None:
    models = [Reasoner(softmax=rule), SetAttention(softmax=rule), CompactViT(8, 4, 1, 1, 4, softmax=rule)]
    assert [model.rules()[0].trained_length for model in models] == [5, 16, 5]
    assert Reasoner(softmax=partial(rule, trained_length=9)).rules()[0].trained_length == 9
    with pytest.raises(ValueError, match=r"softmax\.trained_length must be given here: the model does not tell"):
        check_rule(rule(2, 4))


def test_the_gain_of_query_key_norm_starts_by_the_length() -> None:
    def gain(**options: Any) -> float:
        rule: Any = Reasoner(softmax=partial(QueryKeyNorm, **options)).rules()[0]
        return rule.gain[0, 0, 0].item()

    assert gain() == pytest.approx(math.log2(20))
    assert gain(trained_length=16) == pytest.approx(math.log2(240))
    assert gain(initial=3.0) == gain(initial=3.0, trained_length=16) == 3


def test_query_key_norm_asks_for_the_length_that_nobody_has_told() -> None:
    q, k, v = (t.detach() for t in qkv())
    with pytest.raises(ValueError, match=r"softmax\.trained_length must be given here"):
        attend(q, k, v, QueryKeyNorm(H, D).double())
    attend(q, k, v, QueryKeyNorm(H, D, initial=2.0).double())


@pytest.mark.parametrize("rule", [RULES["linear bias"], partial(LogLength, trained_length=T)])
def test_keys_that_nobody_sees_change_nothing(rule: Any) -> None:
    """Padding before the first token, and places of a cache that are empty yet."""
    q, k, v = (t.detach() for t in qkv())
    alone = attend(q, k[..., 1:7, :], v[..., 1:7, :], rule(H, D).double(), torch.ones(N, 6, dtype=torch.bool).tril())
    mask = torch.zeros(N, M, dtype=torch.bool)
    mask[:, 1:7] = torch.ones(N, 6, dtype=torch.bool).tril()
    torch.testing.assert_close(attend(q, k, v, rule(H, D).double(), mask), alone)


@pytest.mark.parametrize("size", [1e-12, 4e-10, 1.7e-9, 3e-8, 1e-5])
def test_the_slope_of_entropy_matching_is_finite_however_small_the_scores(size: float) -> None:
    q, k, v = (torch.randn(1, 1, rows, 16) for rows in (20, 20, 20))
    q = (q * size).requires_grad_()
    attend(q, k, v, EntropyMatched(1, 16, trained_length=4)).sum().backward()
    assert q.grad is not None and q.grad.isfinite().all()


def test_rules_and_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"softmax\.norm=layer_norm has no g"):
        QueryKeyNorm(1, 4, norm="layer_norm", initial=5.0)
    with pytest.raises(ValueError, match=r"softmax\.form=log_n does not use a trained length"):
        LogLength(1, 4, form="log_n", trained_length=7)
    with pytest.raises(ValueError, match=r"softmax\.bias=log is an entropy of n keys"):
        EntropyScaled(1, 4, statistic="hhi", bias="log")
    with pytest.raises(ValueError, match=r"softmax\.bias=log does not use a trained length"):
        EntropyScaled(1, 4, bias="log", trained_length=7)
    for option in ("form=log", "trained_length=1", "trained_length=2.5"):
        with pytest.raises(LabError, match=r"softmax\.\w+=\S+ is wrong: it must"):
            softmax_config("log_length", f"softmax.{option}")

    class Anything(Normaliser):
        def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
            return logits_BHNM.sigmoid()

    with pytest.raises(ValueError, match="EntropyScaled computes its temperature from the weights of a softmax"):
        check_together(EntropyScaled(1, 4), Anything(1, 4))
    check_together(EntropyScaled(1, 4, statistic="variance"), Anything(1, 4))  # of logits, not of weights
    assert compose_config(["softmax=entropy_scaled"]).softmax.scale1 == 0.3

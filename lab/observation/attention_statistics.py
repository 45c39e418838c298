"""Numbers that describe attention: tensors in, tensors out.

Shapes: B scenes, H heads, N queries, M keys, D head dimension, W width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lab.attention.functional import attend_explicit
from lab.attention.layers import Attention, CrossAttention
from lab.attention.normaliser import Normaliser
from lab.attention.rule import TemperatureRule


def weight_entropy(weights_BHNM: Tensor) -> Tensor:
    """Shannon entropy in nats of every row of attention weights, [B, H, N].

    Source: "softmax is not enough", Proposition 3.2.
    """
    return torch.special.entr(weights_BHNM.float()).sum(-1)


def share_of_log(entropy: Tensor, keys: int) -> Tensor:
    """Entropy as a share of log n, that of uniform weights; 0 for a single key, which leaves no choice."""
    return entropy / math.log(keys) if keys > 1 else torch.zeros_like(entropy)


def received(weights_BHNM: Tensor) -> Tensor:
    """Attention that each key gets, as the mean over queries, [B, H, M]; a row sums to 1.

    Source: Eureka-moments in Transformers, Figure 3 ("the average attention of each query").
    """
    return weights_BHNM.float().mean(2)


def mass_on(received_BHM: Tensor, region_BM: Tensor) -> Tensor:
    """Share of attention that the keys of a region get together, [B, H]."""
    return (received_BHM * region_BM.unsqueeze(1)).sum(-1)


def logit_spread(logits_BHNM: Tensor) -> Tensor:
    """delta of every row, the largest logit minus the smallest, [B, H, N]; masked ones (-inf) are left out.

    Source: "softmax is not enough", Proposition 3.1.
    """
    masked = logits_BHNM.isneginf()
    return (logits_BHNM.amax(-1) - logits_BHNM.masked_fill(masked, float("inf")).amin(-1)).float()


def spread_bound(layer: Attention | CrossAttention, queries_BNW: Tensor, tokens_BMW: Tensor, beta: Tensor) -> Tensor:
    """Bound of every row's logit spread, [B, H, N]:

        delta <= 2 beta sigma_max(W_Q) sigma_max(W_K) ||y|| max_i ||x_i||,

    with the singular values of each head's rows of W_Q and W_K. A bias is a further column, met by a further 1 in y
    or x; where beta weighs channels, the largest of them counts.

    Source: "softmax is not enough", Proposition 3.1.
    """
    sigma: dict[str, Tensor] = {}
    norms: dict[str, Tensor] = {}
    biases = layer.projection_biases() or {}
    for name, x in (("q", queries_BNW), ("k", tokens_BMW)):
        weight = layer.projections()[name].detach().float()
        squared = x.float().square().sum(-1)
        if name in biases:
            weight = torch.cat([weight, biases[name].detach().float().unsqueeze(1)], dim=1)
            squared = squared + 1
        sigma[name] = torch.linalg.matrix_norm(weight.unflatten(0, (layer.num_heads, -1)), ord=2)
        norms[name] = squared.sqrt()
    farthest_B11 = norms["k"].amax(1)[:, None, None]
    # A learned factor may be negative.
    largest = beta.float().abs().amax(-1) if beta.dim() else beta.float().abs()
    return 2 * largest * (sigma["q"] * sigma["k"])[:, None] * norms["q"].unsqueeze(1) * farthest_B11


def dispersion_bound(spread_BHN: Tensor, keys: int) -> Tensor:
    """Bound of every weight of a row, [B, H, N]: exp(delta) / n, and 1.

    Source: "softmax is not enough", Lemma 2.1 (equation 2; the logits here have theta in them).
    """
    return (spread_BHN - math.log(keys)).exp().clamp(max=1.0)


def rollout(weights: list[Tensor]) -> Tensor:
    """Attention rollout, the share that tokens of the last layer draw from the first one's, [B, N, N]:

        product over layers of (mean over heads of A + I) / 2.

    Source: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", equation 1.
    """
    whole: Tensor | None = None
    for layer in weights:
        mixed = layer.float().mean(1)
        mixed = (mixed + torch.eye(mixed.shape[-1], device=mixed.device)) / 2
        whole = mixed if whole is None else mixed @ whole
    assert whole is not None
    return whole


def temperature_of(rule: TemperatureRule, q_BHND: Tensor, k_BHMD: Tensor) -> Tensor:
    """The temperature in use, 1 / beta, [B or 1, H or 1, N or 1, D or 1]."""
    tau = 1.0 / rule.inverse_temperature(q_BHND, k_BHMD).detach().float()
    return tau.reshape((1,) * (4 - tau.dim()) + tau.shape)


def output_derivatives(
    rule: TemperatureRule,
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    direction_BHND: Tensor | None = None,
    normaliser: Normaliser | None = None,
) -> dict[str, Tensor]:
    """Mean absolute derivative of the attention output with respect to each token's q, k and v, over channels.

    With Z the output of attention, rule and normaliser included, |d sum(r * Z) / d q| is averaged over D: [B, H, N] for
    "q", [B, H, M] for "k" and "v". The default direction r is 1 everywhere: the derivative of the sum of Z.

    Source: Eureka-moments in Transformers, A.2 (Figures 5, 11, 12, 13).
    """
    with torch.enable_grad():
        leaves = [x.detach().float().requires_grad_() for x in (q_BHND, k_BHMD, v_BHMD)]
        z = attend_explicit(leaves[0], leaves[1], leaves[2], rule, normaliser=normaliser).z
        direction = torch.ones_like(z) if direction_BHND is None else direction_BHND
        gradients = torch.autograd.grad((z * direction).sum(), leaves)
    return {name: gradient.abs().mean(-1) for name, gradient in zip("qkv", gradients, strict=True)}

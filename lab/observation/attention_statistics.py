"""Numbers that describe attention: tensors in, tensors out.

Shapes: B scenes, H heads, N queries, M keys, D head dimension, W width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lab.attention.functional import attend_explicit
from lab.attention.layers import MultiHead
from lab.attention.normaliser import Normaliser, Total
from lab.attention.precision import in_float64
from lab.attention.rule import TemperatureRule


def shares(weights_BHNM: Tensor, total: Total) -> Tensor:
    """Weights as shares of a row, of which entropy and mass are taken, [B, H, N, M] in float32.

    Weights that add up to one, or to at most one, are shares already. For weights that have any sum and may be
    negative, the shares are |w| / sum |w|, and 0 in a row without any weight.
    """
    weights = weights_BHNM.float()
    if total != "anything":
        return weights
    sums = weights.abs().sum(-1, keepdim=True)
    return weights.abs() / torch.where(sums > 0, sums, 1.0)


def null_mass(weights_BHNM: Tensor) -> Tensor:
    """The share of every row that goes to no key, [B, H, N]: 1 - sum w, for weights that add up to at most one.

    Source: "Softmax attention is a fluke", "Achieving Null Attention".
    """
    return (1 - weights_BHNM.float().sum(-1)).clamp(0, 1)


def weight_entropy(weights_BHNM: Tensor, total: Total = "one") -> Tensor:
    """Shannon entropy in nats of every row of attention weights, [B, H, N]: of their :func:`shares`.

    Where weights add up to at most one, the null mass counts as one more item.

    Source: "softmax is not enough", Proposition 3.2.
    """
    entropy = torch.special.entr(shares(weights_BHNM, total)).sum(-1)
    return entropy + torch.special.entr(null_mass(weights_BHNM)) if total == "at most one" else entropy


def query_means(columns_BHN: Sequence[Tensor], logits_BHNM: Tensor) -> list[Tensor]:
    """Means over the queries of each column, [B, H]; NaN is left out, and so is a query that may attend to no key."""
    blind_BHN = logits_BHNM.isneginf().all(-1)
    return [column.masked_fill(blind_BHN, math.nan).nanmean(-1) for column in columns_BHN]


def keys_seen(logits_BHNM: Tensor) -> Tensor:
    """Counts the keys n of every row, those whose logits are not masked, [B, H, N]; 1 where there are none."""
    return (~logits_BHNM.isneginf()).sum(-1).clamp_min(1)


def items_seen(logits_BHNM: Tensor, total: str) -> Tensor:
    """Counts what the weight of every row can go to, [B, H, N]: its keys, and under a sink one item more.

    Args:
        logits_BHNM: of the rows.
        total: what weights add up to, as a normaliser's ``total`` says.
    """
    return keys_seen(logits_BHNM) + (total == "at most one")


def share_of_log(entropy: Tensor, items: Tensor) -> Tensor:
    """Entropy as a share of log n, the entropy of uniform weights; 0 for a single item, which leaves no choice."""
    return torch.where(items > 1, entropy / _log(items.clamp_min(2), entropy), 0.0)


def softmax_jacobian(weights_BHNM: Tensor) -> Tensor:
    """||diag(w) - w w^T||_F of every row w, [B, H, N]: how much gradient the softmax lets through to its logits.

        ||J||_F^2 = sum w^2 - 2 sum w^3 + (sum w^2)^2

    It vanishes where w is uniform over many keys, and where w is one-hot. Valid for softmax and for softmax with a
    sink, whose derivative has the same form.

    Source: Eureka-moments in Transformers, A.11.
    """
    # In float32 the three sums cancel to noise where a row is within 3e-4 of one-hot.
    w = in_float64(weights_BHNM)
    squares = w.square().sum(-1)
    norm_BHN = (squares - 2 * w.pow(3).sum(-1) + squares.square()).clamp_min(0).sqrt()
    return norm_BHN.float().to(weights_BHNM.device)


def sink_value_norms(weights_BHNM: Tensor, v_BHMD: Tensor) -> tuple[Tensor, Tensor]:
    """||v|| of the key that gets most attention, and the mean over the other keys, [B, H] each; weights are shares.

    NaN where there is no other key.

    Source: "Softmax attention is a fluke": the value of a sink is near 0, so that attention to it does nothing.
    """
    norms = torch.linalg.vector_norm(v_BHMD.float(), dim=-1)
    sink = received(weights_BHNM).argmax(-1, keepdim=True)
    others = norms.scatter(-1, sink, 0).sum(-1) / (norms.shape[-1] - 1)  # 0 / 0 where there is no other key
    return norms.gather(-1, sink).squeeze(-1), others


def received(weights_BHNM: Tensor) -> Tensor:
    """Attention that each key gets, as the mean over queries, [B, H, M]; weights are shares.

    Source: Eureka-moments in Transformers, Figure 3 ("the average attention of each query").
    """
    return weights_BHNM.float().mean(2)


def mass_on(received_BHM: Tensor, region_BM: Tensor) -> Tensor:
    """Share of attention that the keys of a region get together, [B, H].

    Raises:
        ValueError: if the region is on another number of tokens.
    """
    if region_BM.shape[-1] != received_BHM.shape[-1]:
        raise ValueError(
            f"the data's regions(batch) are on {region_BM.shape[-1]} tokens, attention on {received_BHM.shape[-1]}: "
            "give bool [B, tokens], or [B, rows, columns] on a grid over the image, which an Observable with "
            "token_grid and num_prefix_tokens maps to its patches"
        )
    return (received_BHM * region_BM.unsqueeze(1)).sum(-1)


def logit_spread(logits_BHNM: Tensor) -> Tensor:
    """delta of every row, the largest logit minus the smallest, [B, H, N]; masked ones (-inf) are left out.

    Source: "softmax is not enough", Proposition 3.1.
    """
    masked = logits_BHNM.isneginf()
    return (logits_BHNM.amax(-1) - logits_BHNM.masked_fill(masked, float("inf")).amin(-1)).float()


def spread_bound(layer: MultiHead, queries_BNW: Tensor, tokens_BMW: Tensor, beta: Tensor) -> Tensor:
    """Upper bound of every row's logit spread, [B, H, N]:

        delta <= 2 beta sigma_max(W_Q) sigma_max(W_K) ||y|| max_i ||x_i||,

    with y the input of the query, x_i those of the keys, and the singular values of each head's rows of W_Q and W_K. A
    bias counts as one more column, for one more entry of 1 in y or x. Where beta has one number per channel, the
    largest is used.

    NaN where logits are not scores of the projected queries and keys: under a normaliser that takes no temperature, or
    a rule that rescales keys.

    Source: "softmax is not enough", Proposition 3.1.
    """
    if not layer.normaliser.takes_temperature or type(layer.rule).keys is not TemperatureRule.keys:
        return torch.full_like(queries_BNW[:, None, :, 0], math.nan, dtype=torch.float32)
    sigma: dict[str, Tensor] = {}
    norms: dict[str, Tensor] = {}
    biases = layer.projection_biases()
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


def dispersion_bound(spread_BHN: Tensor, keys: Tensor) -> Tensor:
    """Upper bound of every weight of a row, [B, H, N]: min(exp(delta) / n, 1); for ``exponential`` normalisers alone.

    Source: "softmax is not enough", Lemma 2.1 (equation 2; the logits here include theta).
    """
    return (spread_BHN - _log(keys, spread_BHN)).exp().clamp(max=1.0)


def lower_dispersion_bound(spread_BHN: Tensor, keys: Tensor) -> Tensor:
    """Lower bound of every weight of a row, [B, H, N]: exp(-delta) / n; for ``exponential`` weights that add up to one.

    Source: "softmax is not enough", Lemma 2.1 (equation 3; the logits here include theta).
    """
    return (-spread_BHN - _log(keys, spread_BHN)).exp()


def smallest_weight(weights_BHNM: Tensor, logits_BHNM: Tensor) -> Tensor:
    """The smallest weight of a row among the keys that it may see, [B, H, N]."""
    return weights_BHNM.float().masked_fill(logits_BHNM.isneginf(), math.inf).amin(-1)


def log_critical_items(spread_BHN: Tensor, epsilon: float) -> Tensor:
    """log n of the number of keys above which no weight can reach epsilon, [B, H, N]: n = exp(delta) / epsilon.

    A logarithm, since n may be too large for a float. There is such an n where added keys leave the spread delta
    bounded (Theorem 2.2): they are among those that the row sees, and do not change its temperature.

    Source: "softmax is not enough", Lemma 2.1 (equation 2) and Theorem 2.2.
    """
    return spread_BHN - math.log(epsilon)


def entropy_slope(weights_BHNM: Tensor, logits_BHNM: Tensor) -> Tensor:
    """dH / d beta of the entropy in nats of softmax(beta l) at beta = 1, [B, H, N]: -Var_p(l), never above 0.

    Source: "softmax is not enough", Proposition 3.2 and Appendix C: dH / d beta = -beta Var_p(e).
    """
    p = weights_BHNM.float()
    logits = logits_BHNM.float().masked_fill(logits_BHNM.isneginf(), 0.0)
    centred = logits - (p * logits).sum(-1, keepdim=True)
    return -(p * centred.square()).sum(-1)


def rollout(layers: list[Tensor]) -> Tensor:
    """Attention rollout, the share that tokens of the last layer draw from those of the first, [B, N, N]:

        product over layers of (mean over heads of A + I) / 2.

    A are the :func:`shares`; a row adds up to less than 1 if some attention went to nothing on the way (null mass).

    Source: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", equation 1.
    """
    whole: Tensor | None = None
    for layer in layers:
        mixed = layer.float().mean(1)
        mixed = (mixed + torch.eye(mixed.shape[-1], device=mixed.device)) / 2
        whole = mixed if whole is None else mixed @ whole
    assert whole is not None
    return whole


def temperature_of(rule: TemperatureRule, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
    """The temperature in use, 1 / beta, [B or 1, H or 1, N or 1, D or 1]."""
    tau = 1.0 / rule.inverse_temperature(q_BHND, k_BHMD, mask).detach().float()
    return tau.reshape((1,) * (4 - tau.dim()) + tau.shape)


def output_derivatives(
    rule: TemperatureRule,
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    direction_BHND: Tensor | None = None,
    normaliser: Normaliser | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
) -> dict[str, Tensor]:
    """Mean absolute derivative of the attention output with respect to each token's q, k and v, over channels.

    With Z the output of attention, rule and normaliser included, |d sum(r * Z) / d q| is averaged over D: [B, H, N] for
    "q", [B, H, M] for "k" and "v". The default direction r is 1 everywhere: the derivative of the sum of Z.

    Source: Eureka-moments in Transformers, A.2 (Figures 5, 11, 12, 13).
    """
    with torch.enable_grad():
        leaves = [x.detach().float().requires_grad_() for x in (q_BHND, k_BHMD, v_BHMD)]
        z = attend_explicit(leaves[0], leaves[1], leaves[2], rule, mask, normaliser, bias=bias).z
        direction = torch.ones_like(z) if direction_BHND is None else direction_BHND
        gradients = torch.autograd.grad((z * direction).sum(), leaves)
    return {name: gradient.abs().mean(-1) for name, gradient in zip("qkv", gradients, strict=True)}


def _log(counts: Tensor, like: Tensor) -> Tensor:
    """Logarithms of whole numbers, computed in float64 and then rounded to the precision of ``like``."""
    return in_float64(counts).log().to(like.dtype).to(like.device)

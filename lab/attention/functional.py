"""Attention under any temperature rule and any normaliser.

A rule gives each query an inverse temperature beta. Attention is then plain attention on rescaled queries: the
normaliser, softmax unless another one is given, turns the logits (beta q) k^T into weights. A model may add a bias of
its own to them, such as that of relative positions.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

from numbers import Real
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.attention import cpu_paths, fused
from lab.attention.masks import Causal, Mask, written_out
from lab.attention.normaliser import Normaliser, check_biased, check_causal, check_masked, masked
from lab.attention.normalisers.softmax import Softmax
from lab.attention.precision import at_least_float32, without_autocast
from lab.attention.rule import TemperatureRule, inverse_temperature

_SOFTMAX = Softmax(heads=1, head_dim=1)  # serves any layer, since it has no state


class Attended(NamedTuple):
    """All that the explicit path computes: z [B, H, N, D], logits and weights [B, H, N, M].

    ``logits`` are the input of the normaliser, temperature and bias included; masked ones are -inf.
    """

    z: Tensor
    logits: Tensor
    weights: Tensor


def attend(
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    rule: TemperatureRule,
    mask: Mask = None,
    normaliser: Normaliser | None = None,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """weights((beta q) k^T) v by a fused kernel where there is one, beta = ``rule.inverse_temperature(q, k, mask)``.

    On a CPU there are quicker paths to the same numbers (:mod:`lab.attention.cpu_paths`).

    Args:
        mask: bool, True where a query may attend to a key, broadcastable to [B, H, N, M], or :class:`Causal`. A query
            that may attend to nothing has a z of 0.
        normaliser: turns logits into weights; None is softmax.
        dropout: share of the weights that are dropped, in training; under a normaliser other than softmax, dropout
            writes out the N x M matrix.
        bias: added to the logits, broadcastable to [B, H, N, M]: no temperature acts on it, and no rule sees it. Under
            a normaliser other than softmax, it has the N x M matrix written out.

    Returns:
        z_BHND, in the dtype of v.

    Raises:
        ValueError: if rule, normaliser, mask or bias is of a wrong type; if rule or normaliser is made for another
            number of heads; if queries, keys and values are not [B, H, tokens, D] or do not fit one another, the mask
            is not bool, mask or bias does not broadcast, or dropout is not in [0, 1); if under a causal mask a query
            would depend on later ones; or if rule or normaliser cannot be used with a bias.
    """
    normaliser = normaliser or _SOFTMAX
    mask, bias = _checked(q_BHND, k_BHMD, v_BHMD, rule, mask, normaliser, dropout, bias)
    if not k_BHMD.shape[-2]:
        return _of_no_keys(q_BHND, k_BHMD, v_BHMD).z
    beyond_scores = bool(dropout) or bias is not None
    if beyond_scores and not normaliser.is_softmax:
        return attend_explicit(q_BHND, k_BHMD, v_BHMD, rule, mask, normaliser, dropout, bias).z
    mask = normaliser.allowed(mask if normaliser.takes_causal else written_out(mask), q_BHND, k_BHMD)
    if q_BHND.device.type == "cpu" and not beyond_scores:
        return cpu_paths.attend(q_BHND, k_BHMD, v_BHMD, rule, mask, normaliser)
    beta = inverse_temperature(rule, q_BHND, k_BHMD, mask)
    with without_autocast(q_BHND):
        q, k = (beta * q_BHND).to(v_BHMD.dtype), rule.keys(k_BHMD)
        if beyond_scores:
            return fused.attend(q, k, v_BHMD, mask, dropout, bias)
        return normaliser.attend(q, k, v_BHMD, mask)


def attend_explicit(
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    rule: TemperatureRule,
    mask: Mask = None,
    normaliser: Normaliser | None = None,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Attended:
    """The same numbers as :func:`attend`, with logits and weights to look at, in float32 or better."""
    normaliser = normaliser or _SOFTMAX
    mask, bias = _checked(q_BHND, k_BHMD, v_BHMD, rule, mask, normaliser, dropout, bias)
    if not k_BHMD.shape[-2]:
        return _of_no_keys(q_BHND, k_BHMD, v_BHMD)
    allowed = normaliser.allowed(written_out(mask), q_BHND, k_BHMD)
    q, k, v = at_least_float32(q_BHND, k_BHMD, v_BHMD)
    beta = rule.inverse_temperature(q, k, allowed)
    with without_autocast(q):
        scores = normaliser.scores((beta * q).to(v.dtype), rule.keys(k))
        logits = masked(scores if bias is None else scores + bias.to(scores.dtype), allowed)
        weights = normaliser.weights(logits, allowed)
        mixed = F.dropout(weights, dropout) if dropout else weights
        return Attended((mixed @ v).to(v_BHMD.dtype), logits, weights)


def _of_no_keys(q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor) -> Attended:
    """Empty logits and weights, and a z of 0: rules and normalisers are of one key at least."""
    q, k, v = at_least_float32(q_BHND, k_BHMD, v_BHMD)
    none = q @ k.mT
    return Attended((none.to(v.dtype) @ v).to(v_BHMD.dtype), none, none)


def _checked(
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    rule: TemperatureRule,
    mask: Mask,
    normaliser: Normaliser,
    dropout: float,
    bias: Tensor | None,
) -> tuple[Mask, Tensor | None]:
    """Mask and bias, of two dimensions at least, after a check of all arguments."""
    if not isinstance(rule, TemperatureRule):
        raise ValueError(f"{rule!r} is not a temperature rule: give one, as in Fixed(heads=4, head_dim=16)")
    if not isinstance(normaliser, Normaliser):
        raise ValueError(f"{normaliser!r} is not a normaliser: give one, as in PlusOne(heads=4, head_dim=16)")
    for name, x in {"queries": q_BHND, "keys": k_BHMD, "values": v_BHMD}.items():
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise ValueError(f"{name} are a tensor of floating-point numbers, got {getattr(x, 'dtype', x)}")
        if x.dim() != 4:
            raise ValueError(f"{name} are [batch, heads, tokens, dimension of a head], got {list(x.shape)}")
    shapes = [list(x.shape) for x in (q_BHND, k_BHMD, v_BHMD)]
    try:
        outer = torch.broadcast_shapes(*(shape[:2] for shape in shapes))
    except RuntimeError as error:
        raise ValueError(f"queries, keys and values differ in batch or heads: {', '.join(map(str, shapes))}") from error
    if k_BHMD.shape[-2] != v_BHMD.shape[-2]:
        raise ValueError(f"each key has a value, but keys are {list(k_BHMD.shape)} and values {list(v_BHMD.shape)}")
    if q_BHND.shape[-1] != k_BHMD.shape[-1]:
        raise ValueError(f"queries {list(q_BHND.shape)} and keys {list(k_BHMD.shape)} differ in their last dimension")
    for part in (rule, normaliser):
        # One made for a single head serves any number.
        if part.heads not in (1, q_BHND.shape[1]):
            raise ValueError(
                f"{type(part).__name__} was made for {part.heads} heads, but queries [batch, heads, tokens, dimension] "
                f"are {list(q_BHND.shape)}"
            )
    if not isinstance(dropout, Real) or not 0 <= dropout < 1:
        raise ValueError(f"dropout is a number from 0 to less than 1, got {dropout!r}")
    whole = (*outer, q_BHND.shape[-2], k_BHMD.shape[-2])
    if bias is not None:
        if not isinstance(bias, Tensor):
            raise ValueError(f"a bias of attention is a tensor; got {type(bias).__name__}")
        check_biased(rule, normaliser)
        bias = _spread("bias", bias, whole)
    if mask is None:
        return None, bias
    if not isinstance(mask, (Tensor, Causal)):
        raise ValueError(f"a mask of attention is a tensor of bool or Causal; got {type(mask).__name__}")
    check_masked(rule)
    if isinstance(mask, Causal):
        if mask.queries > 1:
            check_causal(rule, normaliser)
        return mask, bias
    if mask.dtype != torch.bool:
        raise ValueError(f"a mask of attention is bool, True where a query may attend to a key; got {mask.dtype}")
    return _spread("mask", mask, whole), bias


def _spread(what: str, given: Tensor, whole: tuple[int, ...]) -> Tensor:
    """Mask or bias with two dimensions at least, after a check that it broadcasts to [B, H, N, M]."""
    if given.dim() > 4 or any(a not in (1, b) for a, b in zip(given.shape, whole[4 - given.dim() :], strict=True)):
        raise ValueError(f"a {what} of attention {list(given.shape)} does not broadcast to {list(whole)}")
    return torch.atleast_2d(given)

"""Checks a normaliser before any training: tries all that a model relies on, on a few logits.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

import copy
from itertools import chain, product
from typing import get_args

import torch
from torch import Tensor

from lab.attention.contract import check_names, numbers, same
from lab.attention.functional import Attended, attend, attend_explicit
from lab.attention.normaliser import Normaliser, Total, masked
from lab.attention.rule import OF_A_LAYER, TemperatureRule, not_handed_on
from lab.attention.rules.fixed import Fixed
from lab.console import name_of


def check_normaliser(normaliser: object) -> None:
    """Tries a normaliser on a handful of logits and finds out the properties that its class does not declare.

    Sets ``shift_invariant`` and ``couples_queries`` where they are None, and changes nothing else.

    Raises:
        ValueError: if it is no normaliser; if it fails; if its weights do not have the shape of the logits, are not 0
            where nothing may be attended to, or do not add up to the declared ``total``; if a declared property is not
            true; or if ``weights`` and ``attend`` disagree.
    """
    if not isinstance(normaliser, Normaliser):
        raise ValueError(
            f"{name_of(type(normaliser))} is not a normaliser: derive it from lab.attention.normaliser.Normaliser"
        )
    if not getattr(normaliser, "heads", None):
        raise ValueError(not_handed_on("softmax.normaliser", type(normaliser), OF_A_LAYER))
    check_names(normaliser, Normaliser)
    if normaliser.total not in get_args(Total):
        told = " or ".join(f'"{one}"' for one in get_args(Total))
        raise ValueError(f"{name_of(type(normaliser))}.total={normaliser.total!r} is wrong: it must be {told}")
    if any(tensor.is_meta for tensor in chain(normaliser.parameters(), normaliser.buffers())):
        return
    H, D = normaliser.heads, normaliser.head_dim
    B, N, M = [size for size in (2, 3, 5, 7, 11) if size not in (H, D)][:3]
    with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        tried = copy.deepcopy(normaliser).cpu().double()
        q_BHND, k_BHMD, v_BHMD = (
            numbers(B, H, rows, D, step).double() / D for rows, step in ((N, 1.7), (M, 2.3), (M, 3.1))
        )
        mask = (torch.arange(N)[:, None] * 2 + torch.arange(M)) % 3 > 0
        mask[0] = False  # a query that may attend to nothing
        rule = Fixed(H, D, tau=1.0).double()
        coupled, shifts = [], []
        for training, allowed in product((True, False), (None, mask)):
            tried.train(training)
            seen = _checked(tried, q_BHND, k_BHMD, v_BHMD, rule, allowed)
            for one in (slice(1), slice(-1, None)):
                alone = tried.weights(seen.logits[..., one, :], None if allowed is None else allowed[one])
                coupled.append(not same(seen.weights[..., one, :], alone))
            shifts.append(same(tried.weights(seen.logits + 0.7, allowed), seen.weights))
    if normaliser.couples_queries is None:
        normaliser.couples_queries = any(coupled)
    if normaliser.shift_invariant is None:
        normaliser.shift_invariant = all(shifts)
    where = name_of(type(normaliser))
    if any(coupled) and normaliser.couples_queries is False:
        raise ValueError(
            f"{where}.weights of a query change with other queries, but the class declares couples_queries = False"
        )
    if not all(shifts) and normaliser.shift_invariant is True:
        raise ValueError(
            f"{where}.weights change when a number is added to all logits of a row, but the class declares "
            "shift_invariant = True"
        )


def check_together(rule: TemperatureRule, normaliser: Normaliser) -> None:
    """Checks that a rule and a normaliser go together.

    Raises:
        ValueError: if they do not.
    """
    theirs, its = type(normaliser).__name__, type(rule).__name__
    if not normaliser.takes_temperature and type(rule) is not Fixed:
        raise ValueError(
            f"softmax: {its} does not go with the normaliser {theirs}, whose weights are not computed from scores "
            "q k^T that the rule knows: softmax=linear has the plain rule with a tau of 1"
        )
    if rule.assumes_softmax and normaliser.total == "anything":
        raise ValueError(
            f"softmax: {its} computes its temperature from the weights of a softmax, but those of the normaliser "
            f"{theirs} may add up to anything: take another rule with it"
        )


def _checked(
    normaliser: Normaliser, q: Tensor, k: Tensor, v: Tensor, rule: TemperatureRule, mask: Tensor | None
) -> Attended:
    """Returns the result of the explicit path, after checks that its weights are valid and both paths agree."""
    where = f"{name_of(type(normaliser))}.weights"
    shape = [*q.shape[:-1], k.shape[-2]]
    under = "" if mask is None else " under a mask"
    try:
        # By themselves first: weights of another shape fail in the product with the values, which does not name them.
        allowed = normaliser.allowed(mask, q, k)
        weights: object = normaliser.weights(masked(normaliser.scores(q, k), allowed), allowed)
        fits = isinstance(weights, Tensor) and weights.is_floating_point() and list(weights.shape) == shape
        if fits:
            seen = attend_explicit(q, k, v, rule, mask, normaliser)
            z = attend(q, k, v, rule, mask, normaliser)
    except Exception as error:
        what = f"logits {shape} [batch, heads, queries, keys]{under}"
        raise ValueError(f"{where}(logits, mask) fails on {what}: {type(error).__name__}: {error}") from error
    if not fits:
        got = f"{list(weights.shape)} {weights.dtype}" if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(f"{where} must return real numbers of the shape of its logits {shape}, not {got}")
    weights, mask = seen.weights, allowed
    if not weights.isfinite().all() or (mask is not None and weights.masked_select(~mask).any()):
        raise ValueError(
            f"{where}{under} must be finite, and 0 where mask is False, also in a row that may attend to nothing"
        )
    sums = weights.sum(-1)
    sees = torch.ones_like(sums, dtype=torch.bool) if mask is None else mask.any(-1).expand_as(sums)
    shares = bool((weights >= -1e-9).all())
    if normaliser.total == "one" and not (shares and same(sums[sees], torch.ones_like(sums[sees]))):
        raise ValueError(f'{where}{under} do not add up to one in each row, but the class declares total = "one"')
    if normaliser.total == "at most one" and not (shares and bool((sums <= 1 + 1e-9).all())):
        raise ValueError(
            f'{where}{under} add up to more than one or are negative, but the class declares total = "at most one"'
        )
    if not torch.allclose(z, seen.z, rtol=1e-6, atol=1e-9):
        raise ValueError(f"{name_of(type(normaliser))}.attend{under} must give the same z as its weights do")
    return seen

"""Checks a temperature rule before any training: tries all that a model relies on, on a few queries and keys.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lab.attention.normaliser import Normaliser
from lab.attention.rule import OF_A_LAYER, OF_A_RULE, LengthNotTold, TemperatureRule, not_handed_on
from lab.console import name_of

# Factors on tau and on queries at which dependence is looked for: a rule may show it only below its tau, or only where
# a softmax is spread out.
_OF_TAU = (1.0, 1e-3, 1e3)
_OF_QUERIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)


class _Dependence(NamedTuple):
    """Dependence of beta that a trial has shown; fields as in :class:`TemperatureRule`."""

    couples_queries: bool
    weighs_channels: bool
    reads_masked_keys: bool


def check_constructor(make: Callable[..., object]) -> None:
    """Checks that a class or factory of rules or normalisers takes the heads and head_dim of a layer.

    Raises:
        ValueError: if it does not.
    """
    if not callable(make) or isinstance(make, nn.Module):
        raise ValueError(f"{make!r} is no class of rules or normalisers: give one, such as Fixed or PlusOne")
    made = make.func if isinstance(make, functools.partial) else make
    try:
        parameters = inspect.signature(made).parameters
    except (TypeError, ValueError):
        return  # not written in Python, so without a signature: calling it will show
    if all(name in parameters for name in OF_A_LAYER):
        return
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    if not inspect.isclass(made):
        raise ValueError(
            f"{name_of(made)} is no class of rules or normalisers, and takes no heads and head_dim: derive a class "
            "from lab.attention.rule.TemperatureRule or lab.attention.normaliser.Normaliser"
        )
    normaliser = issubclass(made, Normaliser)
    given = OF_A_LAYER if normaliser else OF_A_RULE
    handed = "the first two" if normaliser else "the first three"
    own = [str(one) for one in parameters.values() if one.name not in given]
    takes = ", ".join(["self", *OF_A_LAYER, *([] if normaliser else ["tau=None"]), *own])
    raise ValueError(
        f"{name_of(made)} cannot make the {'normaliser' if normaliser else 'rule'} of a layer, because it does "
        f"not take heads and head_dim: write def __init__({takes}) and hand {handed} on with "
        f"super().__init__({', '.join(given)})"
    )


def check_names(part: nn.Module, base: type[nn.Module]) -> None:
    """Checks the attributes of a rule or normaliser.

    Raises:
        ValueError: if one hides a method of its base class, or is to be trained and no parameter.
    """
    hidden = [name for name in sorted(vars(part)) if name[0] != "_" and callable(getattr(base, name, None))]
    if hidden:
        raise ValueError(
            f"{name_of(type(part))} stores something of its own as {hidden[0]}, which is a method of every "
            f"{base.__name__}: give it another name"
        )
    for name, value in vars(part).items():
        if isinstance(value, Tensor) and value.requires_grad and not isinstance(value, nn.Parameter):
            raise ValueError(
                f"{name_of(type(part))}.{name} is a tensor with requires_grad, which no optimiser would train and no "
                "checkpoint keep: make it an nn.Parameter"
            )


def check_rule(rule: object) -> None:
    """Tries a rule on a handful of queries and keys and finds out the properties that its class does not declare.

    Sets ``couples_queries``, ``weighs_channels`` and ``reads_masked_keys`` where they are None. Apart from that the
    rule does not change: a copy is tried, and no random number of training is drawn. The betas of a rule that draws
    random numbers itself cannot be compared, so it is taken to depend on all queries and channels.

    Raises:
        ValueError: if it is no temperature rule, if an attribute hides a method or is no parameter and to be trained,
            if it fails, if its beta is not finite or not broadcastable to queries, if it assigns a buffer or changes
            one in evaluation mode, if its temperatures are no dict of tensors, or if it declares to be independent of
            something that beta depends on.
    """
    if not isinstance(rule, TemperatureRule):
        raise ValueError(
            f"{name_of(type(rule))} is not a temperature rule: derive it from lab.attention.rule.TemperatureRule"
        )
    if not isinstance(getattr(rule, "tau", None), Tensor):
        raise ValueError(not_handed_on("softmax", type(rule), OF_A_RULE))
    if type(rule).inverse_temperature is TemperatureRule.inverse_temperature:
        raise ValueError(f"{name_of(type(rule))} does not define inverse_temperature(self, q_BHND, k_BHMD, mask=None)")
    check_names(rule, TemperatureRule)
    told: object = rule.temperatures()
    if not isinstance(told, dict) or not all(isinstance(one, Tensor) for one in told.values()):
        raise ValueError(f"{name_of(type(rule))}.temperatures must return a dict of tensors, and returned {told!r}")
    if any(tensor.is_meta for tensor in chain(rule.parameters(), rule.buffers())):
        return  # meta tensors hold no numbers to try: properties stay None, and no short cut is taken
    if rule.takes_causal and rule.reads_masked_keys is None:
        rule.reads_masked_keys = False  # it knows about masks
    H, D = rule.heads, rule.head_dim
    # Sizes that differ from each other and from H and D, so that a wrong axis cannot fit by chance (H and D may agree).
    B, N, M = [size for size in (2, 3, 5, 7, 11) if size not in (H, D)][:3]
    with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        tried = copy.deepcopy(rule).cpu().float()
        q_BHND, k_BHMD = (numbers(B, H, rows, D, step) for rows, step in ((N, 1.7), (M, 2.3)))
        where = f"{name_of(type(rule))}.inverse_temperature"
        for training in (True, False):
            with _checked_state(tried.train(training), where):
                beta = _beta_of(tried, q_BHND, k_BHMD)
            if not beta.isfinite().all():
                raise ValueError(f"{where} returns NaN or infinity for plain queries and keys")
        _check_declared(rule, _dependence(tried, q_BHND, k_BHMD))
        more_keys = torch.cat([2 * k_BHMD, k_BHMD], dim=2)
        if not rule.reads_keys and not same(beta, _beta_of(tried, q_BHND, more_keys)):
            raise ValueError(
                f"{where} changes with the keys, but the class declares reads_keys = False: leave the declaration out, "
                "because logit_spread would tell a critical number of keys that is none"
            )
        undeclared = [name for name in _Dependence._fields if getattr(rule, name) is None]
        everywhere = list(_everywhere(tried, q_BHND, k_BHMD)) if undeclared else []
    for name in undeclared:
        # Where nothing is known, no short cut is taken; but a rule is refused only for what was seen.
        unknown = name != "reads_masked_keys"
        setattr(rule, name, any(unknown if seen is None else getattr(seen, name) for seen in everywhere))
    if type(rule).keys is not TemperatureRule.keys:
        rule.weighs_channels = True


@contextmanager
def _checked_state(part: nn.Module, where: str) -> Iterator[None]:
    """Checks that a block writes the part's saved buffers in place, and in training alone.

    Raises:
        ValueError: if it does not. A buffer that is not saved may be a cache, which changes no number.
    """
    before = part.state_dict(keep_vars=True)
    held = {name: one.clone() for name, one in before.items() if not isinstance(one, nn.Parameter)}
    yield
    after = part.state_dict(keep_vars=True)
    for name, kept in held.items():
        if after.get(name) is not before[name]:
            raise ValueError(
                f"{where} assigns the buffer {name}, which seeds that train together would lose: write it in place, as "
                f"in self.{name}.copy_(...)"
            )
        if not part.training and not (after[name].isnan() & kept.isnan() | (after[name] == kept)).all():
            raise ValueError(
                f"{where} changes the buffer {name} in evaluation mode, too, so that every validation would change "
                "training: write it only where self.training is true"
            )


def copy_properties(layer: nn.Module, checked: nn.Module) -> None:
    """Copies to a rule or normaliser the properties that were found out for another one of its kind."""
    for name in (*_Dependence._fields, "shift_invariant"):
        if getattr(layer, name, ...) is None:
            setattr(layer, name, getattr(checked, name))


def _check_declared(rule: TemperatureRule, seen: _Dependence | None) -> None:
    where = f"{name_of(type(rule))}.inverse_temperature"
    if seen is None:
        return
    if seen.couples_queries and rule.couples_queries is False:
        raise ValueError(
            f"{where} of a query changes with the other queries, but the class declares couples_queries = False: "
            "leave the declaration out, because a model that works out one query alone would get other numbers"
        )
    if seen.weighs_channels and rule.weighs_channels is False:
        raise ValueError(
            f"{where} is one number per channel, or depends on more than the differences between the scores q k^T "
            "of a query, but the class declares weighs_channels = False: leave the declaration out, because a model "
            "that takes queries in another basis would get other numbers"
        )


def _everywhere(rule: TemperatureRule, q_BHND: Tensor, k_BHMD: Tensor) -> Iterator[_Dependence | None]:
    """Dependence in both modes, at several temperatures and sizes of queries, with initial and with moved parameters.

    A dependence that shows only later, through training or a schedule, must not be missed: a gate may start at 0.
    """
    tau, parameters = float(rule.tau), list(rule.parameters())
    q_BHND = torch.cat([factor * q_BHND for factor in _OF_QUERIES])
    k_BHMD = k_BHMD.repeat(len(_OF_QUERIES), 1, 1, 1)
    for moved, training, factor in product((False, True) if parameters else (False,), (True, False), _OF_TAU):
        try:
            if moved:
                for parameter in parameters:
                    # Each number by another amount: those of different places may have been equal.
                    amounts = 0.1 + 0.1 * (0.618 * torch.arange(parameter.numel()) % 1)
                    parameter.add_(amounts.view_as(parameter))
            rule.train(training).set_tau(factor * tau)
            yield _dependence(rule, q_BHND, k_BHMD)
        except ValueError:
            yield None  # the rule fails at these settings: nothing is known


def _dependence(rule: TemperatureRule, q_BHND: Tensor, k_BHMD: Tensor) -> _Dependence | None:
    """Dependence of beta, as far as these numbers show it; None if beta is random, another one at each call."""
    beta = _beta_of(rule, q_BHND, k_BHMD)
    if not same(beta, _beta_of(rule, q_BHND, k_BHMD)):
        return None
    first, last = q_BHND[:, :, :1], q_BHND[:, :, -1:]
    alone, rows = _beta_of(rule, last, k_BHMD), beta.expand_as(q_BHND)
    couples = not (same(rows[:, :, -1:], alone) and same(rows[:, :, :1], _beta_of(rule, first, k_BHMD)))
    reads_masked = rule.reads_masked_keys is None and _reads_masked_keys(rule, q_BHND, k_BHMD)
    if beta.dim() and beta.shape[-1] > 1:
        return _Dependence(couples, True, reads_masked)
    # Another basis: the scores stay the same, except that one number is added to all scores of a query.
    stretch = torch.linspace(0.5, 2, q_BHND.shape[-1])
    q = torch.cat([last * stretch, last], -1)
    k = torch.cat([(k_BHMD + 0.3) / stretch, torch.zeros_like(k_BHMD)], -1)
    try:
        return _Dependence(couples, not same(alone, _beta_of(rule, q, k)), reads_masked)
    except ValueError:
        return _Dependence(couples, True, reads_masked)  # the rule fails on queries of another dimension


def _reads_masked_keys(rule: TemperatureRule, q_BHND: Tensor, k_BHMD: Tensor) -> bool:
    """Tells if beta changes with a key that the mask hides; False for a rule that fails under a mask."""
    mask = torch.ones(q_BHND.shape[-2], k_BHMD.shape[-2], dtype=torch.bool)
    mask[:, -1] = False
    other = k_BHMD.clone()
    other[:, :, -1] *= -3
    try:
        return not same(*(_beta_of(rule, q_BHND, one, mask) for one in (k_BHMD, other)))
    except ValueError:
        return False  # its first use under a mask tells why


def same(one: Tensor, other: Tensor) -> bool:
    """Tells if two tensors hold the same numbers, up to rounding."""
    one, other = torch.broadcast_tensors(one, other)
    return torch.allclose(one, other, rtol=1e-4, atol=0.0, equal_nan=True)


def numbers(B: int, H: int, rows: int, D: int, step: float) -> Tensor:
    """Numbers [B, H, rows, D] that are not random; row i is scaled by i, so that rows differ in size."""
    return torch.arange(B * H * rows * D).mul(step).sin().view(B, H, rows, D) * torch.arange(1, rows + 1).view(-1, 1)


def _beta_of(rule: TemperatureRule, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns beta of the rule, after checks that it is a real tensor and broadcastable to the queries."""
    where = f"{name_of(type(rule))}.inverse_temperature"
    shapes = f"queries {list(q_BHND.shape)} and keys {list(k_BHMD.shape)} [batch, heads, tokens, head_dim]"
    before = q_BHND.clone(), k_BHMD.clone()
    try:
        beta: object = rule.inverse_temperature(q_BHND, k_BHMD, mask)
    except LengthNotTold:
        raise
    except Exception as error:
        raise ValueError(f"{where}(q, k, mask) fails on {shapes}: {type(error).__name__}: {error}") from error
    if not (torch.equal(before[0], q_BHND) and torch.equal(before[1], k_BHMD)):
        raise ValueError(
            f"{where} changes the queries or keys that it is given: work on a copy, without in-place calls"
        )
    if not isinstance(beta, Tensor) or not beta.is_floating_point():
        what = f"a tensor of {beta.dtype}" if isinstance(beta, Tensor) else f"{type(beta).__name__}"
        raise ValueError(f"{where} must return a tensor of real numbers, not {what}")
    try:
        fits = torch.broadcast_shapes(beta.shape, q_BHND.shape) == q_BHND.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{where} returns {list(beta.shape)} for {shapes}: it must be broadcastable to the queries, as is "
            f"{[*q_BHND.shape[:-1], 1]}, one number per query"
        )
    if beta.dim() == 1 and len(beta) > 1 and rule.heads == rule.head_dim:
        raise ValueError(
            f"{where} returns {list(beta.shape)}, and there are as many heads as channels: return "
            f"[{rule.heads}, 1, 1], one number per head, or [1, 1, {rule.head_dim}], one per channel"
        )
    return beta

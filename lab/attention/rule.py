"""What every temperature rule is.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

import copy
import inspect
import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

# What every constructor takes: the model makes one rule a layer with them.
_OF_A_LAYER = ("heads", "head_dim")


class TemperatureRule(nn.Module):
    """Maps queries and keys to an inverse temperature beta; attention is softmax((beta q) k^T) v.

    Since beta belongs to a query (or is coarser), attention under any rule is plain attention on rescaled
    queries and runs on any fused kernel.

    Args:
        heads: number of heads H of the layer.
        head_dim: dimension D of a head.
        tau: temperature; None is the default sqrt(D).

    Raises:
        ValueError: if tau is not positive and finite.
    """

    tau: Tensor

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own: Any = cls.__dict__.get("__init__")
        if own is not None and not _takes(own, _OF_A_LAYER):
            # Said where a rule is made: by then the config is checked, and what was typed is told in one sentence.
            cls.__init__ = _refusal(cls, own)  # type: ignore[method-assign]

    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim
        self.default_tau = math.sqrt(head_dim) if tau is None else float(tau)
        # A buffer, not a number: a schedule moves it without torch.compile compiling anew.
        self.register_buffer("tau", torch.tensor(_valid(self.default_tau)))

    def set_tau(self, value: float) -> None:
        """Sets the temperature, in place."""
        self.tau.fill_(_valid(value))

    @property
    def couples_queries(self) -> bool:
        """Whether the temperature of one query depends on the others."""
        return False

    @property
    def weighs_channels(self) -> bool:
        """Whether q and k may not be taken in another basis: beta differs between the channels of a query, or depends
        on more than the differences between the scores q k^T of each query."""
        return False

    @abstractmethod
    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        """beta, broadcastable to q_BHND: [B, H, N, 1], [H, 1, 1] or a single number; [..., D] if ``weighs_channels``.

        Called with all three in place, under autocast in 16 bit on a GPU, and for seeds trained together under vmap,
        where no branch may depend on what a tensor holds. There may be more keys than queries or fewer. A single query
        of cross-attention comes in another basis, of another D, unless ``weighs_channels``.

        Args:
            mask: bool, True where a query may attend to a key, broadcastable to [B, H, N, M].
        """

    def share(self, first: TemperatureRule) -> None:
        """Called on the rules of all later layers with the first layer's; ties what layers share."""

    def temperatures(self) -> dict[str, Tensor]:
        """Detached values worth logging, by name."""
        return {"tau": self.tau.detach().clone()}


def _valid(tau: float) -> float:
    if not (tau > 0 and math.isfinite(tau)):
        raise ValueError(f"softmax.tau must be positive and finite, got {tau}")
    return tau


def _takes(constructor: Any, names: tuple[str, ...]) -> bool:
    parameters = inspect.signature(constructor).parameters
    return all(name in parameters for name in names) or any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()
    )


def _refusal(cls: type, constructor: Any) -> Any:
    """A constructor in place of one that cannot make the rule of a layer: it says so, whatever it is given."""
    own = [str(one) for one in inspect.signature(constructor).parameters.values() if one.name not in ("self", "tau")]
    takes = ", ".join(["self", "heads", "head_dim", "tau=None", *(one for one in own if one not in _OF_A_LAYER)])

    def refuse(self: Any, heads: Any = None, head_dim: Any = None, tau: Any = None, **options: Any) -> None:
        raise ValueError(
            f"{_name(cls)} cannot make the rule of a layer, whose heads and head_dim it does not take: write "
            f"def __init__({takes}) and hand the first three on, super().__init__(heads, head_dim, tau)"
        )

    return refuse


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def check_rule(rule: Any, any_basis: bool = False) -> None:
    """Tries a rule once on a handful of queries and keys, before any training.

    The rule is left as it is: a copy is tried, and no random number of training is drawn.

    Args:
        rule: of any layer.
        any_basis: the layer gives it a query and keys in another basis where ``weighs_channels`` allows that.

    Raises:
        ValueError: if it is no temperature rule, if it fails, if its beta does not fit queries, or if beta differs
            between channels, depends on other queries or on the basis where the rule denies that.
    """
    if not isinstance(rule, TemperatureRule):
        raise ValueError(
            f"{_name(type(rule))} is no temperature rule: derive it from lab.attention.rule.TemperatureRule"
        )
    H, D = rule.heads, rule.head_dim
    # Sizes that are unlike each other and the rule's own: what is put in a wrong place does not fit by chance.
    B, N, M = [size for size in (2, 3, 5, 7, 11) if size not in (H, D)][:3]
    q_BHND, k_BHMD = (_numbers(B, H, rows, D, step) for rows, step in ((N, 1.7), (M, 2.3)))
    tried = copy.deepcopy(rule).cpu().float()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for training in (True, False):
            beta = _beta_of(tried.train(training), q_BHND, k_BHMD)
        if not _same(beta, _beta_of(tried, q_BHND, k_BHMD)):
            return  # it draws random numbers: nothing can be compared
        last = q_BHND[:, :, -1:]
        alone = _beta_of(tried, last, k_BHMD)
        if any_basis and not tried.weighs_channels:
            # Its scores are the same, but for one number that all of them are raised by.
            stretch = torch.linspace(0.5, 2, D)
            q = torch.cat([last * stretch, torch.ones_like(last)], -1)
            k = torch.cat([(k_BHMD + 0.3) / stretch, torch.zeros_like(k_BHMD)], -1)
            elsewhere = _beta_of(tried, q, k)
    where = f"{_name(type(rule))}.inverse_temperature"
    if not tried.couples_queries and not _same(beta.expand_as(q_BHND)[:, :, -1:], alone):
        raise ValueError(
            f"{where} of a query changes with the other queries: let the property couples_queries return True, or a "
            "model that works out one query alone would get other numbers"
        )
    if any_basis and not tried.weighs_channels and not _same(alone, elsewhere):
        raise ValueError(
            f"{where} depends on more than the differences between the scores q k^T of a query: let the property "
            "weighs_channels return True, or this model's queries would come in another basis, and get other numbers"
        )


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two betas are one, but for rounding."""
    one, other = torch.broadcast_tensors(one, other)
    return torch.allclose(one, other, rtol=1e-3, equal_nan=True)


def _numbers(B: int, H: int, rows: int, D: int, step: float) -> Tensor:
    """[B, H, rows, D] without a random number, each row larger than the one before it."""
    return torch.arange(B * H * rows * D).mul(step).sin().view(B, H, rows, D) * torch.arange(1, rows + 1).view(-1, 1)


def _beta_of(rule: TemperatureRule, q_BHND: Tensor, k_BHMD: Tensor) -> Tensor:
    """The rule's beta, if it is one."""
    where = f"{_name(type(rule))}.inverse_temperature"
    shapes = f"queries {list(q_BHND.shape)} and keys {list(k_BHMD.shape)} [batch, heads, tokens, head_dim]"
    try:
        beta: Any = rule.inverse_temperature(q_BHND, k_BHMD, None)
    except Exception as error:
        raise ValueError(f"{where}(q, k, mask) fails on {shapes}: {type(error).__name__}: {error}") from error
    if not isinstance(beta, Tensor) or not beta.is_floating_point():
        what = f"a tensor of {beta.dtype}" if isinstance(beta, Tensor) else f"{type(beta).__name__}"
        raise ValueError(f"{where} must return a tensor of real numbers, not {what}")
    try:
        fits = torch.broadcast_shapes(beta.shape, q_BHND.shape) == q_BHND.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{where} returns {list(beta.shape)} of {shapes}: it must be broadcastable to the queries, as is "
            f"{[*q_BHND.shape[:-1], 1]}, a number a query"
        )
    if beta.dim() and beta.shape[-1] > 1 and not rule.weighs_channels:
        raise ValueError(
            f"{where} returns {list(beta.shape)}, a number a channel: let the property weighs_channels return True, or "
            f"return a number a query, {[*q_BHND.shape[:-1], 1]}"
        )
    return beta


def scores_of(q_BHND: Tensor, k_BHMD: Tensor) -> Tensor:
    """Raw scores q k^T, [B, H, N, M].

    A single query of a narrow head multiplies and adds number by number: for the reasoning task (5 keys, heads of
    4) a matrix product of each sample costs more in calls than in arithmetic.
    """
    if is_narrow(q_BHND):
        q_H1DB, k_HMDB = samples_last(q_BHND), samples_last(k_BHMD)
        return samples_first((q_H1DB * k_HMDB).sum(-2).unsqueeze(1))
    return q_BHND @ k_BHMD.transpose(-2, -1)


def samples_last(x: Tensor) -> Tensor:
    """[B, H, N, M] -> [H, N, M, B], a view: arithmetic along samples is vectorised however small the rest is."""
    return x.permute(1, 2, 3, 0)


def samples_first(x: Tensor) -> Tensor:
    """[H, N, M, B] -> [B, H, N, M], a view."""
    return x.permute(3, 0, 1, 2)


def is_narrow(q_BHND: Tensor) -> bool:
    """Whether queries are so few and narrow that elementwise arithmetic is quicker than matrix products."""
    return q_BHND.device.type == "cpu" and q_BHND.shape[-2] == 1 and q_BHND.shape[-1] <= 8


def at_least_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, half precision raised to float32: statistics of 16-bit numbers are too coarse."""
    return tuple(t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors)

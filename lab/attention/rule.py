"""Base class of all temperature rules.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from lab.attention.masks import Mask, forget_causal, written_out
from lab.attention.precision import but_not_to_16_bit
from lab.console import name_of

# Type of a temperature, with the bounds that the check of a config enforces.
Tau = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Type of a number of keys: at least 2, since rules divide by its logarithm.
Length = Annotated[int, Field(ge=2)]


# Arguments that every constructor takes: the model makes one rule and one normaliser for each layer with them.
OF_A_LAYER = ("heads", "head_dim")
OF_A_RULE = (*OF_A_LAYER, "tau")


class TemperatureRule(nn.Module):
    """Maps queries and keys to an inverse temperature beta; attention is softmax((beta q) k^T) v.

    Since beta is a factor on queries (one for each, or one for many), attention under any rule is plain attention
    on rescaled queries and runs on any fused kernel.

    Args:
        heads: number of heads H of the layer.
        head_dim: dimension D of a head.
        tau: temperature; None is the default sqrt(D).

    Raises:
        ValueError: if a subclass does not hand heads and head_dim on, or tau is not positive and finite.

    Attributes:
        trained_length: number of keys that the model is trained on, as the model or the config states it; None where
            neither does.
        couples_queries: True where the temperature of one query depends on other queries, or on its place among them.
        weighs_channels: True where beta differs between the channels of a query, or depends on more than the
            differences between the scores q k^T of each query, or where keys are rescaled. Then q and k may not be
            moved to another basis (:func:`lab.attention.single_query.one_query` does so).
        reads_masked_keys: True where beta changes with keys that the mask hides: a causal model would see later tokens.
        reads_keys: False where the temperature of a query is the same whatever keys there are, and however many: then a
            sharp row stays no sharper when keys are added. A subclass that overrides ``inverse_temperature`` or
            ``keys`` has to declare it again.
        assumes_softmax: True where beta is computed from the weights that softmax would give; such a rule can be used
            only with normalisers whose weights are shares.
        takes_causal: True where ``inverse_temperature`` of this class accepts :class:`lab.attention.masks.Causal`, or
            needs no mask. A subclass that overrides it has to declare it again.

    A class may declare ``couples_queries``, ``weighs_channels`` and ``reads_masked_keys``; where it leaves them at
    None, they are found out when a model is built (:mod:`lab.attention.contract`). While the first two are None or
    True, a layer takes no short cut.
    """

    tau: Tensor
    trained_length: int | None = None
    couples_queries: bool | None = None
    weighs_channels: bool | None = None
    reads_masked_keys: bool | None = None
    reads_keys: ClassVar[bool] = True
    assumes_softmax: bool = False
    takes_causal: ClassVar[bool] = False

    def __init__(self, heads: int = 0, head_dim: int = 0, tau: Tau | None = None) -> None:
        super().__init__()
        if not (heads and head_dim):
            raise ValueError(not_handed_on("softmax", type(self), OF_A_RULE))
        self.heads = heads
        self.head_dim = head_dim
        self.default_tau = math.sqrt(head_dim) if tau is None else float(tau)
        # A buffer, not a Python number: a schedule can change it without torch.compile compiling again.
        self.register_buffer("tau", torch.empty(()))
        self.set_tau(self.default_tau)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TemperatureRule:
        # Moved with its model, but never to 16 bit, in which temperatures are too coarse (trainer.precision=bf16-true).
        return super()._apply(but_not_to_16_bit(fn), recurse)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        forget_causal(cls, "inverse_temperature")
        own_beta = bool({"inverse_temperature", "keys"} & vars(cls).keys())
        if own_beta and "reads_keys" not in vars(cls):
            cls.reads_keys = True
        # The quicker path of a base class computes its own beta, so a subclass with another beta must not use it.
        if own_beta and "weights_in_bfloat16" not in vars(cls):
            cls.weights_in_bfloat16 = TemperatureRule.weights_in_bfloat16  # type: ignore[method-assign]

    def set_tau(self, value: float) -> None:
        """Sets the temperature, in place."""
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"softmax.tau must be positive and finite, got {value}")
        self.tau.fill_(value)

    def set_trained_length(self, keys: int) -> None:
        """Called by a model, with the number of keys that it is made for; a value from the config takes precedence."""
        if self.trained_length is None:
            self.trained_length = max(keys, 2)

    def length(self) -> int:
        """The trained length.

        Raises:
            LengthNotTold: if neither the model nor the config states it.
        """
        if self.trained_length is None:
            raise LengthNotTold(
                "softmax.trained_length must be given here: the model does not tell how many keys it is trained on (in "
                "Python: trained_length=197, say)"
            )
        return self.trained_length

    @abstractmethod
    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        """beta, broadcastable to q_BHND: [B, H, N, 1], [H, 1, 1], a single number, or [..., D], one per channel.

        Called with three positional arguments; under autocast in 16 bit on a GPU; and under vmap for seeds trained
        together, where no branch may depend on the values of a tensor. There may be more keys than queries, or fewer.

        Args:
            mask: bool, True where a query may attend to a key, broadcastable to [B, H, N, M].
        """

    def weights_in_bfloat16(self, q_BHND: Tensor, k_BHMD: Tensor) -> Tensor | None:
        """Weights of softmax under this rule without a mask, in bfloat16 like queries and keys; None for most rules.

        Exists for speed alone: the weights are those of softmax(beta q k^T).
        """
        return None

    def keys(self, k_BHMD: Tensor) -> Tensor:
        """Keys as attention uses them: unchanged, except under a rule that rescales keys too."""
        return k_BHMD

    def extra_repr(self) -> str:
        return options_in_use(self)

    def share(self, first: TemperatureRule) -> None:
        """Ties the parameters that layers share; called on the rule of each later layer, with that of the first."""

    def temperatures(self) -> dict[str, Tensor]:
        """Detached values worth logging, by name."""
        return {"tau": self.tau.detach().clone()}


class LengthNotTold(ValueError):
    """Error of a rule that needs the trained length, where neither the model nor the config states it."""


def inverse_temperature(rule: TemperatureRule, q_BHND: Tensor, k_BHMD: Tensor, mask: Mask) -> Tensor:
    """beta of a rule under any mask: a causal mask is written out for a rule that does not accept :class:`Causal`."""
    known: Any = mask if rule.takes_causal else written_out(mask)
    return rule.inverse_temperature(q_BHND, k_BHMD, known)


def options_in_use(part: nn.Module) -> str:
    """Options of a rule or a normaliser as ``print(model)`` shows them: those that it keeps under their names.

    A parameter is not among them, as what it started at is not kept; of a tensor of several numbers the shape is shown.
    """
    if torch.compiler.is_compiling():  # torch.vmap takes the repr as a function's name; it cannot be traced
        return ""
    made_by = [vars(kind)["__init__"] for kind in reversed(type(part).__mro__) if "__init__" in vars(kind)]
    names = dict.fromkeys(name for one in made_by for name in inspect.signature(one).parameters)
    # What the instance keeps: a method of that name is none of its options, and a property may fail.
    kept = vars(part) | dict(part.named_buffers(recurse=False))
    shown = [name for name in names if name not in OF_A_LAYER and kept.get(name) is not None]
    return ", ".join(f"{name}={_shown(kept[name])}" for name in shown)


def _shown(value: object) -> object:
    return list(value.shape) if isinstance(value, Tensor) and value.numel() > 1 else value


def not_handed_on(option: str, part: type, arguments: Sequence[str]) -> str:
    """Error message for a constructor that does not pass on what its base class needs."""
    return (
        f"{option}: the constructor of {name_of(part)} must hand {', '.join(arguments[:-1])} and {arguments[-1]} on: "
        f"super().__init__({', '.join(arguments)})"
    )

"""Base class of all normalisers: what becomes of the logits.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from lab.attention import cpu_paths
from lab.attention.chunks import over_queries
from lab.attention.masks import forget_causal, written_out
from lab.attention.precision import at_least_float32
from lab.attention.rule import TemperatureRule

# What the weights of a row add up to. "at most one": the rest, the null mass, attends to nothing.
Total = Literal["one", "at most one", "anything"]


class Normaliser(nn.Module):
    """Maps the logits of a row to its attention weights.

    One method has to be there, :meth:`weights`; it is the definition, and what diagnostics look at. :meth:`attend`
    gives the same z without showing weights: here as :meth:`forward` does, over chunks of queries, in a subclass by a
    fused kernel or in a closed form, where mathematics allows it.

    Args:
        heads: number of heads H of the layer.
        head_dim: dimension D of a head.

    Raises:
        ValueError: if heads and head_dim are not handed on.

    Attributes:
        total: what the weights of a row add up to.
        is_softmax: True of softmax alone, for which a CPU has a path of its own in 16 bit; a class that overrides its
            weights or paths has to say so anew.
        exponential: True where a weight is exp(l) over a sum that holds exp of every logit of the row, so that
            exp(largest - smallest logit) / n bounds it ("softmax is not enough", Lemma 2.1).
        takes_temperature: False where logits are no scores q k^T: of the rules, Fixed alone goes with it.
        shift_invariant: True where a number that is added to all logits of a row changes nothing.
        takes_causal: True where ``allowed`` and ``attend`` of this very class know :class:`lab.attention.masks.Causal`;
            a class that overrides one of them has to say so anew.
        couples_queries: True where the weights of one query depend on the logits of others.

    A class may declare the last two; left at None, they are found when a model is built
    (:mod:`lab.attention.contract`). Until then a layer takes no short cut.
    """

    total: Total = "anything"
    is_softmax: ClassVar[bool] = False
    exponential: ClassVar[bool] = False
    takes_temperature: ClassVar[bool] = True
    takes_causal: ClassVar[bool] = True
    shift_invariant: bool | None = None
    couples_queries: bool | None = None

    def __init__(self, heads: int = 0, head_dim: int = 0) -> None:
        super().__init__()
        if not (heads and head_dim):
            raise ValueError(
                f"softmax.normaliser: the constructor of {type(self).__module__}.{type(self).__qualname__} must hand "
                "heads and head_dim on: super().__init__(heads, head_dim)"
            )
        self.heads = heads
        self.head_dim = head_dim

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        forget_causal(cls, "allowed", "attend", "forward")
        # Softmax's quicker ways are none to the weights of a class that has others.
        if "is_softmax" not in vars(cls) and {"weights", "scores", "attend", "forward"} & vars(cls).keys():
            cls.is_softmax = False

    @abstractmethod
    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weights [B, H, N, M] of logits, row by row.

        Called under vmap for seeds trained together: no branch may depend on what a tensor holds.

        Args:
            mask: bool, True where a query may attend to a key, broadcastable to the logits; what is not allowed has
                a logit of -inf and must be given a weight of 0.
        """

    def scores(self, q_BHND: Tensor, k_BHMD: Tensor) -> Tensor:
        """Logits [B, H, N, M] of rescaled queries and keys, unmasked: q k^T."""
        return cpu_paths.scores(q_BHND, k_BHMD)

    def allowed(self, mask: Any, q_BHND: Tensor, k_BHMD: Tensor) -> Any:
        """The mask in use: ``mask``, or what this normaliser allows of it."""
        return mask

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, mask: Any = None) -> Tensor:
        """z_BHND of rescaled queries; ``mask`` is what :meth:`allowed` gave.

        Over chunks of queries, worked out again in the backward pass, so that memory stays bounded in N.
        """
        if self.couples_queries is not False:
            return self(q_BHND, k_BHMD, written_out(mask), v_BHMD)
        return over_queries(self, q_BHND, k_BHMD, mask, v_BHMD)

    def forward(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None, v_BHMD: Tensor) -> Tensor:
        """z_BHND by way of the weights of all queries at once."""
        # Logits rounded to 16 bit would tie, and beyond 65,504 be infinite in float16.
        scores = self.scores(*at_least_float32(q_BHND, k_BHMD))
        return cpu_paths.mix(self.weights(masked(scores, mask), mask).to(v_BHMD.dtype), v_BHMD)

    def quantities(self) -> dict[str, Tensor]:
        """Detached values worth logging, by name: learned parameters, as they are used."""
        return {}


def masked(logits_BHNM: Tensor, mask: Tensor | None) -> Tensor:
    """The logits, -inf where a query may not attend."""
    return logits_BHNM if mask is None else logits_BHNM.masked_fill(~mask, float("-inf"))


def check_causal(rule: TemperatureRule, normaliser: Normaliser) -> None:
    """Checks that attention under a causal mask does not tell a query of later ones.

    Raises:
        ValueError: if the temperature or the weights of a query are known to depend on the other queries.
    """
    for part in (rule, normaliser):
        if part.couples_queries:
            raise ValueError(
                f"softmax: under {type(part).__name__} a query depends on the other queries of its head, so that a "
                "causal model would see later tokens: take one that works row by row (norm_softmax does with "
                "softmax.over=row)"
            )

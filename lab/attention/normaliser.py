"""Base class of all normalisers, which turn logits into attention weights.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from lab.attention import cpu_paths
from lab.attention.chunks import over_queries
from lab.attention.masks import forget_causal, written_out
from lab.attention.precision import at_least_float32, but_not_to_16_bit
from lab.attention.rule import OF_A_LAYER, TemperatureRule, not_handed_on, options_in_use

# Sum of the weights of a row. "at most one": what is missing to one, the null mass, attends to nothing.
Total = Literal["one", "at most one", "anything"]


class Normaliser(nn.Module):
    """Maps the logits of a row to its attention weights.

    A subclass must define :meth:`weights`: it is the definition of the normaliser, and diagnostics look at its result.
    :meth:`attend` gives the same z without showing the weights: by default with :meth:`forward` over chunks of queries;
    a subclass may use a fused kernel, or a closed form where there is one.

    Args:
        heads: number of heads H of the layer.
        head_dim: dimension D of a head.

    Raises:
        ValueError: if a subclass does not hand heads and head_dim on.

    Attributes:
        total: sum of the weights of a row.
        is_softmax: True for softmax alone, which has a path of its own in 16 bit on a CPU. A subclass that overrides
            its weights or paths has to declare it again.
        exponential: True where a weight is exp(l) divided by a sum that includes exp of every logit of the row, so that
            no weight exceeds exp(largest - smallest logit) / n ("softmax is not enough", Lemma 2.1).
        takes_temperature: False where logits are not scores q k^T; then Fixed is the only rule that can be used.
        shift_invariant: True where adding one number to all logits of a row does not change its weights.
        takes_causal: True where ``allowed`` and ``attend`` of this class accept :class:`lab.attention.masks.Causal`. A
            subclass that overrides one of them, or ``forward``, has to declare it again.
        couples_queries: True where the weights of one query depend on the logits of others, or on its place among them.

    A class may declare ``shift_invariant`` and ``couples_queries``; where it leaves them at None, they are found out
    when a model is built (:mod:`lab.attention.normaliser_contract`). Until then a layer takes no short cut.
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
            raise ValueError(not_handed_on("softmax.normaliser", type(self), OF_A_LAYER))
        self.heads = heads
        self.head_dim = head_dim

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Normaliser:
        # As a rule: what is learned here stays in 32 bit.
        return super()._apply(but_not_to_16_bit(fn), recurse)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        forget_causal(cls, "allowed", "attend", "forward")
        # A class with weights or paths of its own would get wrong numbers from the quicker paths of softmax.
        if "is_softmax" not in vars(cls) and {"weights", "scores", "attend", "forward"} & vars(cls).keys():
            cls.is_softmax = False

    @abstractmethod
    def weights(self, logits_BHNM: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weights [B, H, N, M] of logits, row by row.

        Seeds trained together call it under vmap, where no branch may depend on the values of a tensor.

        Args:
            mask: bool, True where a query may attend to a key, broadcastable to the logits; a key that is not
                allowed has a logit of -inf and must get a weight of 0.
        """

    def scores(self, q_BHND: Tensor, k_BHMD: Tensor) -> Tensor:
        """Logits [B, H, N, M] of rescaled queries and keys, unmasked: q k^T."""
        return cpu_paths.scores(q_BHND, k_BHMD)

    def allowed(self, mask: Any, q_BHND: Tensor, k_BHMD: Tensor) -> Any:
        """The mask in use: ``mask``, or a narrower one where this normaliser hides further keys."""
        return mask

    def attend(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, mask: Any = None) -> Tensor:
        """z_BHND of rescaled queries; ``mask`` is what :meth:`allowed` returned.

        Works over chunks of queries and recomputes them in the backward pass, so that memory stays bounded in N; where
        queries may be coupled, it works on all of them at once.
        """
        if self.couples_queries is not False:
            return self(q_BHND, k_BHMD, written_out(mask), v_BHMD)
        return over_queries(self, q_BHND, k_BHMD, mask, v_BHMD)

    def forward(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None, v_BHMD: Tensor) -> Tensor:
        """z_BHND, with the weights of all queries held at once."""
        # In 16 bit, rounding would make different logits equal; in float16, those beyond 65,504 would be infinite.
        scores = self.scores(*at_least_float32(q_BHND, k_BHMD))
        return cpu_paths.mix(self.weights(masked(scores, mask), mask).to(v_BHMD.dtype), v_BHMD)

    def extra_repr(self) -> str:
        return options_in_use(self)

    def quantities(self) -> dict[str, Tensor]:
        """Detached values worth logging, by name: learned parameters, in the form that the weights use."""
        return {}


def masked(logits_BHNM: Tensor, mask: Tensor | None) -> Tensor:
    """The logits, -inf where a query may not attend."""
    return logits_BHNM if mask is None else logits_BHNM.masked_fill(~mask, float("-inf"))


def check_causal(rule: TemperatureRule, normaliser: Normaliser) -> None:
    """Checks that under a causal mask no query depends on later ones.

    Raises:
        ValueError: if the temperature or the weights of a query are known to depend on the other queries, or on keys
            that the mask hides.
    """
    check_masked(rule)
    for part in (rule, normaliser):
        if part.couples_queries:
            raise ValueError(
                f"softmax: under {type(part).__name__} a query depends on the other queries of its head, so that a "
                "causal model would see later tokens: take a rule or normaliser that works row by row (norm_softmax "
                "does so with softmax.over=row)"
            )


def check_biased(rule: TemperatureRule, normaliser: Normaliser) -> None:
    """Checks that rule and normaliser can be used where a model adds a bias to the logits.

    Raises:
        ValueError: if the rule computes its temperatures from weights, which it would get without the bias; or if the
            normaliser has no logits that a bias could be added to.
    """
    if rule.assumes_softmax:
        raise ValueError(
            f"softmax: {type(rule).__name__} computes its temperature from the weights of a softmax, but does not see "
            "the bias that this model adds to its scores: take another rule"
        )
    if not normaliser.takes_temperature:
        raise ValueError(
            f"softmax: this model adds a bias to its scores, but {type(normaliser).__name__} does not compute weights "
            "from scores: take another normaliser"
        )


def check_masked(rule: TemperatureRule) -> None:
    """Checks that a rule can be used under a mask.

    Raises:
        ValueError: if its temperatures are known to depend on keys that a mask hides.
    """
    if rule.reads_masked_keys:
        raise ValueError(
            f"softmax: the temperatures of {type(rule).__name__} change with keys that the mask hides, so that a query "
            "would depend on padding or on later tokens: leave them out in inverse_temperature(q, k, mask), where mask "
            "is False"
        )

"""Softmaxes of a model's layers: a temperature rule and a normaliser for each, made by what ``softmax=`` composes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from lab.attention.contract import check_constructor, check_rule, copy_properties
from lab.attention.normaliser import Normaliser
from lab.attention.normaliser_contract import check_normaliser, check_together
from lab.attention.normalisers.softmax import Softmax
from lab.attention.rule import TemperatureRule
from lab.attention.rules.fixed import Fixed

# A loop over make_softmaxes would fill the memory.
_MOST_LAYERS = 1_000


class LayerSoftmax(NamedTuple):
    """The softmax of one layer: a temperature rule, and the normaliser that turns its logits into weights."""

    rule: TemperatureRule
    normaliser: Normaliser


class RuleFactory(Protocol):
    """Makes the temperature rule of one layer; a config with ``_partial_: true`` gives one."""

    def __call__(self, heads: int, head_dim: int) -> TemperatureRule: ...


class NormaliserFactory(Protocol):
    """Makes the normaliser of one layer; a config with ``_partial_: true`` gives one."""

    def __call__(self, heads: int, head_dim: int) -> Normaliser: ...


class SoftmaxFactory:
    """Makes the softmax of one layer from a rule and a normaliser; ``softmax=`` composes one.

    Args:
        rule: makes the temperature rule.
        normaliser: makes the normaliser.
    """

    # Not a dataclass: Hydra would turn one into a config when handing it to a model.
    def __init__(self, rule: RuleFactory = Fixed, normaliser: NormaliserFactory = Softmax) -> None:
        self.rule = rule
        self.normaliser = normaliser
        self.made = 0  # softmaxes so far


def make_softmaxes(
    softmax: SoftmaxFactory | RuleFactory | None, heads: int, head_dim: int, trained_length: int | None = None
) -> Iterator[LayerSoftmax]:
    """Yields softmaxes without end: a model takes one for each layer, with ``next``.

    The first is checked; later rules are given its rule, to share parameters.

    Args:
        softmax: makes them; a factory of rules alone goes with softmax as normaliser, None is plain softmax.
        heads: of every layer.
        head_dim: of every head.
        trained_length: number of keys that the model is made for; None where it is made for any number.

    Raises:
        ValueError: if the rule or the normaliser does not work on queries and keys of these heads, or rule and
            normaliser do not go together.
    """
    if not isinstance(softmax, SoftmaxFactory):
        softmax = SoftmaxFactory() if softmax is None else SoftmaxFactory(softmax)
    check_constructor(softmax.rule)
    check_constructor(softmax.normaliser)
    made: list[LayerSoftmax] = []
    for _ in range(_MOST_LAYERS):
        softmax.made += 1
        rule = softmax.rule(heads=heads, head_dim=head_dim)
        normaliser = softmax.normaliser(heads=heads, head_dim=head_dim)
        if trained_length is not None and isinstance(rule, TemperatureRule):
            rule.set_trained_length(trained_length)
        if made:
            rule.share(made[0].rule)
            copy_properties(rule, made[0].rule)
            copy_properties(normaliser, made[0].normaliser)
        else:
            check_rule(rule)
            check_normaliser(normaliser)
            check_together(rule, normaliser)
            made.append(LayerSoftmax(rule, normaliser))
        yield LayerSoftmax(rule, normaliser)
    raise ValueError("make_softmaxes gives softmaxes without end: take one for each layer, with next()")

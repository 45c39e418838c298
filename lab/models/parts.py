"""What the lab's transformers have in common: one rule a layer, and names for who watches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import nn

from lab.attention import Attention, CrossAttention
from lab.softmax.fixed import Fixed
from lab.softmax.rule import TemperatureRule


class RuleFactory(Protocol):
    """Makes the temperature rule of one layer; a config's ``_partial_`` is one."""

    def __call__(self, heads: int, head_dim: int) -> TemperatureRule: ...


def make_rules(softmax: RuleFactory | None, heads: int, head_dim: int) -> Iterator[TemperatureRule]:
    """One rule after another; later ones are given the first to share parameters with."""
    make = Fixed if softmax is None else softmax
    first = make(heads=heads, head_dim=head_dim)
    yield first
    while True:
        rule = make(heads=heads, head_dim=head_dim)
        rule.share(first)
        yield rule


class Observable(nn.Module):
    """Mixin: a model of the lab tells its layers, its rules, and what takes no weight decay."""

    def attention_layers(self) -> list[Attention | CrossAttention]:
        """Attention layers from the first to the last."""
        return [module for module in self.modules() if isinstance(module, Attention | CrossAttention)]

    def rules(self) -> list[TemperatureRule]:
        """Temperature rules, one a layer."""
        return [layer.rule for layer in self.attention_layers()]

    def rule_parameters(self) -> set[str]:
        """Names of learned temperatures, shared ones under each of their names."""
        return {
            f"{prefix}.{name}"
            for prefix, module in self.named_modules()
            if isinstance(module, TemperatureRule)
            for name, _ in module.named_parameters()
        }

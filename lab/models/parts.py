"""What the lab's transformers have in common: one rule a layer, and names for who watches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

from torch import Tensor, nn

from lab.attention.functional import Attention, CrossAttention
from lab.attention.rule import TemperatureRule
from lab.attention.rules.fixed import Fixed


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

    # The token that the answer is read at: the CLS token of a ViT, "=" of the reasoning task.
    answer_token: ClassVar[int] = 0

    def residual_readers(self) -> list[nn.Module]:
        """A module for each layer that is given the residual stream right after attention; none without a stream."""
        return []

    def on_tokens(self, region: Tensor) -> Tensor:
        """What the data knows of places, on this model's tokens: bool [B, ...] -> [B, N]; here they are the same."""
        return region

    @property
    def token_grid(self) -> tuple[int, int] | None:
        """Rows and columns of the patches where tokens lie on a picture (the last tokens do); None elsewhere."""
        return None

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

"""Parts that the lab's transformers share: one rule a layer, and a base class that names what diagnostics ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

from torch import Tensor, nn

from lab.attention.contract import check_constructor, check_rule
from lab.attention.layers import Attention, CrossAttention
from lab.attention.rule import TemperatureRule
from lab.attention.rules.fixed import Fixed


class RuleFactory(Protocol):
    """Makes the temperature rule of one layer; a config's ``_partial_`` is one."""

    def __call__(self, heads: int, head_dim: int) -> TemperatureRule: ...


def make_rules(softmax: RuleFactory | None, heads: int, head_dim: int) -> Iterator[TemperatureRule]:
    """One rule after another; the first is checked, later ones are given it to share parameters with.

    Raises:
        ValueError: if the rule does not work on queries and keys of these heads.
    """
    make = Fixed if softmax is None else softmax
    check_constructor(make)
    first = make(heads=heads, head_dim=head_dim)
    check_rule(first)
    yield first
    while True:
        rule = make(heads=heads, head_dim=head_dim)
        rule.share(first)
        for name in ("couples_queries", "weighs_channels"):
            if getattr(rule, name) is None:
                setattr(rule, name, getattr(first, name))
        yield rule


class Observable(nn.Module):
    """Base class of the lab's models: names layers, rules and tokens for diagnostics, and what takes no weight decay.

    The defaults fit any model whose attention layers are the lab's, and a model without attention.
    """

    # The token that the answer is read at: the CLS token of a ViT, "=" of the reasoning task.
    answer_token: ClassVar[int] = 0

    def attention_layers(self) -> list[Attention | CrossAttention]:
        """Attention layers from the first to the last."""
        return [module for module in self.modules() if isinstance(module, Attention | CrossAttention)]

    def residual_readers(self) -> list[nn.Module]:
        """A module for each layer that is given the residual stream right after attention; none without a stream."""
        return []

    def on_tokens(self, region: Tensor) -> Tensor:
        """Places as the data knows them, on this model's tokens: bool [B, ...] -> [B, N]; here they are the same."""
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

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that are spared weight decay: learned temperatures."""
        return self.rule_parameters()


def observable(model: nn.Module) -> Observable | None:
    """Returns the lab's model that ``model`` is, compiled or not; None of a model of another kind."""
    plain = getattr(model, "_orig_mod", model)
    return plain if isinstance(plain, Observable) else None


def attention_layers_of(model: nn.Module) -> list[Attention | CrossAttention]:
    """Attention layers of any model; none of one that does not tell them."""
    known = observable(model)
    return known.attention_layers() if known is not None else []


def rules_of(model: nn.Module) -> list[TemperatureRule]:
    """Temperature rules of any model, one a layer; none of one that does not tell them."""
    return [layer.rule for layer in attention_layers_of(model)]

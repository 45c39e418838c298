"""Parts that the lab's transformers share: the softmax of each layer, and a base class that diagnostics rely on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from lab.attention.contract import check_constructor, check_rule, copy_properties
from lab.attention.layers import MultiHead
from lab.attention.normaliser import Normaliser
from lab.attention.normaliser_contract import check_normaliser, check_together
from lab.attention.normalisers.softmax import Softmax
from lab.attention.rule import TemperatureRule
from lab.attention.rules.fixed import Fixed
from lab.console import LabError
from lab.datasets.scenes import unnormalised

# A loop over make_softmaxes would fill the memory.
_MOST_LAYERS = 1_000


class LayerSoftmax(NamedTuple):
    """The softmax of one layer: a temperature rule, and the normaliser that turns its logits into weights."""

    rule: TemperatureRule
    normaliser: Normaliser


class Picture(NamedTuple):
    """Patch grid (rows, columns) of a model's pictures, and mean and standard deviation that normalise its colours."""

    grid: tuple[int, int]
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


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


class Observable(nn.Module):
    """Base class of the lab's models: names layers, rules and tokens for diagnostics, and parameters without decay.

    The defaults fit any model whose attention layers are the lab's, and a model without attention.
    """

    # The token that the answer is read at: the CLS token of a ViT, "=" of the reasoning task.
    answer_token: int = 0

    def attention_layers(self) -> list[MultiHead]:
        """Attention layers from the first to the last."""
        return [module for module in self.modules() if isinstance(module, MultiHead) and module.in_use]

    def residual_readers(self) -> list[nn.Module]:
        """Modules, one a layer, whose input is the residual stream right after attention; [] without such a stream."""
        return []

    def on_tokens(self, region: Tensor) -> Tensor:
        """Maps regions of the data to this model's tokens: bool [B, ...] -> [B, N]; by default they are the same."""
        return region

    @property
    def token_grid(self) -> tuple[int, int] | None:
        """Rows and columns of patches, where the last tokens are patches of a picture; None elsewhere."""
        return None

    def colours(self, x_BCHW: Tensor) -> Tensor:
        """Turns pictures as the model takes them into colours in [0, 1] (noise may go beyond)."""
        return unnormalised(x_BCHW)

    def rules(self) -> list[TemperatureRule]:
        """Temperature rules, one a layer."""
        return [layer.rule for layer in self.attention_layers()]

    def normalisers(self) -> list[Normaliser]:
        """Normalisers, one a layer."""
        return [layer.normaliser for layer in self.attention_layers()]

    def softmax_parameters(self) -> set[str]:
        """Names of the parameters of rules and normalisers; a shared one has a name in each module that holds it."""
        return {
            f"{prefix}.{name}"
            for prefix, module in self.named_modules()
            if isinstance(module, TemperatureRule | Normaliser)
            for name, _ in module.named_parameters()
        }

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay: those of rules and normalisers."""
        return self.softmax_parameters()


class OtherModel(Observable):
    """A model of another library whose attention modules have a softmax of the lab (:mod:`lab.models.replace`).

    Args:
        model: called with its input, or with its inputs by name.
        picture: its patches and normalisation of colours; None of a model that takes no pictures.
    """

    def __init__(self, model: nn.Module, picture: Picture | None = None) -> None:
        super().__init__()
        self.model = model
        self.picture = picture

    @property
    def answer_token(self) -> int:  # type: ignore[override]
        """Last token of a causal model, since it alone sees all others; else the first.

        Some models tell only by their calls that they are causal: the answer may change with the first call.
        """
        return -1 if any(getattr(module, "is_causal", False) for module in self.model.modules()) else 0

    def forward(self, x: Any) -> Any:
        """The model's own output."""
        return self.model(**x) if isinstance(x, Mapping) else self.model(x)

    @property
    def token_grid(self) -> tuple[int, int] | None:
        return None if self.picture is None else self.picture.grid

    def colours(self, x_BCHW: Tensor) -> Tensor:
        return (
            super().colours(x_BCHW)
            if self.picture is None
            else unnormalised(x_BCHW, self.picture.mean, self.picture.std)
        )

    def softmax_parameters(self) -> set[str]:
        return {name.removeprefix("model.") for name in super().softmax_parameters()}


def observable(model: nn.Module) -> Observable | None:
    """Returns a model of the lab (compiled or not), or one under a softmax of the lab, to observe; None of another.

    Raises:
        LabError: if it is not a model.
    """
    if not isinstance(model, nn.Module):
        raise LabError(
            f"{model!r} is not a model: give a torch.nn.Module (lab.read_trained(folder).model() makes that of a run)"
        )
    plain: nn.Module = getattr(model, "_orig_mod", model)
    if isinstance(plain, Observable):
        return plain
    return OtherModel(plain) if any(isinstance(module, MultiHead) for module in plain.modules()) else None


def attention_layers_of(model: nn.Module) -> list[MultiHead]:
    """Attention layers of any model; [] of one without layers of the lab."""
    known = observable(model)
    return known.attention_layers() if known is not None else []


def rules_of(model: nn.Module) -> list[TemperatureRule]:
    """Temperature rules of any model, one a layer; [] of one without layers of the lab."""
    return [layer.rule for layer in attention_layers_of(model)]


def normalisers_of(model: nn.Module) -> list[Normaliser]:
    """Normalisers of any model, one a layer; [] of one without layers of the lab."""
    return [layer.normaliser for layer in attention_layers_of(model)]

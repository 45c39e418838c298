"""Base class by which diagnostics see a model: its attention layers, rules, tokens and colours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.attention.layers import MultiHead
from lab.attention.normaliser import Normaliser
from lab.attention.rule import TemperatureRule
from lab.console import LabError
from lab.datasets.scenes import unnormalised


class Picture(NamedTuple):
    """Patch grid (rows, columns) of a model's pictures, and mean and standard deviation that normalise its colours."""

    grid: tuple[int, int]
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


class Observable(nn.Module):
    """Base class of the lab's models: names layers, rules and tokens for diagnostics, and parameters without decay.

    The defaults fit any model whose attention layers are the lab's, and a model without attention.
    """

    # The token that the answer is read at (CLS of a ViT, "=" of the reasoning task), and what pictures call it.
    answer_token: int = 0
    answer_name: str = "the answer's token"
    # Tokens before the patches of a picture, by timm's name; read where there is a token_grid.
    num_prefix_tokens: int = 0

    def attention_layers(self) -> list[MultiHead]:
        """Attention layers from the first to the last."""
        return [module for module in self.modules() if isinstance(module, MultiHead) and module.in_use]

    def residual_readers(self) -> list[nn.Module]:
        """Modules, one a layer, whose input is the residual stream right after attention; [] without such a stream."""
        return []

    def on_tokens(self, region: Tensor) -> Tensor:
        """Maps regions of the data to this model's tokens: bool [B, N], or [B, rows, columns] on a grid -> [B, N].

        On patches, a region is read at the middle of each; tokens before them are in none.
        """
        if self.token_grid is None or region.dim() < 3:
            return region
        for axis, patches in enumerate(self.token_grid, start=1):
            middle = (torch.arange(patches, device=region.device) + 0.5) * region.shape[axis] / patches
            region = region.index_select(axis, middle.long())
        return F.pad(region.flatten(1), (self.num_prefix_tokens, 0))

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

    @property
    def answer_name(self) -> str:  # type: ignore[override]
        """The token by its place: the model may have no CLS token, or read its answer from the mean over tokens."""
        return "the last token" if self.answer_token == -1 else "the first token"

    def forward(self, x: Any) -> Any:
        """The model's own output."""
        return self.model(**x) if isinstance(x, Mapping) else self.model(x)

    @property
    def token_grid(self) -> tuple[int, int] | None:
        return None if self.picture is None else self.picture.grid

    @property
    def num_prefix_tokens(self) -> int:  # type: ignore[override]
        return int(getattr(self.model, "num_prefix_tokens", 0))

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

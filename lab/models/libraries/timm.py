"""Models of timm by their names there, or from a folder by timm's own ``local-dir:<folder>``."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import timm
import timm.data
import torch
from torch import Tensor, nn

from lab.console import LabError, first_line
from lab.models.libraries.named import UNREADABLE, NamedModel
from lab.models.observable import Picture


class Named(NamedModel):
    """A model of timm, which keeps its own cache of weights."""

    def __init__(self, name: str, weights: bool = True, layers: int | None = None, kind: str | None = None) -> None:
        for option, value in (("layers", layers), ("kind", kind)):
            if value is not None:
                raise LabError(f"{option}={value} works only with models of Hugging Face: leave it out for timm:{name}")
        if ":" not in name and not timm.is_model(name):
            meant = next(iter(get_close_matches(name, timm.list_models(), n=1)), None)
            hint = f"did you mean {meant!r}? " if meant else ""
            raise LabError(f"model=timm:{name} is no model of timm; {hint}timm.list_models() names all")
        self.name = name
        self.weights = weights
        with torch.device("meta"):
            self.empty = self._made(weights=False)
        self._prepared = timm.data.resolve_model_data_config(self.empty)
        self.size = self._prepared["input_size"]

    def load(self) -> nn.Module:
        return self._made(self.weights).float().eval()

    def picture(self, image: Any) -> Tensor:
        if not hasattr(self, "_transform"):
            self._transform = timm.data.create_transform(**self._prepared, is_training=False)
        return self._transform(image.convert("RGB"))

    def shown(self, model: nn.Module) -> Picture | None:
        grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
        return None if grid is None else Picture(tuple(grid), self._prepared["mean"], self._prepared["std"])

    def _made(self, weights: bool) -> nn.Module:
        try:
            return timm.create_model(self.name, pretrained=weights)
        except UNREADABLE as error:
            hint = "; weights=false needs none" if weights else ""
            why = f"its config has no {error}" if isinstance(error, KeyError) else first_line(error)
            raise LabError(f"model=timm:{self.name} cannot be loaded: {why}{hint}") from error

"""Reads q, k, v, logits, weights and head outputs z of chosen layers for a probe batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

QUANTITIES = ("q", "k", "v", "logits", "weights", "z")


class Recorder:
    """Switched on for a batch, it makes attention take the explicit path and keeps what it saw.

    Off, it costs nothing: attention tests one attribute. Shapes: q, k, v, z are [B, H, N, D], logits and
    weights [B, H, N, N].

        recorder = Recorder(model, what=("weights",))
        recorder.run(x)
        recorder[0]["weights"]

    Args:
        model: a model with ``attention_layers()``, compiled or not.
        layers: indices of the layers to read; None reads all.
        what: the quantities to keep.
        keep_graph: keep the autograd graph; otherwise tensors are detached.

    Raises:
        ValueError: if a quantity or a layer does not exist.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[int] | None = None,
        what: Sequence[str] = QUANTITIES,
        keep_graph: bool = False,
    ) -> None:
        unknown = set(what) - set(QUANTITIES)
        if unknown:
            raise ValueError(f"the recorder does not know {sorted(unknown)}; valid: {', '.join(QUANTITIES)}")
        # What torch.compile(model) wraps: its forward is the eager one.
        model = getattr(model, "_orig_mod", model)
        all_layers: list[Any] = model.attention_layers()  # type: ignore[operator]
        chosen = range(len(all_layers)) if layers is None else layers
        if any(not 0 <= index < len(all_layers) for index in chosen):
            raise ValueError(f"the model has layers 0 to {len(all_layers) - 1}, got {list(chosen)}")
        self.model = model
        self.what = tuple(what)
        self.keep_graph = keep_graph
        self._layers = {index: all_layers[index] for index in chosen}
        self._seen: dict[int, dict[str, Tensor]] = {}

    @contextmanager
    def on(self) -> Iterator[Recorder]:
        """Listens within the block; call ``recorder.model.forward`` there, which bypasses a compiled model.

        Raises:
            RuntimeError: if another recorder listens to one of the layers.
        """
        if any(layer.tap is not None for layer in self._layers.values()):
            raise RuntimeError("another recorder listens to these layers: leave its block first")
        taps: dict[int, dict[str, Tensor]] = {index: {} for index in self._layers}
        for index, layer in self._layers.items():
            layer.tap = taps[index]
        try:
            yield self
        finally:
            for layer in self._layers.values():
                layer.tap = None
            self._seen = {
                index: {
                    name: tensor if self.keep_graph else tensor.detach()
                    for name, tensor in tap.items()
                    if name in self.what
                }
                for index, tap in taps.items()
            }

    def run(self, x: Tensor) -> Tensor:
        """The model's output on ``x`` in eval mode without gradients; every training flag is put back."""
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            with self.on(), torch.no_grad():
                return self.model.forward(x)
        finally:
            for module in training:
                module.training = True

    def __getitem__(self, layer: int) -> dict[str, Tensor]:
        """What was seen in a layer, by quantity."""
        return self._seen[layer]

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the layers that are read."""
        return tuple(self._layers)

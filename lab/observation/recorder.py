"""Reads q, k, v, logits, weights, head outputs z and the residual stream of chosen layers for a probe batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lab.attention.layers import Tap
from lab.console import LabError
from lab.models.observable import OtherModel, observable
from lab.signals import surely

QUANTITIES = ("queries", "tokens", "q", "k", "v", "mask", "bias", "logits", "weights", "z", "attended", "residual")
# Only the explicit path has these; it holds N x N matrices.
_EXPLICIT = {"logits", "weights"}


class Recorder:
    """Keeps what attention computes, while it is switched on for a batch.

    Switched off, it costs nothing: attention tests one attribute. Where logits or weights are asked for, attention
    takes the explicit path. Shapes: q, k, v, z are [B, H, N, D], logits and weights [B, H, N, M]. The inputs of queries
    and of keys (``queries``, ``tokens``), what attention adds to the residual stream (``attended``) and the stream
    after that (``residual``, not in a model without one) are [B, N, W]. ``mask`` is there where attention has one, and
    ``bias`` where the model adds one to its logits, both broadcastable to [B, H, N, M]. A model of another library
    (``lab.replace_softmax``) gives no quantity [B, N, W].

        recorder = Recorder(model, what=("weights",))
        recorder.run(x)
        recorder[0]["weights"]

    Args:
        model: a model with ``attention_layers()``, or one under a softmax of the lab, compiled or not.
        layers: indices of the layers to read; None reads all.
        what: the quantities to keep.
        keep_graph: keep the autograd graph; otherwise tensors are detached.

    Raises:
        LabError: if the model has no attention of the lab, or a quantity or a layer does not exist.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[int] | None = None,
        what: Sequence[str] = QUANTITIES,
        keep_graph: bool = False,
    ) -> None:
        what = (what,) if isinstance(what, str) else what
        unknown = set(what) - set(QUANTITIES)
        if unknown:
            raise LabError(f"the recorder does not know {sorted(unknown)}; valid: {', '.join(QUANTITIES)}")
        # The model behind torch.compile, whose forward is the eager one.
        known = observable(model)
        if known is None:
            raise LabError(
                f"{type(model).__name__} has no attention of the lab to read: call lab.replace_softmax(model) first"
            )
        all_layers = known.attention_layers()
        chosen = range(len(all_layers)) if layers is None else layers
        if not isinstance(chosen, Sequence) or not all(one in range(len(all_layers)) for one in chosen):
            raise LabError(f"layers is a list of indices from 0 to {len(all_layers) - 1}, got {layers!r}")
        self.model = known
        self._name = type(known.model if isinstance(known, OtherModel) else known).__name__
        self.what = tuple(what)
        self.keep_graph = keep_graph
        self._layers = {index: all_layers[index] for index in chosen}
        streams = known.residual_readers()
        # No hooks where nobody asks for the stream: each costs a call.
        self._streams = {i: streams[i] for i in chosen if i < len(streams)} if "residual" in self.what else {}
        self._seen: dict[int, dict[str, Tensor]] = {}

    def __repr__(self) -> str:
        return f"Recorder({self._name}, layers={list(self._layers)}, what={list(self.what)})"

    @contextmanager
    def on(self) -> Iterator[Recorder]:
        """Listens within the block; call ``recorder.model.forward`` there, which bypasses a compiled model.

        Raises:
            RuntimeError: if another recorder listens to one of the layers.
        """
        if any(layer.tap is not None for layer in self._layers.values()):
            raise RuntimeError("another recorder listens to these layers: leave its block first")
        taps = {index: Tap(not _EXPLICIT.isdisjoint(self.what)) for index in self._layers}
        hooks: list[RemovableHandle] = []

        def off() -> None:
            for hook in hooks:
                hook.remove()
            for layer in self._layers.values():
                layer.tap = None

        try:
            for index, layer in self._layers.items():
                layer.tap = taps[index]
            for index, reader in self._streams.items():
                hooks.append(reader.register_forward_pre_hook(_keep_stream(taps[index])))
            yield self
        finally:
            surely(off)
            self._seen = {
                index: {
                    name: tensor if self.keep_graph else tensor.detach()
                    for name, tensor in tap.items()
                    if name in self.what
                }
                for index, tap in taps.items()
            }

    def run(self, x: Any) -> Any:
        """The model's output on ``x`` (inputs by name where it takes several) in eval mode without gradients; every
        training flag is put back.

        Raises:
            LabError: if the pass goes through a layer more than once (ALBERT), since only the last time would be kept;
                or if it does not go through a layer at all.
        """
        with evaluating(self.model), self.on(), torch.no_grad():
            out = self.model.forward(x)
            calls = {index: layer.tap.calls for index, layer in self._layers.items() if layer.tap is not None}
        most = max(calls.values(), default=0)
        if skipped := [index for index, count in calls.items() if not count]:
            raise LabError(
                f"the forward pass of {self._name} does not ask layer {skipped[0]} for its softmax, so "
                "nothing can be read from it (set_attn_implementation switches a replaced softmax off)"
            )
        if most > 1:
            raise LabError(
                f"{self._name} goes through one attention layer {most} times in a pass, since layers share it or it "
                "attends in pieces, and the recorder would keep only the last time: it cannot be read"
            )
        return out

    def __getitem__(self, layer: int) -> dict[str, Tensor]:
        """Tensors that were seen in a layer, by quantity.

        Raises:
            LabError: if the layer was not read.
        """
        if layer not in self._seen:
            read = f"read are {list(self._seen)}" if self._seen else "nothing is read yet: call run(x)"
            raise LabError(f"layer {layer} was not read; {read}")
        return self._seen[layer]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Tensors of one layer after the other, as ``recorder[layer]`` gives them."""
        return (self[layer] for layer in self._layers)

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the layers that are read."""
        return tuple(self._layers)


@contextmanager
def own_random_numbers(device: torch.device) -> Iterator[None]:
    """Keeps, within the block, the random numbers of Python, NumPy, CPU and device from the program outside it."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        devices = [] if device.type == "cpu" else [device]
        with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts the model in eval mode within the block; after it, every module has its earlier training flag."""
    training = [module for module in model.modules() if module.training]

    def back() -> None:
        for module in training:
            module.training = True

    try:
        model.eval()
        yield
    finally:
        surely(back)


def _keep_stream(tap: Tap) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """A hook that keeps what a module of the residual stream is given."""

    def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        tap["residual"] = inputs[0]

    return keep

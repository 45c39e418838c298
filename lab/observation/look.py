"""Shows one batch to diagnostics, without a data module: the model's input, cut free of its padding.

Shapes: B inputs of a batch, N tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning import LightningModule
from lightning.fabric.plugins.precision import Precision
from lightning.fabric.utilities import move_data_to_device
from lightning_utilities import apply_to_collection
from torch import Tensor, nn

from lab.console import LabError, blamed
from lab.datasets.loading import parts_of
from lab.models.observable import attention_layers_of, observable
from lab.observation.observe import (
    Chunk,
    Findings,
    Observer,
    check_observers,
    chunk_rows,
    conclusion,
    device_of,
    read_layers,
    seen_by,
)
from lab.observation.recorder import evaluating, own_random_numbers


def look(model: nn.Module, x: Any, observers: Sequence[Observer]) -> list[Findings]:
    """Shows one batch to observers that need no scenes; returns their findings on the whole batch.

        lab.replace_softmax(model, "norm_softmax")
        (entropy,) = lab.look(model, tokenizer(texts, return_tensors="pt"), [AttentionEntropy("look")])

    Changes nothing in the model, takes no gradient and draws no random number of training. Floating-point inputs are
    given in the precision of the model's first weights. Padding that an ``attention_mask`` marks is cut off first:
    inputs with equal masks go through the model together, without padding.

    Args:
        model: model under a softmax of the lab, the lab's own or one of another library.
        x: the model's input, or its inputs by name.
        observers: diagnostics that need no scenes (not probes; attention masses find no regions here).

    Raises:
        LabError: if the model has no attention of the lab or no forward, it fails on x, or an observer needs more than
            a batch.
    """
    known = observable(model)
    if known is None or not attention_layers_of(model):
        raise LabError(f"{type(model).__name__} has no attention of the lab: call lab.replace_softmax(model) first")
    # Not the class's, since a compiled model has its own.
    if getattr(model.forward, "__func__", None) in (nn.Module.forward, LightningModule.forward):
        part = next(name for name, part in model.named_children() if attention_layers_of(part))
        raise LabError(f"{type(model).__name__} has no forward: give the part of it that has one, as model.{part} may")
    check_observers(observers)
    for one in observers:
        if not hasattr(one, "see") or getattr(one, "needs", None) is not None:
            raise LabError(f"{type(one).__name__} cannot look at a batch: it needs more than that (use lab.inspect)")
    if isinstance(x, Mapping) and {"x", "y", "latents"} <= x.keys():
        raise LabError("x is a whole batch of the lab, with labels and latents: give its x alone, batch['x']")
    device = device_of(model)
    x = move_data_to_device(dict(x) if isinstance(x, Mapping) else x, device)
    # The first weights meet the input, and a product of two precisions is an error.
    dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.get_default_dtype())
    x = apply_to_collection(x, Tensor, lambda one: one.to(dtype) if one.is_floating_point() else one)
    what = sorted({quantity for observer in observers for quantity in observer.reads})
    with own_random_numbers(device), evaluating(model), blamed(f"{type(model).__name__} fails on x"):
        seen: list[list[Any]] = [[] for _ in observers]
        for part in _in_pieces(known, _without_padding(x)):
            layers = read_layers(known, part, what, Precision())
            nothing = torch.zeros(_inputs_of(part), device=device)
            chunk = Chunk({"x": part, "y": nothing, "latents": {}}, {}, layers, known)
            for own, observer in zip(seen, observers, strict=True):
                own.append(seen_by(observer, chunk))
        return [conclusion(observer, own) for observer, own in zip(observers, seen, strict=True)]


def _inputs_of(x: Any) -> int:
    """Counts the inputs of a batch, by its first tensor."""
    first = next((one for one in parts_of(x) if isinstance(one, Tensor)), None)
    if first is None or not first.dim():
        raise LabError("x holds no tensor of inputs: give the model's input, or its inputs by name")
    if not len(first):
        raise LabError("x is an empty batch: give one input or more")
    return len(first)


def _in_pieces(model: nn.Module, parts: Iterable[Any]) -> Iterator[Any]:
    """Batches, cut into pieces so that what the recorder keeps of a piece stays small."""
    for part in parts:
        inputs = _inputs_of(part)
        rows = chunk_rows(model, _selected(part, inputs, slice(0, 1)), Precision()) if inputs > 1 else 1
        for start in range(0, inputs, rows):
            yield part if rows >= inputs else _selected(part, inputs, slice(start, start + rows))


def _selected(x: Any, inputs: int, which: Any) -> Any:
    """Selects some of the ``inputs`` inputs of a batch; tensors without a row for each input stay as they are."""
    return apply_to_collection(x, Tensor, lambda one: one[which] if one.dim() and len(one) == inputs else one)


def _without_padding(x: Any) -> Iterator[Any]:
    """Inputs by name, cut to the tokens that their masks [B, N] let through; inputs with equal masks stay together.

    ``attention_mask`` belongs to the inputs of a model, ``decoder_attention_mask`` to the inputs of its decoder.

    Raises:
        LabError: if an input is all padding.
    """
    known = {of: x.get(f"{of}attention_mask") for of in ("", "decoder_")} if isinstance(x, Mapping) else {}
    masks = {of: mask.bool() for of, mask in known.items() if isinstance(mask, Tensor) and mask.dim() == 2}
    if all(bool(mask_BN.all()) for mask_BN in masks.values()):
        yield x
        return
    for of, mask_BN in masks.items():
        if not bool(mask_BN.any(1).all()):
            raise LabError(f"an input is nothing but padding: its {of}attention_mask is 0 everywhere")
    kinds, which_B = torch.cat(list(masks.values()), dim=1).unique(dim=0, return_inverse=True)
    for kind in dict.fromkeys(which_B.tolist()):  # the first input stays the first
        own_B = which_B == kind
        tokens = dict(zip(masks, kinds[kind].split([mask.shape[1] for mask in masks.values()]), strict=True))

        def cut(name: str, value: Any, own_B: Tensor = own_B, tokens: Mapping[str, Tensor] = tokens) -> Any:
            of = "decoder_" if name.startswith("decoder_") else ""
            part = _selected(value, len(own_B), own_B)
            masked = of in masks and isinstance(value, Tensor) and value.shape[:2] == masks[of].shape
            return part[:, tokens[of]] if masked else part

        yield {name: cut(name, value) for name, value in x.items()}

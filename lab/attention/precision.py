"""Precision that statistics, sums and temperatures need."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps

import torch
from torch import Tensor

# Of shapes alone: PyTorch raises an error when it is asked about autocast there.
_NO_AUTOCAST = ("meta",)

# Apple's GPUs have no 64-bit floats.
NO_FLOAT64 = ["mps"]


def at_least_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, half precision raised to float32: statistics of 16-bit numbers are too coarse."""
    return tuple(t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors)


def in_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the processor where its own device has no 64-bit floats."""
    return (tensor.cpu() if tensor.device.type in NO_FLOAT64 else tensor).double()


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Context in which work on this tensor's device is done in the precision of its operands."""
    kind = tensor.device.type
    return nullcontext() if kind in _NO_AUTOCAST else torch.autocast(kind, enabled=False)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Dtype in which autocast computes on a device; None where it is off."""
    kind = device.type
    return torch.get_autocast_dtype(kind) if kind not in _NO_AUTOCAST and torch.is_autocast_enabled(kind) else None


def but_not_to_16_bit(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Makes of a function for ``Module._apply`` one that moves tensors likewise, but converts none to 16 bit.

    It keeps the name of ``fn``, by which torchmetrics knows conversions such as ``double()``, and passes them over.
    """

    @wraps(fn)
    def kept(tensor: Tensor) -> Tensor:
        moved = fn(tensor)
        return tensor.to(moved.device) if moved.is_floating_point() and moved.itemsize < 4 else moved

    return kept

"""Precision that statistics, sums and temperatures need."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor


def at_least_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, half precision raised to float32: statistics of 16-bit numbers are too coarse."""
    return tuple(t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors)


def but_not_to_16_bit(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Makes of a function for ``Module._apply`` one that moves tensors likewise, but converts none to 16 bit.

    It keeps the name of ``fn``, by which torchmetrics knows conversions such as ``double()``, and passes them over.
    """

    @wraps(fn)
    def kept(tensor: Tensor) -> Tensor:
        moved = fn(tensor)
        return tensor.to(moved.device) if moved.is_floating_point() and moved.itemsize < 4 else moved

    return kept

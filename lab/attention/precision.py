"""Precision that statistics of queries and keys need."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, half precision raised to float32: statistics of 16-bit numbers are too coarse."""
    return tuple(t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors)

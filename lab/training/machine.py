"""Settings of this machine that make training faster and change nothing else, but for numbers below 1e-38."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Makes the processor take numbers below 1.2e-38 for 0 within the block.

    Sharp attention, dead units and weight decay leave many of these (denormal) numbers, and a processor takes up to a
    hundred times as long over one: max retrieval's step slowed down to 250 ms within 7,000 steps (five seeds, one
    thread), nearly all of it matrix products, and takes 50 with this. It holds for this thread, and for good for those
    that it starts within the block. Does nothing where the processor cannot.
    """
    before = bool((torch.full((1,), 1e-38) * 1e-3 == 0).item())
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def cpp_compiler() -> str:
    """Name of the C++ compiler that torch.compile asks for on a CPU."""
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def tune_compiler() -> None:
    """Sets what torch.compile shall do with the lab's models; before they are compiled."""
    # Takes seconds, which who only keeps memory need not wait for.
    from lab.training.lightning_internals import allow_recompiling, recompute_in_backward

    # It would keep the sign of every hidden unit for the backward pass, one byte after the other, which on a CPU takes
    # as long as the whole MLP; the hidden units themselves are kept anyway.
    recompute_in_backward()
    # Seeds that drop out are new shapes, each in training and in evaluation; settings of a sweep in one process add up.
    allow_recompiling(256)

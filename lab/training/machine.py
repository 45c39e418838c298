"""Settings of this machine that make training faster and change no result, except that numbers below 1e-38 are 0."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Makes the processor treat numbers below 1.2e-38 as 0 within the block.

    Sharp attention, dead units and weight decay produce many of these denormal numbers, and a processor takes up to a
    hundred times as long for one. In max retrieval (five seeds, one thread) a step slowed down to 250 ms within 7,000
    steps, nearly all of it in matrix products; with this setting it takes 50 ms. The setting holds for this thread, and
    permanently for threads that it starts within the block. Does nothing on a processor that does not support it.
    """
    before = bool((torch.full((1,), 1e-38) * 1e-3 == 0).item())
    try:
        torch.set_flush_denormal(True)
        yield
    finally:
        torch.set_flush_denormal(before)


def cpp_compiler() -> str:
    """Name of the C++ compiler that torch.compile asks for on a CPU."""
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def tune_compiler(on_gpu: bool) -> None:
    """Sets the options of torch.compile for the lab's models; call it before they are compiled.

    Args:
        on_gpu: whether the models are to run on a GPU.
    """
    # Imported here, since it takes seconds and few runs compile.
    from lab.training.lightning_internals import allow_recompiling, recompute_in_backward

    # By default it stores the sign of every hidden unit for the backward pass, one byte after the other, which on a CPU
    # takes as long as the whole MLP; the hidden units themselves are stored anyway. On a GPU it would recompute cuDNN's
    # attention, too (results/h100).
    recompute_in_backward(not on_gpu)
    # Each seed that ends changes the shape of the batched model, in training and in evaluation; the settings of a sweep
    # in one process add up.
    allow_recompiling(256)

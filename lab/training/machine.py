"""Settings of this machine that make training faster and change nothing else."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

# Of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_MIB = 2**20


def keep_freed_memory() -> None:
    """Makes the C library keep memory that tensors free, in place of giving it back after every step.

    What is given back comes again a page fault at a time: five reasoners side by side took 2,800 a step, 9 of 124 ms
    of processor time. Does nothing where the user has set malloc's variables, or where the
    C library is another than glibc. It keeps at most 1 GiB more than is used.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_MMAP_THRESHOLD, 32), (_TRIM_THRESHOLD, 1024), (_TOP_PAD, 64)):
            mallopt(option, value * _MIB)


def tune_compiler() -> None:
    """Sets what torch.compile shall do with the lab's models; before they are compiled."""
    # Takes seconds, which who only keeps memory need not wait for.
    from lab.training.lightning_internals import allow_recompiling, recompute_in_backward

    # It would keep the sign of every hidden unit for the backward pass, one byte after the other, which on a CPU takes
    # as long as the whole MLP; the hidden units themselves are kept anyway.
    recompute_in_backward()
    # Seeds that drop out are new shapes, each in training and in evaluation; settings of a sweep in one process add up.
    allow_recompiling(256)

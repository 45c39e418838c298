"""Peak memory of this process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch


def forget_peak(device: str) -> None:
    """Resets the peak memory, so that what ran before does not count.

    The peak of a process can be reset on Linux only; elsewhere it covers all that the process has done.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory(device: str) -> int:
    """Peak memory in bytes since :func:`forget_peak`: resident set of the process, or torch's memory on the GPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

"""What is tuned makes training faster; these tests see that it is done at all."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lab.train import run as train_with
from lab.training import memory
from lab.training.module import TwoStepModule

# Freed together, 192 MiB in small blocks and 384 in blocks that glibc would map by themselves: 147,456 pages.
FAULTS = """
import resource
from lab.training.memory import keep_freed_memory
keep_freed_memory()
import torch
def step():
    blocks = [torch.zeros(3 * 2**20) for _ in range(8)]
    more = [block + 1 for block in blocks]
    large = [torch.zeros(3 * 2**24) for _ in range(2)]
for _ in range(2): step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5): step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5)
"""

LARGE_PAGES = """
import re
from pathlib import Path
from lab.training.start import start
from lab.training.memory import keep_freed_memory
keep_freed_memory()
import torch
kept = torch.ones(2**26)
print(re.search(r"AnonHugePages: +([0-9]+) kB", Path("/proc/self/smaps_rollup").read_text())[1])
"""
PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

# A million products of 1e-41 on two threads, the second of which begins with them.
DENORMALS = """
import torch
from lab.training.machine import flushed_denormals
torch.set_num_threads(2)
with flushed_denormals():
    print(int((torch.full((2**20,), 1e-38) * 1e-3).count_nonzero()))
"""


@pytest.fixture
def options(monkeypatch) -> list[int]:
    """What is asked of mallopt, by option; no user's settings."""
    asked: list[int] = []
    library = SimpleNamespace(mallopt=lambda option, value: asked.append(option))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "1")
    return asked


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_kept() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=plain)
    assert int(done.stdout) < 5000


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not PAGES.exists() or "[never]" in PAGES.read_text(),
    reason="this machine has no large pages",
)
def test_large_tensors_lie_in_large_pages() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "THP_"))}
    done = subprocess.run([sys.executable, "-c", LARGE_PAGES], capture_output=True, text=True, check=True, env=plain)
    assert int(done.stdout) > 200_000  # of 262,144 kB


def test_what_the_user_says_of_memory_stands(options: list[int], monkeypatch) -> None:
    memory.keep_freed_memory()
    assert sorted(options) == [-4, -2, -1]
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    memory.keep_freed_memory()
    assert len(options) == 3


def test_another_c_library_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: SimpleNamespace())
    memory.keep_freed_memory()


def test_denormal_numbers_are_flushed_on_all_threads() -> None:
    done = subprocess.run([sys.executable, "-c", DENORMALS], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 0


def test_denormal_numbers_are_flushed_while_training_alone(tmp_path: Path, monkeypatch) -> None:
    def product() -> float:
        return torch.full((1,), 1e-38).mul(1e-3).item()

    seen: list[float] = []
    step = TwoStepModule.training_step
    monkeypatch.setattr(TwoStepModule, "training_step", lambda *given: seen.append(product()) or step(*given))
    assert product() > 0
    train_with(["experiment=reasoning", "data.numbers=4", "trainer.max_epochs=1", f"paths.runs={tmp_path}"])
    assert seen == [0.0] and product() > 0

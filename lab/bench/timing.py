"""Times rounds of steps, and reads how much memory is held."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import quantiles

import psutil
import torch

Step = Callable[[], object]
MIB = 2**20


def timed_rounds(
    steps: Sequence[Step],
    seconds: float,
    minimum: int,
    device: str,
    alternate: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Runs every step once a round, until ``seconds`` have gone by and at least ``minimum`` rounds are done.

    Fewer rounds are enough once a minute, or ten times ``seconds`` if that is longer, has gone by.

    Args:
        steps: what to time.
        alternate: every second round runs the steps backwards (A B, B A), so that neither always comes first.
            Off where a step needs the one before it (backward after forward).
        clock: what a step is timed by.

    Returns:
        One list of seconds per step, all of the same length.
    """
    times: list[list[float]] = [[] for _ in steps]
    begin = time.perf_counter()
    patience = max(60.0, 10 * seconds)
    while (gone := time.perf_counter() - begin) < seconds or (len(times[0]) < minimum and gone < patience):
        order = list(range(len(steps)))
        if alternate and len(times[0]) % 2:
            order.reverse()
        for index in order:
            start = clock()
            steps[index]()
            synchronise(device)
            times[index].append(clock() - start)
    return times


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; a single value is all three."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    lower, median, upper = quantiles(values, n=4, method="inclusive")
    return lower, median, upper


def warm_up(steps: Sequence[Step], rounds: int, device: str) -> None:
    """Runs every step ``rounds`` times; one round of over two minutes (with compiling) is enough."""
    for _ in range(rounds):
        begin = time.perf_counter()
        for step in steps:
            step()
        synchronise(device)
        if time.perf_counter() - begin > 120:
            return


def matrix_product(dtype: torch.dtype, device: str) -> tuple[Step, int]:
    """Square matrix product, and its floating-point operations: the machine's best speed, to judge all else by."""
    side = 8192 if device == "cuda" else 2048
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return lambda: a @ b, 2 * side**3


def matrix_product_gflops(dtype: torch.dtype, device: str) -> float:
    """GFLOP/s of :func:`matrix_product`."""
    multiply, flops = matrix_product(dtype, device)
    warm_up([multiply], 1, device)
    (times,) = timed_rounds([multiply], seconds=0.5, minimum=3, device=device)
    return flops / quartiles(times)[1] / 1e9


def synchronise(device: str) -> None:
    """Waits for the GPU, where there is one: calls of its kernels return before they are done."""
    if device == "cuda":
        torch.cuda.synchronize()


def memory_now(device: str) -> int:
    """Bytes held now: resident set of the process, or torch's allocations on the GPU."""
    return torch.cuda.memory_allocated() if device == "cuda" else psutil.Process().memory_info().rss

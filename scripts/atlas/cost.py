"""Cost of a softmax: time of a training step divided by that of plain softmax, both timed by turns in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from lab.config.compose import compose_config
from lab.files import read_json, write_json
from lab.training.build import build_model_and_data
from scripts.atlas.columns import Column
from scripts.atlas.rows import PLAIN, Row

_ROUNDS = 31


def cost_of(column: Column, row: Row, kept: Path) -> float | None:
    """Median over rounds of (CPU time of a step) / (that of plain softmax), measured once and kept in a file.

    CPU time is that of all threads of the process, which other work on the machine does not lengthen. None where the
    cost is not kept and the data of a step are not on this machine.
    """
    costs: dict[str, float] = read_json(kept) if kept.exists() else {}
    key = f"{column.key}: {row.typed}"
    if key not in costs:
        try:
            ours, plain = (_step(column, one) for one in (row, Row(PLAIN)))
        except FileNotFoundError:
            return None
        ratios = []
        for place in range(_ROUNDS):
            # The first step of a round finds the caches as the round before left them, so the two are first by turns.
            order = (ours, plain) if place % 2 else (plain, ours)
            seconds = {step: _seconds(step) for step in order}
            ratios.append(seconds[ours] / seconds[plain])
        costs[key] = round(median(ratios[2:]), 3)
        write_json(kept, costs)
    return float(costs[key])


def _seconds(step: Callable[[], None]) -> float:
    begin = time.process_time()
    step()
    return time.process_time() - begin


def _step(column: Column, row: Row) -> Callable[[], None]:
    """Function that does one training step of a cell: forward pass, loss, backward pass, optimiser."""
    module, data = build_model_and_data(compose_config(column.overrides(row, None)))
    data.setup("fit")
    batch = data.on_after_batch_transfer(next(iter(data.train_dataloader())), 0)
    optimizer = torch.optim.AdamW(module.parameters())
    module.train()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        module.training_step(batch, 0).backward()
        optimizer.step()

    return step

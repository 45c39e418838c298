"""Measures how long a report takes to gather runs: first, and again with nothing new."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from lab.bench.cases import Case
from lab.config.compose import compose_config
from lab.files import csv_text
from lab.report.gather import INDEX, gather
from lab.runs.metrics import FILE as METRICS
from lab.runs.summary import Eureka, Summary, write_summary

EPOCHS = 300
# As the compact ViT logs: 117 steps an epoch, gradients every 50 steps, all else once an epoch.
STEPS, GRADIENTS_EVERY, LAYERS = 117, 50, 7
SEEDS = 10


def time_of_gathering(case: Case) -> dict[str, list[float]]:
    """Seconds of gathering ``case.batch`` runs, first and again, over five rounds (two if quick)."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        write_runs(root, case.batch)
        first: list[float] = []
        again: list[float] = []
        for _ in range(2 if case.quick else 5):
            (root / INDEX).unlink(missing_ok=True)
            for seconds, read in ((first, case.batch), (again, 0)):
                started = time.perf_counter()
                found = gather(root, case.threads)
                seconds.append(time.perf_counter() - started)
                assert (len(found.runs), found.read, len(found.damaged)) == (case.batch, read, 0)
    return {f"first, {case.batch:,} runs": first, f"again, {case.batch:,} runs": again}


def write_runs(root: Path, count: int, epochs: int = EPOCHS) -> None:
    """Writes run folders as training does, with random numbers: settings of SEEDS seeds, one learning rate each."""
    composed = compose_config(["experiment=main_task"])
    random = np.random.default_rng(0)
    metrics = [_metrics(random, epochs) for _ in range(SEEDS)]
    for number in range(count):
        setting, seed = divmod(number, SEEDS)
        lr, moment = 1e-4 * (setting + 1), int(random.integers(1, 2 * epochs))
        had = moment <= epochs
        when: dict[str, Any] = {"epoch": moment, "step": moment * STEPS, "accuracy": 0.75} if had else {}
        own = {"optim": {"lr": lr}, "seed": seed, "paths": {"run": str(root)}}
        summary = Summary(
            status="finished",
            experiment="main_task",
            softmax="softmax",
            seed=seed,
            overrides=("experiment=main_task", f"optim.lr={lr}", f"seed={seed}"),
            epochs=epochs,
            max_epochs=epochs,
            steps=epochs * STEPS,
            wall_seconds=3600.0,
            eureka=Eureka(happened=had, threshold=0.7, **when),
            metrics={"val/accuracy": 0.9 if had else 0.5},
        )
        folder = root / "main_task" / f"softmax,optim.lr={setting}" / f"seed={seed}"
        folder.mkdir(parents=True)
        write_summary(folder, summary)
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.merge(composed, own), resolve=True))
        (folder / METRICS).write_text(metrics[seed])


def _metrics(random: np.random.Generator, epochs: int) -> str:
    often = [f"gradient/{name}/layer_{layer}" for name in "kqv" for layer in range(LAYERS)]
    once = [f"temperature/tau/layer_{layer}" for layer in range(LAYERS)]
    once += ["train/accuracy", "train/learning_rate", "train/loss", "val/accuracy", "val/loss"]
    rows: list[dict[str, float]] = []
    for step in range(epochs * STEPS):
        names = [*(often if step % GRADIENTS_EVERY == 0 else []), *(once if step % STEPS == STEPS - 1 else [])]
        if names:
            numbers = {name: float(np.float32(random.random())) for name in names}
            rows.append({"step": step, "epoch": float(step // STEPS), **numbers})
    return csv_text(rows, ["step", "epoch", *sorted([*often, *once])])

"""Searches for a small vision setting that has its Eureka-moment on a CPU, and writes down all that was tried.

    python -m scripts.search.main_task_small --trials 40 --minutes 3

A trial is a point drawn at random from AXES, trained until its Eureka-moment or until its minutes or epochs are over;
trial i is the same on every machine. ``--only task=top_if_above lr=1e-3,3e-3`` keeps to a part of the space. Every call
adds to one table; stop it at any time, the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lab.console import LabError, refusals
from lab.runs.files import write_text
from lab.runs.folder import read_summary
from lab.runs.metrics import read_metrics
from lab.training.load import load_config
from scripts.reproduce.common import origin, tell_duration, train

# Axis -> the values it is searched over, as typed. A patch is a share of a tile: 1/1 is one token a tile.
AXES: dict[str, tuple[str, ...]] = {
    "task": (
        "main_task",
        "no_position",
        "top_if_above",
        "same_color",
        "color_or_fashion",
        "digit_grouping",
    ),
    "softmax": ("softmax", "norm_softmax", "norm_softmax_heat_treatment"),
    "tile": ("8", "14"),
    "patch": ("1/1", "1/2"),
    "statistic": ("var", "std"),
    "init": ("timm", "fan_in"),
    "positions": ("0.02", "0.2", "1"),
    "depth": ("2", "3", "4"),
    "head_dim": ("16", "32"),
    "lr": ("3e-4", "1e-3", "3e-3", "3e-2"),
    "batch": ("64", "256", "1024"),
    "decay": ("0", "1e-3", "0.05", "0.5"),
    "smoothing": ("0", "0.1"),
    "optimizer": ("adamw", "sgd"),
    # Standard deviation of W_Q and W_K at the start; null is as init says.
    "query_key": ("null", "0.02", "0.005", "0.001"),
    "tau": ("null", "1"),
    "mlp": ("2", "4"),
    "schedule": ("none", "cosine"),
    "warmup": ("0", "2"),
    # Scenes of an epoch, and epochs of a trial, at whose end a schedule is at its end, too.
    "epoch": ("15000", "60000"),
    "epochs": ("30", "100", "300"),
}
Point = Mapping[str, str]


def points(only: Mapping[str, Sequence[str]], count: int) -> Iterator[Point]:
    """The first ``count`` points of the random walk through AXES, kept to ``only``."""
    for index in range(count):
        draw = random.Random(f"trial {index}")
        yield {axis: draw.choice(list(only.get(axis, values))) for axis, values in AXES.items()}


def overrides(point: Point, minutes: float) -> list[str]:
    """The run of a point, as a user would type it, all but its seed."""
    side = int(point["tile"]) // int(point["patch"].split("/")[1])
    return [
        f"experiment={point['task']}",
        f"softmax={point['softmax']}",
        f"data.tile_size={point['tile']}",
        f"model.patch_size={side}",
        f"model.init={point['init']}",
        f"model.position_std={point['positions']}",
        f"model.depth={point['depth']}",
        f"model.head_dim={point['head_dim']}",
        "model.drop_path_rate=0",
        f"data.batch_size={point['batch']}",
        "data.validation_size=4000",
        f"optim.lr={point['lr']}",
        "optim.lr_reference_batch=null",
        *(["optim=sgd"] if point["optimizer"] == "sgd" else []),
        f"optim.schedule={point['schedule']}",
        f"optim.warmup_epochs={point['warmup']}",
        "optim.warmup_lr=1e-6",
        "optim.min_lr=1e-6",
        *([f"softmax.{name}={point[name]}" for name in ("statistic", "tau")] if _normed(point["softmax"]) else []),
        f"model.query_key_std={point['query_key']}",
        f"model.mlp_ratio={point['mlp']}",
        f"optim.weight_decay={point['decay']}",
        f"optim.label_smoothing={point['smoothing']}",
        f"data.epoch_size={point['epoch']}",
        f"trainer.max_epochs={point['epochs']}",
        f"trainer.max_time={{minutes:{minutes:g}}}",
        "callbacks.eureka.stop_after=0",
    ]


def _normed(softmax: str) -> bool:
    return softmax.startswith("norm")


def row_of(folder: Path) -> dict[str, Any] | None:
    """A trial's row, told by its run folder alone; None before it has an end."""
    summary = read_summary(folder)
    # One that was broken off before its moment has not had its minutes.
    moment = summary.get("eureka", {}).get("happened")
    if summary.get("status") != "finished" and not moment:
        return None
    config = load_config(folder)
    eureka, last, optim, model = summary["eureka"], summary["metrics"], config.optim, config.model
    losses = [row["val/loss"] for row in read_metrics(folder / "metrics.csv") if "val/loss" in row]
    return {
        "task": config.data.task._target_.split(".")[-2],
        "softmax": summary["softmax"],
        "canvas": 2 * config.data.tile_size,
        "patch": model.patch_size,
        "statistic": config.softmax.statistic if _normed(summary["softmax"]) else "",
        "init": model.init,
        "positions": model.position_std,
        "depth": model.depth,
        "heads x dim": f"{model.heads} x {model.head_dim}",
        "lr": optim.lr,
        "batch": config.data.batch_size,
        "decay": optim.weight_decay,
        "smoothing": optim.label_smoothing,
        "optimizer": optim.name,
        "W_Q, W_K": model.get("query_key_std") or "",
        "tau": config.softmax.tau or "" if _normed(summary["softmax"]) else "",
        "mlp": model.mlp_ratio,
        "schedule": optim.schedule,
        "warm-up epochs": optim.warmup_epochs,
        "scenes an epoch": config.data.epoch_size,
        "epochs": config.trainer.max_epochs,
        "seed": summary["seed"],
        "threads": summary["machine"]["threads"],
        "minutes": round(summary["wall_seconds"] / 60, 1),
        "million samples": round(summary["samples"] / 1e6, 2),
        "Eureka (minutes)": f"{eureka['wall_seconds'] / 60:.1f}" if eureka["happened"] else "none",
        "Eureka (million samples)": f"{eureka['samples'] / 1e6:.2f}" if eureka["happened"] else "none",
        "best accuracy": round(100 * summary["best"]["accuracy"], 1),
        "last accuracy": round(100 * last.get("val/accuracy", math.nan), 1),
        "best val loss": round(min(losses, default=math.nan), 3),
    }


def table(runs: Path, before: Path | None = None) -> pd.DataFrame:
    """All trials below a folder, those with a Eureka-moment first, then by accuracy.

    Args:
        runs: folder of the runs; those that were set aside (``seed=0~1``) are no trials of their own.
        before: an earlier table; trials whose runs are no longer there stay in it.
    """
    folders = [path.parent for path in sorted(runs.rglob("summary.json")) if "~" not in path.parent.name]
    rows = [{**row, "run": folder.relative_to(runs).as_posix()} for folder in folders if (row := row_of(folder))]
    frame = pd.DataFrame(rows)
    if before is not None and before.exists():
        old = pd.read_csv(before, dtype=str, keep_default_na=False)
        gone = old[~old["run"].isin(frame["run"])] if {"run"} <= {*old} & {*frame} else old
        frame = pd.concat([frame, gone]).fillna("")
    if frame.empty:
        return frame
    order = frame.assign(missed=frame["Eureka (minutes)"] == "none", best=frame["best accuracy"].astype(float))
    return frame.iloc[order.reset_index(drop=True).sort_values(["missed", "best"], ascending=[True, False]).index]


def write(runs: Path, out: Path, command: str) -> None:
    """The table as CSV and as a page."""
    frame = table(runs, before=out / "trials.csv")
    write_text(out / "trials.csv", frame.to_csv(index=False))
    write_text(
        out / "trials.md",
        f"# All trials of the search for `experiment=main_task_small`\n\n{origin(command)} A trial ends at its "
        "Eureka-moment (validation accuracy above 70 %) or when its minutes or epochs are over; accuracies in %, on "
        f"4,000 fixed validation scenes.\n\n{frame.drop(columns='run', errors='ignore').to_markdown(index=False)}\n",
    )


def main(arguments: argparse.Namespace) -> None:
    """Runs the trials that are missing; the table is written after each."""
    only = dict(part.split("=", 1) for part in arguments.only)
    if unknown := set(only) - set(AXES):
        raise LabError(f"--only knows no axis {', '.join(sorted(unknown))}; valid: {', '.join(AXES)}")
    shared = [f"threads={arguments.threads}"] if arguments.threads else []
    tell_duration(f"{arguments.trials} trials", 60 * arguments.minutes * arguments.trials)
    allowed = {axis: values.split(",") for axis, values in only.items()}
    for point in points(allowed, arguments.trials):
        train([*overrides(point, arguments.minutes), *shared, f"seed={arguments.seed}"], arguments.runs)
        write(arguments.runs, arguments.out, arguments.command)
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    import sys

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=40, help="how many points, from the first on")
    parser.add_argument("--minutes", type=float, default=3.0, help="of each trial")
    parser.add_argument("--only", nargs="*", default=[], metavar="AXIS=A,B", help="values to draw from, as typed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--runs", type=Path, default=Path("runs/main_task_small"))
    parser.add_argument("--out", type=Path, default=Path("results/main_task_small"))
    parsed = parser.parse_args()
    parsed.command = " ".join(["python -m scripts.search.main_task_small", *sys.argv[1:]])
    with refusals():
        main(parsed)

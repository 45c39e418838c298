"""`make demo`: trains a transformer that has its Eureka-moment on the reasoning task, and one that has none."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lab.config.arguments import Parser
from lab.config.overrides import quoted
from lab.console import refusals
from lab.datasets.reasoning import PLATEAU
from lab.plotting.curves import accuracy_figure
from lab.plotting.figures import save_figure
from lab.runs.spec import run_name
from lab.runs.summary import load_summary
from lab.training.processes import train_apart


def demo(runs: Path, seed: int, epochs_after: int, limit: int) -> int:
    """Trains NormSoftmax until shortly after its Eureka-moment, then softmax for as many epochs."""
    console = Console()
    console.print(
        "The reasoning task: given [b]a b c d =[/b], answer c if exactly one of a and b is even, else d.\n"
        "Which of c and d it is, nobody tells the transformer. Any of the 11 numbers is right by chance in "
        f"{1 / 11:.1%} of all inputs; always giving the likelier of c and d reaches {PLATEAU:.1%}: the plateau.\n"
    )
    stop = f"callbacks.eureka.stop_after={epochs_after}"
    norm = train("norm_softmax", runs, seed, [f"trainer.max_epochs={limit}", stop])
    plain = train("softmax", runs, seed, [f"trainer.max_epochs={load_summary(norm).epochs}"])
    folders = {"softmax": plain, "NormSoftmax": norm}
    console.print(table(folders))
    picture = runs / "demo.png"
    save_figure(accuracy_figure(folders, "epoch (full-batch steps)", "Reasoning task"), picture)
    console.print(f"Both curves:      {picture}", soft_wrap=True, highlight=False)
    console.print(f"In TensorBoard:   {tensorboard()} --logdir {runs}", soft_wrap=True, highlight=False)
    return 1 if load_summary(norm).moment is None else 0


def train(softmax: str, runs: Path, seed: int, settings: list[str]) -> Path:
    """Runs ``python -m lab.train`` as a user would, and returns the run folder."""
    # At the preset's 5e-3 a slingshot (Eureka-moments, A.17) throws seed 0 back to the plateau right after its moment.
    overrides = ["experiment=reasoning", f"softmax={softmax}", "optim.lr=2e-3", f"seed={seed}", *settings]
    typed = [*overrides, f"paths.runs={quoted(runs)}"]
    print(f"$ python -m lab.train {' '.join(typed)}", flush=True)
    if status := train_apart(typed):
        sys.exit(status)
    print(flush=True)
    return runs / run_name("reasoning", softmax, seed, overrides)


def table(folders: dict[str, Path]) -> Table:
    """Table of the runs: softmax, whether and when it had its Eureka-moment, steps trained, accuracy."""
    result = Table(title="Reasoning task")
    for heading in ("softmax", "Eureka-moment", "at step", "steps", "accuracy"):
        result.add_column(heading, justify="left" if heading == "softmax" else "right")
    for name, folder in folders.items():
        summary = load_summary(folder)
        step = summary.eureka.step
        accuracy = "-" if summary.accuracy is None else f"{summary.accuracy:.1%}"
        result.add_row(
            name, "no" if step is None else "yes", "-" if step is None else f"{step:,}", f"{summary.steps:,}", accuracy
        )
    return result


def tensorboard() -> str:
    """The TensorBoard command beside this Python, as a relative path where possible."""
    command = Path(sys.executable).parent / "tensorboard"
    try:
        return str(command.relative_to(Path.cwd()))
    except ValueError:
        return str(command)


if __name__ == "__main__":
    parser = Parser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/demo"), help="folder of the two runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs-after", type=int, default=300, help="epochs trained after the Eureka-moment")
    parser.add_argument("--limit", type=int, default=6000, help="epochs after which NormSoftmax gives up")
    arguments = parser.parse_args()
    with refusals():
        sys.exit(demo(arguments.runs, arguments.seed, arguments.epochs_after, arguments.limit))

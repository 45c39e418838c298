"""Makes the pictures of the gallery in the documentation.

    python -m scripts.gallery --main-task runs/main_task/softmax/seed=0

Trains the reasoning task with and without a Eureka-moment under all diagnostics, and runs the diagnostics on
the checkpoint of a run of the main task.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from hydra.utils import instantiate
from matplotlib.figure import Figure

from lab.config.arguments import Parser
from lab.config.command_line import composed
from lab.console import LabError, refusals
from lab.files import write_atomically, write_text
from lab.plotting.curves import gradient_figure
from lab.plotting.figures import same_axes, save_figure
from lab.report.figures import shares_of_v
from lab.runs.summary import load_summary
from lab.training.inspection import inspect
from scripts.reproduce.common import positive, run_options
from scripts.reproduce.seeds import Seeds

DIAGNOSTICS = (
    "attention_entropy",
    "attention_gradients",
    "attention_maps",
    "attention_mass",
    "attention_scores",
    "code_length",
    "linear_probes",
    "logit_spread",
    "temperature_in_use",
)
# Pictures of a finished run that the page shows, where the run has them.
SHOWN = (
    "attention_entropy_layers",
    "attention_gradients_maps",
    "attention_maps_heads",
    "attention_maps_layers",
    "attention_mass_layers",
    "linear_probes_answer",
)
SOFTMAXES = ("softmax", "norm_softmax")


def reasoning(softmax: str, runs: Path, epochs: int, options: Sequence[str]) -> Path:
    """Trains the reasoning task under all diagnostics and returns the run folder."""
    overrides = [
        "experiment=reasoning",
        f"softmax={softmax}",
        # With layer norm plain softmax would have its moment, too, within the 2,000 epochs.
        "model.layer_norm=false",
        f"trainer.max_epochs={epochs}",
        f"callbacks=[reasoning,{','.join(DIAGNOSTICS)}]",
        f"diagnostics.every_n_epochs={max(1, epochs // 40)}",
        f"diagnostics.pictures_every_n_epochs={epochs}",
        *options,
    ]
    seeds = Seeds(typed=tuple(overrides), seeds=(0,), runs=runs)
    if not seeds.train():
        raise LabError(f"the run under {softmax} has failed, as told above")
    return seeds.folder(0)


def history(runs: Mapping[str, Path], out: Path) -> None:
    """Redraws the pictures over training from the runs' tables; the same picture has the same axes for all runs."""
    moments = {softmax: load_summary(run).eureka.shown_step for softmax, run in runs.items()}
    for name in DIAGNOSTICS:
        one = instantiate(composed([f"callbacks=[{name}]"]).config.callbacks[name], folder="unused")
        drawn: dict[str, Figure] = {}
        for softmax, run in runs.items():
            if (path := run / "diagnostics" / f"{name}.csv").exists():
                figure = one.history(pd.read_csv(path), moments[softmax])
                drawn |= {softmax: figure} if figure is not None else {}
        _save_beside(drawn, name, out)
    _save_beside({softmax: gradient_figure(run) for softmax, run in runs.items()}, "gradient_norms", out)


def _save_beside(drawn: Mapping[str, Figure], name: str, out: Path) -> None:
    same_axes(list(drawn.values()))
    for softmax, figure in drawn.items():
        for path in save_figure(figure, out / softmax / f"{name}.png"):
            print(f"written: {path}")


def look(run: Path, out: Path) -> None:
    """Copies pictures of a trained model; where they are missing, first draws them from the run's checkpoint."""
    found = run.parent / f"{run.name}_look"
    if not (found / "pictures").exists():
        inspect(run, [f"callbacks=[{','.join(DIAGNOSTICS)}]"], out=found)
    for path in (found / "pictures").glob("*/*.png"):
        if (name := f"{path.parent.name}_{path.stem}") in SHOWN:
            _copy(path, out / f"{name}.png")


def told(run: Path) -> str:
    """Tells in numbers what a run's pictures show: its Eureka-moment, the gradients before it; and where it ran."""
    summary = load_summary(run)
    moment = summary.eureka
    said = f"Eureka-moment at epoch {moment.epoch:,} of" if moment.epoch is not None else "no Eureka-moment in"
    shares = " and ".join(f"{name} {share:.2g}" for name, share in shares_of_v(run, moment.step).items())
    when = "before the moment" if moment.epoch is not None else "over all steps"
    gradients = f" Gradients {when}, as a median share of W_V's: {shares}." if shares else ""
    commit = summary.git.commit
    origin = [
        summary.machine.get("processor"),
        (summary.started or "")[:10],
        f"commit {commit[:8]}" if commit else None,
    ]
    where = ", ".join(filter(None, origin))
    return (
        f"`{summary.experiment}` under **{summary.softmax}**: {said} {summary.epochs:,} epochs.{gradients}"
        f"{f' ({where}.)' if where else ''}"
    )


def _copy(path: Path, to: Path) -> None:
    with path.open("rb") as source:
        write_atomically(to, lambda file: shutil.copyfileobj(source, file))
    print(f"written: {to}")


def main() -> None:
    """The command line."""
    parser = Parser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/gallery"))
    parser.add_argument("--out", type=Path, default=Path("docs/pictures/gallery"))
    parser.add_argument("--epochs", type=positive, default=2000, help="of the reasoning task")
    parser.add_argument("--threads", type=positive, default=None)
    parser.add_argument("--main-task", type=Path, default=None, help="a run folder of the main task to look into")
    arguments = parser.parse_args()
    options = run_options(arguments.threads)
    if arguments.main_task is not None:
        load_summary(arguments.main_task)  # before any training
    runs = {softmax: reasoning(softmax, arguments.runs, arguments.epochs, options) for softmax in SOFTMAXES}
    history(runs, arguments.out)
    for softmax, run in runs.items():
        look(run, arguments.out / softmax)
        # The page includes this file as an item of a list, so that no number of these runs is typed by hand.
        write_text(arguments.out / softmax / "told.txt", f"- {told(run)}\n")
    if arguments.main_task is not None:
        look(arguments.main_task, arguments.out / "main_task")
        norms = gradient_figure(arguments.main_task)
        save_figure(norms, arguments.out / "main_task" / "gradient_norms.png")
        write_text(arguments.out / "main_task" / "told.txt", f"- {told(arguments.main_task)}\n")


if __name__ == "__main__":
    with refusals():
        main()

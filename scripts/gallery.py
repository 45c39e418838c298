"""Makes the pictures of the gallery in the documentation.

    python -m scripts.gallery --main-task runs/main_task/softmax/seed=0

Trains the reasoning task with and without a Eureka-moment under all diagnostics, and looks into a run of the main task.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from lab.inspect import inspect
from lab.plotting.curves import gradient_figure
from lab.plotting.figures import save_figure
from lab.runs.files import write_atomically
from lab.runs.summary import load_summary
from scripts.reproduce.common import folder_of, train

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
SOFTMAXES = ("softmax", "norm_softmax")


def reasoning(softmax: str, runs: Path, epochs: int, options: list[str]) -> Path:
    """Trains the reasoning task under all diagnostics; the run folder."""
    overrides = [
        "experiment=reasoning",
        f"softmax={softmax}",
        "optim.lr=5e-3",
        f"trainer.max_epochs={epochs}",
        f"callbacks=[reasoning,{','.join(DIAGNOSTICS)}]",
        f"diagnostics.every_n_epochs={max(1, epochs // 40)}",
        f"diagnostics.pictures_every_n_epochs={epochs}",
        *options,
    ]
    train([*overrides, "seed=0"], runs)
    return folder_of(runs, "reasoning", softmax, 0, overrides)


def collect(run: Path, out: Path, suffix: str = "") -> None:
    """Copies a run's pictures; of those of one moment, the last."""
    pictures = run / "pictures"
    for path in pictures.glob("*.png"):
        _copy(path, out / path.name)
    for folder in (path for path in pictures.iterdir() if path.is_dir()):
        for path in folder.glob(f"*{suffix}.png"):
            _copy(path, out / f"{folder.name}_{path.stem.split('_epoch_')[0]}.png")


def _copy(path: Path, to: Path) -> None:
    with path.open("rb") as source:
        write_atomically(to, lambda file: shutil.copyfileobj(source, file))
    print(f"written: {to}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/gallery"))
    parser.add_argument("--out", type=Path, default=Path("docs/pictures/gallery"))
    parser.add_argument("--epochs", type=int, default=2000, help="of the reasoning task")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--main-task", type=Path, default=None, help="a run folder of the main task to look into")
    arguments = parser.parse_args()
    options = [f"threads={arguments.threads}"] if arguments.threads else []
    for softmax in SOFTMAXES:
        run = reasoning(softmax, arguments.runs, arguments.epochs, options)
        collect(run, arguments.out / softmax, f"epoch_{arguments.epochs:05d}")
        print(f"{softmax}: {load_summary(run)}")
    if arguments.main_task is not None:
        look = arguments.runs / "main_task_look"
        if not (look / "pictures").exists():
            chosen = ",".join(d for d in DIAGNOSTICS if d != "temperature_in_use")
            inspect(arguments.main_task, [f"callbacks=[{chosen}]"], out=look)
        collect(look, arguments.out / "main_task")
        norms = gradient_figure(arguments.main_task)
        save_figure(norms, arguments.out / "main_task" / "gradient_norms.png")


if __name__ == "__main__":
    main()

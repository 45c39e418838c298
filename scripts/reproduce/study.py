"""Studies small enough for two cores: language, in-context learning, induction, and the local learning coefficient.

    python -m scripts.reproduce.study language --threads 1      # trains what is missing, then writes results/language
    python -m scripts.reproduce.study in_context --minutes 60
    python -m scripts.reproduce.study language --page           # the page of what there is

Stop it at any time: the same command goes on where it was. What has been run is kept beside the page
(``results/<study>/runs``, without checkpoints), so that any machine goes on with what is missing.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab.config.arguments import Parser
from lab.console import LabError, refusals
from lab.files import write_text
from lab.report.make import report
from lab.report.settings import planned
from lab.runs.summary import Summary, is_finished
from lab.training.inspection import inspect
from scripts.reproduce.common import markdown, origin, positive, run_options, sentences, train, within
from scripts.reproduce.kept import keep_run
from scripts.reproduce.seeds import Seeds

KEPT = "runs"


@dataclass(frozen=True)
class Part:
    """Softmaxes compared on an experiment.

    Attributes:
        experiment: config of ``configs/experiment``.
        options: overrides of every run.
        softmaxes: plain softmax first; each by its name and overrides, separated by spaces.
        looks: diagnostics that are run on the trained model of each softmax's first seed.
        pictures: diagnostics that run during training, whose picture of each softmax's first seed is shown.
        seeds: number of seeds, from 0 on.
    """

    experiment: str
    options: tuple[str, ...]
    softmaxes: tuple[str, ...]
    looks: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    seeds: int = 3

    def overrides(self, softmax: str) -> list[str]:
        """Overrides of the runs of a softmax, all but the seed."""
        name, *own = softmax.split()
        return [f"experiment={self.experiment}", f"softmax={name}", *own, *self.options]

    def runs_of(self, softmax: str, runs: Path) -> Seeds:
        """The runs of a softmax."""
        return Seeds(typed=tuple(self.overrides(softmax)), seeds=tuple(range(self.seeds)), runs=runs)

    def keep(self, softmax: str, seed: int, runs: Path, kept: Path) -> Summary | None:
        """Copies a run below ``runs`` to the runs kept beside the page; returns its summary, None without a run."""
        folder = self.runs_of(softmax, runs).folder(seed)
        return keep_run(folder, kept / folder.relative_to(runs), planned([*self.overrides(softmax), f"seed={seed}"]))

    def runs(self, folder: Path) -> Iterator[tuple[str, int, Path]]:
        """Softmax, seed and folder of each run, seed by seed: a stopped study then has pairs of equal seeds."""
        for seed in range(self.seeds):
            for softmax in self.softmaxes:
                yield softmax, seed, self.runs_of(softmax, folder).folder(seed)


@dataclass(frozen=True)
class Study:
    """Parts that a page is made of.

    Attributes:
        title: heading.
        told: what is smaller here than published.
        parts: in the order of training.
    """

    title: str
    told: str
    parts: tuple[Part, ...]


# Small enough for nine runs an hour on one core.
_TEXT = ("data.vocabulary=2048", "data.block=64", "data.batch_size=32", "model.width=128")
STUDIES = {
    "language": Study(
        "Language in small",
        "WikiText-2 (a subset), byte-level BPE of 2,048 tokens, blocks of 64, batches of 32, 4 layers and 4 heads "
        "of width 128: the presets `causal_language_small` and `masked_language_small` made smaller still. The "
        "Eureka-moment is the first validation loss below 0.9 of the unigram entropy.",
        (
            Part(
                "causal_language_small",
                (*_TEXT, "data.epoch_size=1600", "trainer.max_epochs=30"),
                ("softmax", "norm_softmax", "norm_softmax softmax.statistic=std", "learnable_temperature"),
                ("head_entropy",),
            ),
            Part(
                "masked_language_small",
                (*_TEXT, "model.dropout=0.0", "data.epoch_size=3200", "trainer.max_epochs=30"),
                ("softmax", "norm_softmax", "norm_softmax softmax.statistic=std"),
            ),
        ),
    ),
    "in_context": Study(
        "In-context learning in small",
        "Omniglot's two small sets with turns and mirror images, 28 pixels, a small ResNet and two layers. "
        "The Eureka-moment is the first few-shot accuracy over the two labels of the sequence above 70 %; guessing "
        "gives 50 %.",
        (
            Part(
                "in_context_small",
                ("trainer.max_epochs=20", "callbacks.eureka.stop_after=3"),
                ("softmax", "norm_softmax", "norm_softmax softmax.statistic=std"),
                seeds=5,
            ),
        ),
    ),
    "induction": Study(
        "Induction heads",
        "Random tokens that repeat (`experiment=induction`), a GPT-2 of two layers, 20 steps an epoch. Runs end 20 "
        "epochs after their Eureka-moment, the first accuracy above 70 %. One who copies any token of a sequence is "
        "right on 6.6 %.",
        (
            Part(
                "induction",
                ("callbacks=[induction,induction_heads]", "callbacks.eureka.stop_after=20"),
                (
                    "softmax",
                    "norm_softmax",
                    "norm_softmax softmax.statistic=std",
                    "heat_treatment",
                    "learnable_temperature",
                ),
                pictures=("induction_heads",),
                seeds=5,
            ),
        ),
    ),
    "learning_coefficient": Study(
        "Local learning coefficient across the Eureka-moment",
        "The small reasoning task; 4 chains of 1,600 Langevin steps every 50 epochs, of which the last 100 count "
        "(Lau et al. 2023).",
        (
            Part(
                "reasoning_small",
                ("callbacks=[reasoning,learning_coefficient]", "callbacks.learning_coefficient.every_n_epochs=50"),
                ("softmax", "norm_softmax"),
                pictures=("learning_coefficient",),
            ),
        ),
    ),
}
# Columns of the report's table of settings that the page repeats, by the ends of their names: a name may begin with
# the metric that is watched.
_SHOWN = (
    "setting", "seeds finished", "Eureka-ratio", " at the end", " at the end, %", "accuracy after the moment, %",
    "accuracy without one, %", "median epoch to the moment", "change point, median epoch", ", difference", ", p",
)  # fmt: skip


def page(key: str, runs: Path, out: Path) -> str:
    """Writes the report of a study, runs diagnostics on its trained models, and returns the text of the page."""
    study, kept = STUDIES[key], out / KEPT
    asked = [(part, *run) for part in study.parts for run in part.runs(runs)]
    missing = {
        kept / folder.relative_to(runs): f"{part.experiment} {softmax} seed {seed}"
        for part, softmax, seed, folder in asked
        if part.keep(softmax, seed, runs, kept) is None
    }
    if len(missing) == len(asked):
        raise LabError(f"neither {runs} nor {kept} holds a run of the study: leave out --page to train them")
    # What is kept of a run that is missing is of another configuration.
    report([kept], out=out / "report", without=missing, processes=None)
    settings = pd.read_csv(out / "report" / "settings.csv", dtype=str).fillna("")
    text = [f"# {study.title}", origin(), study.told, *sentences(out)]
    for part in study.parts:
        own = settings[settings["experiment"] == part.experiment]
        if not len(own):
            continue
        columns = [name for name in map(str, own) if name.endswith(_SHOWN) and own[name].any()]
        typed = " ".join(part.overrides("..."))
        text += [f"## {part.experiment}", f"`python -m lab.train {typed} seed=...`"]
        text.append(markdown(own[columns]))
        for name in ("loss_by_epoch", "accuracy_by_epoch", "survival", "change_points", "temperatures"):
            file = Path("report") / "figures" / f"{part.experiment}_{name}.png"
            text += [f"![{name.replace('_', ' ')}]({file})"] if (out / file).exists() else []
        text += list(_looks(part, runs, out))
    if missing:
        text += [f"Not run: {', '.join(missing.values())}."]
    text.append("Intervals, p-values and every run are explained in [the report](report/report.md).")
    return "\n\n".join(text) + "\n"


def _looks(part: Part, runs: Path, out: Path) -> Iterator[str]:
    """Pictures of diagnostics, as paragraphs; pictures that were made stay when the runs are gone."""
    for softmax, seed, folder in part.runs(runs):
        if seed:
            continue
        here, called = is_finished(folder), softmax.replace(" ", ",")
        for name in part.pictures:
            own = out / "pictures" / f"{part.experiment}_{called}_{name}.png"
            drawn = folder / "pictures" / f"{name}.png"
            if here and drawn.exists():
                own.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(drawn, own)
            if not own.exists():
                continue
            yield f"{name.replace('_', ' ').capitalize()} over training, {softmax}, seed {seed}:"
            yield f"![{name}]({own.relative_to(out)})"
        found = out / "looks" / part.experiment / called
        if part.looks and here:
            inspect(folder, [f"callbacks=[{','.join(part.looks)}]"], out=found, force=True)
        for picture in sorted(found.rglob("*.png")):
            yield f"{picture.parent.name.replace('_', ' ').capitalize()}, {softmax}, seed {seed}:"
            yield f"![{picture.stem}]({picture.relative_to(out)})"


def main(typed: Sequence[str]) -> None:
    """Trains what is missing of a study, and writes its page."""
    parser = Parser(description=__doc__)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--runs", type=Path, help="folder of the runs; default: runs/<study>")
    parser.add_argument("--out", type=Path, help="folder of the page; default: results/<study>")
    parser.add_argument("--minutes", type=float, help="stop after so many; the same command goes on")
    parser.add_argument("--threads", type=positive, help="CPU threads of each run")
    parser.add_argument("--page", action="store_true", help="write the page of what is there; train nothing")
    arguments = parser.parse_args(typed)
    study = STUDIES[arguments.study]
    runs = arguments.runs or Path("runs") / arguments.study
    out = arguments.out or Path("results") / arguments.study
    further = run_options(arguments.threads)
    with within(arguments.minutes):
        for part in study.parts if not arguments.page else ():
            for softmax, seed, _ in part.runs(runs):
                one = part.keep(softmax, seed, runs, out / KEPT)
                if one is None or not one.finished:
                    train([*part.overrides(softmax), *further, f"seed={seed}"], runs)
                    part.keep(softmax, seed, runs, out / KEPT)
    write_text(out / "README.md", page(arguments.study, runs, out))
    print(f"written: {out}")


if __name__ == "__main__":
    with refusals():
        main(sys.argv[1:])

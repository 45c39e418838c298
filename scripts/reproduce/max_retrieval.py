"""Table 1 and Figures 2, 4, 5 and 6 of "softmax is not enough": max retrieval far beyond the trained sizes.

    python -m scripts.reproduce.max_retrieval            # trains ten seeds together, then evaluates
    python -m scripts.reproduce.max_retrieval evaluate   # evaluates the newest checkpoints, while others train on
    python -m scripts.reproduce.max_retrieval evaluate --softmax norm_softmax --softmax "softmax softmax.tau=0.5"
    python -m scripts.reproduce.max_retrieval --penalty decoupled                 # another reading of its L2 penalty

Every ``--softmax`` is one more row: any softmax, swapped in at inference time. Which ``--penalty`` agrees best with the
paper: ``python -m scripts.reproduce.max_retrieval_penalties``.
Stop it at any time: the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from omegaconf import DictConfig

from lab.config.arguments import Parser
from lab.console import LabError, refusals
from lab.files import write_text
from lab.models.composed_softmax import refuse_schedule, softmax_config
from lab.observation.dispersion import fit_beta
from lab.plotting.figures import save_figure
from lab.report.published import load
from lab.report.statistics import mean_over_seeds, paired
from lab.training.load import read_trained
from scripts.reproduce.common import markdown, origin, positive, run_options, sentences, speed_of, tell_duration
from scripts.reproduce.max_retrieval_evaluation import SIZES, Evaluation, Points, sets_of
from scripts.reproduce.max_retrieval_figures import attention_figure, entropy_figure, fit_figure
from scripts.reproduce.seeds import Seeds

STEPS = 100_000
PAPER = {row.label: row.cells for row in load("softmax_is_not_enough/table_1").rows}
BASELINE, ADAPTIVE, REFITTED = "baseline", "adaptive", "adaptive, refitted"
# Measures that the paper has, too -> its row.
ROWS = {BASELINE: "Baseline", ADAPTIVE: "Adaptive θ"}


@dataclass(frozen=True)
class Penalty:
    """A reading of "L2 regularisation with lambda = 0.001" (A.4).

    Attributes:
        words: what it is.
        overrides: of its runs.
    """

    words: str
    overrides: tuple[str, ...] = ()


GRADIENT = "gradient"
_ON_MATRICES = "optim.decay_matrices_only=true"
# By name. The first is what optax.adamw(weight_decay=1e-3) of JAX does, and the paper's code is in JAX.
PENALTIES = {
    "decoupled": Penalty("AdamW, 1e-3, decoupled decay 1e-3", ("optim.name=adamw",)),
    GRADIENT: Penalty("Adam, 1e-3, L2 penalty whose gradient is 1e-3 w"),
    "twice": Penalty("Adam, 1e-3, L2 penalty whose gradient is 2e-3 w", ("optim.weight_decay=2e-3",)),
}
PENALTIES |= {
    f"{name}_matrices": Penalty(f"{one.words}, not on biases", (*one.overrides, _ON_MATRICES))
    for name, one in PENALTIES.items()
}


def published(row: str, size: int) -> str:
    """A cell of the paper's Table 1."""
    return str(PAPER[row][f"size_{size}"])


def by_seed(scores: pd.DataFrame, measure: str, size: int) -> dict[int, float]:
    """Accuracy in % of each seed."""
    own = scores[(scores["measure"] == measure) & (scores["size"] == size)]
    return dict(zip(own["seed"].tolist(), (100 * own["accuracy"]).tolist(), strict=True))


def mean_told(scores: pd.DataFrame, measure: str, size: int, digits: int) -> str:
    """Mean accuracy over seeds, with an interval of so many digits where there is one: "89.5 (88.7 to 90.3)"."""
    mean = mean_over_seeds(list(by_seed(scores, measure, size).values()), bounds=(0, 100))
    return f"{mean.value:.1f}" + ("" if mean.low is None else f" ({mean.interval(digits)})")


def p_value(one: Mapping[int, float], other: Mapping[int, float]) -> str:
    """P-value of a paired t-test over seeds; "" where there is none."""
    found = paired(one, other).p if len(one) > 1 else None
    return "" if found is None else f"{found:.1g}"


def table(scores: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds at every size beside the paper's rows, and p-values of paired t-tests against the baseline."""
    rows: dict[str, list[str]] = {}
    measures = list(scores["measure"].unique())
    by = {measure: {size: by_seed(scores, measure, size) for size in SIZES} for measure in measures}
    for measure in measures:
        means = [mean_over_seeds(list(by[measure][size].values()), bounds=(0, 100)) for size in SIZES]
        rows[f"{measure}, here"] = [f"{mean.value:.1f}" for mean in means]
        rows[f"{measure}, 95 % interval"] = [mean.interval(1) for mean in means]
        if measure in ROWS:
            rows[f"{measure}, paper"] = [published(ROWS[measure], size) for size in SIZES]
    for measure in measures[1:]:
        rows[f"p-value of {measure}, here"] = [p_value(by["baseline"][size], by[measure][size]) for size in SIZES]
    rows["p-value of adaptive, paper"] = [published("p-value", size) for size in SIZES]
    return pd.DataFrame(rows, index=[f"{size:,}" for size in SIZES]).T.rename_axis("accuracy in %")


def beside_the_paper(scores: pd.DataFrame) -> list[str]:
    """One sentence per measure: at which sizes the paper's mean lies outside the interval measured here."""
    told = []
    for measure, row in ROWS.items():
        outside, judged = [], 0
        for size in SIZES:
            mean = mean_over_seeds(list(by_seed(scores, measure, size).values()), bounds=(0, 100))
            paper = PAPER[row][f"size_{size}"].mean
            if mean.low is None or mean.high is None or paper is None:
                continue
            judged += 1
            if not mean.low <= paper <= mean.high:
                outside.append(f"{size:,} ({paper:g} there, {mean.value:.1f} here)")
        if not judged:
            continue
        where = "lies in it at every size"
        if judged < len(SIZES):
            where = f"lies in it at {judged} of {len(SIZES)} sizes, the others have no interval"
        if outside:
            where = f"lies outside at {len(outside)} of {judged} sizes: {', '.join(outside)}"
        told.append(f"{measure.capitalize()}: the paper's mean {where}.")
    return told


@dataclass(frozen=True)
class Asked:
    """Evaluation that was asked for.

    Attributes:
        sets: test sets of each size.
        fit_sets: sets of each size and seed for the fit of Figure 5.
        more: further softmaxes, each by its name and overrides, separated by spaces.
    """

    sets: int
    fit_sets: int
    more: Sequence[str] = ()

    def rules(self, coefficients: str = "") -> dict[str, DictConfig]:
        """Row -> its softmax; the refitted one only where its coefficients are given.

        Raises:
            LabError: if one of ``more`` is no softmax, or has a schedule.
        """
        adaptive = "adaptive_temperature"
        rules = {BASELINE: softmax_config("softmax"), ADAPTIVE: softmax_config(adaptive)}
        if coefficients:
            rules[REFITTED] = softmax_config(adaptive, f"softmax.coefficients=[{coefficients}]")
        for text in self.more:
            if not text.strip():
                raise LabError("--softmax needs a name, as in --softmax 'norm_softmax softmax.statistic=std'")
            name, *overrides = text.split()
            try:
                rules[text] = softmax_config(name, *overrides)
            except LabError as error:
                raise LabError(f"--softmax {text!r}: {error}") from error
            refuse_schedule(rules[text], f"--softmax {text!r}")
        return rules


def evaluations(folders: Sequence[Path]) -> list[Evaluation]:
    """Evaluations of the newest checkpoints, each read once: all softmaxes get the same weights even if runs train on.

    Raises:
        LabError: if there is no checkpoint.
    """
    return [Evaluation(folder, read_trained(folder), seed) for seed, folder in enumerate(folders)]


def evaluate(folders: Sequence[Path], out: Path, asked: Asked, trained: str = PENALTIES[GRADIENT].words) -> None:
    """Writes everything in the paper that the newest checkpoints can give, as a page with pictures.

    Args:
        folders: of the runs, by seed.
        out: folder of the page.
        asked: sets, and further softmaxes.
        trained: how the runs were trained, in words.

    Raises:
        LabError: if a run has no checkpoint, or a softmax does not exist.
    """
    rules, seeds = asked.rules(), evaluations(folders)
    items = sum(one.items_left(rules, asked.sets, asked.fit_sets) for one in seeds)
    if items:
        seconds = items * seeds[0].seconds_per_item({**rules, REFITTED: rules[ADAPTIVE]})
        tell_duration(f"evaluation of {len(seeds)} seeds", seconds)
    points = Points.of_all([one.points(asked.fit_sets) for one in seeds])
    own = ",".join(f"{value:.4f}" for value in fit_beta(points.entropies, points.betas))
    rules = asked.rules(own)
    tables = []
    for one in seeds:
        tables.append(one.accuracies(rules, asked.sets))
        print(f"seed {one.seed}: evaluated", flush=True)
    scores = pd.concat(tables)
    write_text(out / "accuracies.csv", scores.to_csv(index=False))
    shown = {name: seeds[0].trained.model(rules[name]) for name in (BASELINE, ADAPTIVE)}
    save_figure(attention_figure(shown), out / "figure_2_and_6.png", pdf=True)
    save_figure(entropy_figure(), out / "figure_4.png", pdf=True)
    save_figure(fit_figure(points, [float(value) for value in own.split(",")]), out / "figure_5.png", pdf=True)
    steps = " or ".join(f"{step:,}" for step in sorted({one.trained.step for one in seeds}))
    write_text(out / "README.md", page(scores, points, own, f"{steps} of {STEPS:,} steps", asked.sets, trained, out))
    print(f"written: {out}")


def page(
    scores: pd.DataFrame,
    points: Points,
    coefficients: str,
    steps: str,
    sets: int,
    trained: str,
    out: Path,
) -> str:
    """The page of results."""
    fewer = [f"{sets_of(size, sets):,} of {size:,}" for size in SIZES if sets_of(size, sets) < sets]
    told = f"{sets:,} test sets of each size" + (f" ({', '.join(fewer)} items)" if fewer else "") + " for each seed"
    return "\n\n".join(
        [
            '# "softmax is not enough": max retrieval beyond the trained sizes',
            origin(),
            f"{scores['seed'].nunique()} seeds, {steps} on sets of 5 to 16 items ({trained}); {told}. Every number by "
            "seed is in [accuracies.csv](accuracies.csv).",
            *sentences(out),
            "## Table 1",
            markdown(table(scores), index=True, stralign="right"),
            "Intervals are Student's over seeds. " + " ".join(beside_the_paper(scores)),
            "## Figures 2 and 6: attention over the 16 largest items of 32 sets (seed 0), as their number doubles",
            "![Attention](figure_2_and_6.png)",
            "## Figure 4: entropy against temperature",
            "![Entropy](figure_4.png)",
            "## Figure 5: the polynomial, fitted again",
            f"{len(points.betas):,} sets of 16 to 16,384 items, whose largest item has not the largest logit, of all "
            f"seeds, none of them a test set. {points.without:,} more were left out: no temperature makes their "
            "largest item heavier than uniform attention does. To use it:",
            f"```\nsoftmax=adaptive_temperature softmax.coefficients=[{coefficients}]\n```",
            "![Fit](figure_5.png)\n",
        ]
    )


def seeds_of(penalty: Penalty, runs: Path, seeds: int, threads: int | None = None) -> Seeds:
    """The runs of plain softmax under a penalty: so many seeds, trained together."""
    typed = ("experiment=max_retrieval", "softmax=softmax", *penalty.overrides)
    further = run_options(threads)
    return Seeds(typed=typed, seeds=tuple(range(seeds)), runs=runs, further=further, together=True)


def main(arguments: argparse.Namespace) -> None:
    """Trains what is missing, unless told only to evaluate."""
    penalty = PENALTIES[arguments.penalty]
    seeds = seeds_of(penalty, arguments.runs, arguments.seeds, arguments.threads)
    asked = Asked(arguments.sets, arguments.fit_sets, arguments.softmax)
    asked.rules()  # before the training: a wrong name is told at once
    if arguments.what == "all":
        if left := seeds.left(STEPS, "steps"):
            seconds = left * speed_of([*seeds.overrides, *seeds.as_one, "data.epoch_steps=100"]).per_step
            tell_duration(f"{left:,} steps of {arguments.seeds} seeds together, then their evaluation", seconds)
        if not seeds.train():
            sys.exit(1)
    # The page of another reading must not replace that of the default one.
    other = "" if arguments.penalty == GRADIENT else f"_{arguments.penalty}"
    evaluate(seeds.folders, arguments.out or Path(f"results/max_retrieval{other}"), asked, penalty.words)


if __name__ == "__main__":
    parser = Parser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "evaluate"), default="all")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument(
        "--out", type=Path, help="of the page; default: results/max_retrieval, of another penalty with its name"
    )
    parser.add_argument("--seeds", type=positive, default=10)
    parser.add_argument("--penalty", choices=list(PENALTIES), default=GRADIENT, help="reading of the L2 penalty")
    parser.add_argument("--sets", type=positive, default=1000, help="test sets of each size")
    parser.add_argument("--fit-sets", type=positive, default=60, help="of each size and seed, for the fit of Figure 5")
    parser.add_argument(
        "--softmax", action="append", default=[], metavar="NAME", help="a further row: a softmax and its overrides"
    )
    parser.add_argument("--threads", type=positive, default=None, help="CPU threads of the training")
    with refusals():
        main(parser.parse_args())

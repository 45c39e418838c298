"""Max retrieval of "softmax is not enough" under every reading of its "L2 regularisation with lambda = 0.001".

    python -m scripts.reproduce.max_retrieval_penalties --minutes 240 --threads 1
    python -m scripts.reproduce.max_retrieval_penalties --page                    # the page of what is there

Three readings, each with biases in the penalty and without, three seeds each; then ten seeds of the reading whose
baseline comes closest to the paper's Table 1, with all results of ``scripts.reproduce.max_retrieval``.
Stop it at any time: the same command goes on where it was. Results of a reading whose seeds have all finished are kept
beside the page (results/max_retrieval_penalties), and stay when the runs are gone.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from lab.attention.layers import MultiHead
from lab.config.arguments import Parser
from lab.console import LabError, refusals
from lab.files import write_text
from lab.observation.attention_statistics import logit_spread
from lab.runs.summary import Summary
from scripts.reproduce.common import markdown, origin, positive, seconds_a_step, sentences, tell_duration, within
from scripts.reproduce.max_retrieval import (
    BASELINE,
    PAPER,
    PENALTIES,
    ROWS,
    STEPS,
    Asked,
    by_seed,
    evaluate,
    evaluations,
    mean_told,
    published,
    seeds_of,
)
from scripts.reproduce.max_retrieval_evaluation import SIZES, Evaluation, batches, logits_and_largest, sets_of
from scripts.reproduce.seeds import Seeds

FIRST, THEN = 3, 10
# Sizes of sets at which logits are measured: the largest trained size, and the one at which the baseline is farthest
# from the paper's.
TOLD = (16, 1024)
# Files beside the page, by reading and seed: accuracies of the baseline, and size of the logits.
ACCURACIES, NORMS = "accuracies.csv", "norms.csv"


@dataclass(frozen=True)
class Plan:
    """Plan of all runs.

    Attributes:
        runs: their folder.
        out: folder of the page, and of what is kept beside it.
        threads: CPU threads of each run.
        sets: test sets of each size.
        fit_sets: sets of each size and seed for the fit of Figure 5.
    """

    runs: Path
    out: Path
    threads: int | None
    sets: int
    fit_sets: int

    def seeds_of(self, penalty: str, seeds: int = FIRST) -> Seeds:
        """The first ``seeds`` seeds of a reading."""
        return seeds_of(PENALTIES[penalty], self.runs, seeds, self.threads)

    def kept(self, file: str) -> pd.DataFrame:
        """Rows of a file beside the page, by reading and seed; none before the file is written."""
        path = self.out / file
        return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["penalty", "seed", "size", "sets"])

    def whole(self, penalty: str) -> bool:
        """Tells whether the first seeds of a reading are kept, or have been trained to their end."""
        return penalty in self.measured() or self.seeds_of(penalty).finished

    def measured(self) -> set[str]:
        """Readings whose accuracies are kept, each on as many test sets as are asked for.

        Raises:
            LabError: if some are kept for another number of test sets, and their runs are gone.
        """
        found = self.kept(ACCURACIES)
        asked = [sets_of(size, self.sets) for size in found["size"]]
        unlike = set(found["penalty"][found["sets"] != asked])
        if gone := [penalty for penalty in unlike if not self.seeds_of(penalty).finished]:
            raise LabError(
                f"{self.out / ACCURACIES} holds {', '.join(gone)} on another number of test sets than "
                f"--sets {self.sets}, and their runs are not below {self.runs}: give the number they were tested on"
            )
        return set(found["penalty"]) - unlike

    def known(self) -> list[Summary]:
        """Summaries of finished seeds that trained ``FIRST`` together, as many as are to be trained now."""
        found = [one for penalty in PENALTIES for one in self.seeds_of(penalty, THEN).summaries()]
        return [one for one in found if one is not None and one.finished and one.seeds_together == FIRST]


@torch.no_grad()
def norms(evaluation: Evaluation) -> dict[str, float]:
    """Size of the logits: ||W_Q||_F ||W_K||_F, and the mean spread (largest minus smallest logit) at some sizes."""
    model = evaluation.trained.model()
    (layer,) = [module for module in model.modules() if isinstance(module, MultiHead)]
    weights = layer.projections()
    found = {"norm": float(weights["q"].norm() * weights["k"].norm())}
    for size in TOLD:
        logits, _ = logits_and_largest(model, next(batches(size, 64, evaluation.seed)))
        found[f"spread_{size}"] = float(logit_spread(logits).mean())
    return found


Scores = Mapping[str, pd.DataFrame]  # reading -> its accuracies


def distance(scores: pd.DataFrame) -> float:
    """Mean distance of the baseline from the paper's over all sizes, in percentage points."""
    found = []
    for size in SIZES:
        paper = PAPER[ROWS[BASELINE]][f"size_{size}"].mean
        assert paper is not None
        own = by_seed(scores, BASELINE, size).values()
        found.append(abs(sum(own) / len(own) - paper))
    return sum(found) / len(found)


def closest(scores: Scores) -> str:
    """Names the penalty whose baseline comes closest to the paper's."""
    return min(scores, key=lambda name: distance(scores[name]))


def table(scores: Scores) -> pd.DataFrame:
    """The baseline under each penalty beside the paper's: mean over seeds and Student's interval at every size."""
    rows = {"paper": [*(published(ROWS[BASELINE], size) for size in SIZES), ""]}
    for name, found in scores.items():
        rows[name] = [*(mean_told(found, BASELINE, size, 0) for size in SIZES), f"{distance(found):.1f}"]
    columns = [*(f"{size:,}" for size in SIZES), "mean distance"]
    return pd.DataFrame(rows, index=columns).T.rename_axis("baseline, accuracy in %")


def norms_table(found: pd.DataFrame) -> pd.DataFrame:
    """Size of the logits under each penalty: mean over seeds, and the smallest and largest seed."""
    names = {"norm": "norm of W_Q times norm of W_K"} | {f"spread_{n}": f"spread of logits, {n:,} items" for n in TOLD}
    rows = {
        penalty: {
            title: f"{own[key].mean():.1f} ({own[key].min():.1f} to {own[key].max():.1f})"
            for key, title in names.items()
        }
        for penalty, own in found.groupby("penalty", sort=False)
    }
    return pd.DataFrame(rows).T.rename_axis("penalty")


def measure(plan: Plan) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """Measures and keeps accuracies, by reading, and logit sizes of every reading whose first seeds have finished."""
    known = plan.measured()
    accuracies, sizes = (found[found["penalty"].isin(known)] for found in map(plan.kept, (ACCURACIES, NORMS)))
    for penalty in PENALTIES:
        if penalty in known or not plan.seeds_of(penalty).finished:
            continue
        seeds = evaluations(plan.seeds_of(penalty).folders)
        rules = {BASELINE: Asked(plan.sets, plan.fit_sets).rules()[BASELINE]}
        own = pd.concat([one.accuracies(rules, plan.sets) for one in seeds]).assign(penalty=penalty)
        accuracies = pd.concat([accuracies, own]) if len(accuracies) else own
        own = pd.DataFrame([{"penalty": penalty, "seed": one.seed, **norms(one)} for one in seeds])
        sizes = pd.concat([sizes, own]) if len(sizes) else own
        write_text(plan.out / ACCURACIES, accuracies.to_csv(index=False))
        write_text(plan.out / NORMS, sizes.to_csv(index=False))
    order = {name: found for name in PENALTIES if len(found := accuracies[accuracies["penalty"] == name])}
    return order, sizes


def page(plan: Plan) -> str:
    """The page of what is there."""
    scores, sizes = measure(plan)
    missing = [name for name in PENALTIES if name not in scores]
    text = [
        '# "softmax is not enough": the readings of its L2 penalty',
        origin(),
        f'A.4 says "L2 regularisation with hyperparameter lambda = 0.001". {FIRST} seeds of each reading, {STEPS:,} '
        f"steps; {plan.sets:,} test sets of each size (fewer of the largest).",
        "\n".join(f"- {name}: {one.words}" for name, one in PENALTIES.items()),
        *sentences(plan.out),
    ]
    if scores:
        text += [markdown(table(scores), index=True, stralign="right")]
        text += [
            f"Intervals are Student's over {FIRST} seeds. The last column is the mean over all sizes of how far the "
            "mean over seeds is from the paper's, in percent points. Every number by seed is in "
            f"[{ACCURACIES}]({ACCURACIES}) and [{NORMS}]({NORMS})."
        ]
        text += ["## Size of the logits", markdown(norms_table(sizes), index=True, stralign="right")]
        text += ["Means over seeds, and the smallest and the largest seed."]
    best = closest(scores) if len(scores) == len(PENALTIES) else None
    if best is not None and (plan.out / best / "README.md").exists():
        text += [
            f"## Ten seeds of the closest: {best}",
            f"[Table 1 and Figures 2, 4, 5 and 6]({best}/README.md). Chosen by its first {FIRST} seeds because it is "
            f"closest to the paper, so that only seeds {FIRST} to {THEN - 1} say anew whether it agrees.",
        ]
    text += [f"Not run: {', '.join(missing)}."] if missing else []
    return "\n\n".join(text) + "\n"


def main(arguments: argparse.Namespace) -> None:
    """Trains what is missing, and writes the page after every reading."""
    plan = Plan(arguments.runs, arguments.out, arguments.threads, arguments.sets, arguments.fit_sets)

    def write() -> None:
        write_text(arguments.out / "README.md", page(plan))

    left = [name for name in PENALTIES if not plan.whole(name)]
    if not arguments.page:
        steps = sum(plan.seeds_of(name).left(STEPS, "steps") for name in left)
        if steps:
            probe = plan.seeds_of(left[0])
            typed = [*probe.overrides, *probe.as_one, "data.epoch_steps=100"]
            seconds = steps * seconds_a_step(plan.known(), typed)
            what = (
                f"{len(left)} readings, {steps:,} steps of {FIRST} seeds together, and then {THEN} seeds of the closest"
            )
            tell_duration(f"{what}: the first part", seconds)
        with within(arguments.minutes):
            for name in left:
                plan.seeds_of(name).train()
                write()
            if all(plan.whole(name) for name in PENALTIES):
                chosen = closest(measure(plan)[0])
                ten = plan.seeds_of(chosen, THEN)
                if ten.train():
                    asked = Asked(plan.sets, plan.fit_sets)
                    evaluate(ten.folders, arguments.out / chosen, asked, PENALTIES[chosen].words)
    write()
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    parser = Parser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("results/max_retrieval_penalties"), help="folder of the page")
    parser.add_argument("--sets", type=positive, default=1000, help="test sets of each size")
    parser.add_argument("--fit-sets", type=positive, default=60, help="of each size and seed, for the fit of Figure 5")
    parser.add_argument("--minutes", type=float, help="stop after so many; the same command goes on")
    parser.add_argument("--threads", type=positive, default=None, help="CPU threads of the training")
    parser.add_argument("--page", action="store_true", help="write the page of what is there; train nothing")
    with refusals():
        main(parser.parse_args())

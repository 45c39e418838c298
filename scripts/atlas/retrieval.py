"""Max retrieval far beyond the trained sizes: softmaxes that models train with, and those swapped in at inference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
from omegaconf import DictConfig

from lab.console import LabError
from lab.models.composed_softmax import softmax_config, softmax_factory
from lab.training.load import read_trained
from scripts.atlas.rows import PLAIN, Row, all_rows
from scripts.reproduce.common import markdown
from scripts.reproduce.max_retrieval import PAPER, by_seed, mean_told, p_value, published
from scripts.reproduce.max_retrieval_evaluation import SIZES, Evaluation
from scripts.reproduce.seeds import Seeds

# Softmaxes that models train with, in this order. The baseline comes first: other softmaxes are swapped into its
# checkpoints.
TRAINED = (
    PLAIN,
    "softmax_plus_one softmax.normaliser.bias=learned",
    "log_length",
    "entropy_matched",
    "sigmoid",
    "norm_softmax",
    "learnable_temperature",
    "query_key_norm",
)
# Not a row of the atlas: at the trained length it is plain softmax, and other tasks have no other length.
_FURTHER = ("log_length softmax.form=sqrt_log_ratio",)


@cache
def swapped() -> tuple[str, ...]:
    """Softmaxes that can be swapped into the trained baseline: those without learned parameters and schedule."""
    typed = [*(row.typed for row in all_rows() if row.typed != PLAIN), *_FURTHER]
    return tuple(one for one in typed if _learns_nothing(softmax_config(*one.split())))


def _learns_nothing(config: DictConfig) -> bool:
    if config.get("schedule"):
        return False
    softmax = softmax_factory(config)
    parts = softmax.rule(heads=1, head_dim=1), softmax.normaliser(heads=1, head_dim=1)
    return not any(list(part.parameters()) for part in parts)


FILE = "max_retrieval.csv"
COLUMNS = ("seed", "measure", "size", "sets", "accuracy")


@dataclass(frozen=True)
class Retrieval:
    """Plan of the column of max retrieval.

    Attributes:
        runs: folder of all runs of the atlas.
        kept: file of accuracies by seed, beside the page: what was whole stays whole when its runs are gone.
        seeds: number of seeds of each trained softmax but the baseline.
        baseline_seeds: number of seeds of plain softmax, with which the others are compared at inference.
        sets: test sets of each size.
        further: overrides of every run that do not change its numbers.
    """

    runs: Path
    kept: Path
    seeds: int = 3
    baseline_seeds: int = 10
    sets: int = 1000
    further: tuple[str, ...] = ()

    def seeds_of(self, typed: str) -> Seeds:
        """The runs that train with a softmax."""
        row = Row(typed)
        return Seeds(
            typed=("experiment=max_retrieval", *row.overrides),
            seeds=tuple(range(self.baseline_seeds if typed == PLAIN else self.seeds)),
            runs=self.runs / "max_retrieval",
            further=self.further,
            together=True,
        )

    def whole(self, typed: str) -> bool:
        """True if every seed has finished, or their accuracies are kept."""
        return str(Row(typed)) in self._known() or self.seeds_of(typed).finished

    def _known(self) -> set[str]:
        """Measures that are kept; each is kept only with all of its seeds."""
        return set(self._kept()["measure"])

    def _kept(self) -> pd.DataFrame:
        return pd.read_csv(self.kept) if self.kept.exists() else pd.DataFrame(columns=COLUMNS)

    def _measures(self, typed: str) -> dict[str, str]:
        """Rows that the runs of a trained softmax give: name of the row -> softmax as typed."""
        put_on = swapped() if typed == PLAIN else ()
        return {str(Row(typed)): typed} | {f"{Row(other)}, at inference": other for other in put_on}

    def scores(self) -> pd.DataFrame:
        """Accuracies of everything that is whole; rows of seed, measure, size, sets, accuracy."""
        tables, known = [self._kept()], self._known()
        for typed in TRAINED:
            missing = {name: one for name, one in self._measures(typed).items() if name not in known}
            if not missing or not self.seeds_of(typed).finished:
                continue
            configs = {}
            for measure, one in missing.items():
                name, *options = one.split()
                try:
                    configs[measure] = softmax_config(name, *options)
                except LabError as error:
                    print(f"{measure}: {error}", flush=True)
            for seed, folder in enumerate(self.seeds_of(typed).folders):
                tables.append(Evaluation(folder, read_trained(folder), seed).accuracies(configs, self.sets))
        found = [one for one in tables if len(one)]
        return pd.concat(found) if found else self._kept()


def table(scores: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy in % at every size, with p-values of paired t-tests against the baseline, beside the paper's."""
    rows: dict[str, list[str]] = {}
    for measure in scores["measure"].unique():
        cells = []
        for size in SIZES:
            own, baseline = by_seed(scores, measure, size), by_seed(scores, PLAIN, size)
            common = len(own.keys() & baseline.keys())
            p = p_value(own, baseline) if measure != PLAIN and common > 1 else ""
            cells.append(mean_told(scores, measure, size, 1) + (p and f", p = {p}"))
        rows[f"{measure} [{len(by_seed(scores, measure, SIZES[0]))} seeds]"] = cells
    rows |= {f"{row}, paper": [published(row, size) for size in SIZES] for row in PAPER if row != "p-value"}
    return pd.DataFrame(rows, index=[f"{size:,}" for size in SIZES]).T.rename_axis("accuracy in %")


def section(plan: Retrieval, scores: pd.DataFrame) -> list[str]:
    """The column as paragraphs of the page."""
    missing = [str(Row(typed)) for typed in TRAINED if not plan.whole(typed)]
    told = f"Not run yet, or not whole: {', '.join(missing)}." if missing else "Every row has been run."
    if not len(scores):
        return ["## Max retrieval to 16,384 items", told]
    return [
        "## Max retrieval to 16,384 items",
        f"Trained for 100,000 steps on sets of 5 to 16 items; {plan.sets:,} test sets of each size (fewer of the "
        'largest) and seed. Rows "at inference" are put on the trained plain softmax. Intervals are Student\'s over '
        f"seeds, p-values of paired t-tests over equal seeds against plain softmax, not corrected. {told}",
        markdown(table(scores), index=True),
    ]

"""Table 1 of Eureka-moments in Transformers, main dataset: every row, as many seeds as there is time for.

    python -m scripts.reproduce.table_1 10                      # or: scripts/reproduce/table1_main.sh 10
    python -m scripts.reproduce.table_1 2 data.batch_size=256   # further overrides are those of every run

On one NVIDIA GPU, unless an override says otherwise. Seed by seed, so that every row is there early; the rows are those
of configs/sweep/table_1.yaml, which ``-m +sweep=table_1`` runs row by row. Their learning rates are those of the
paper's headline runs (5e-4 ViT, 1e-4 heat treatment, 1e-5 NormSoftmax), where it names them; rows without one take the
ViT's. Stop it at any time: the same command goes on with what is missing. ``python -m lab.report`` makes the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from lab.config.compose import CONFIGS
from lab.config.overrides import read_override
from lab.console import LabError, refusals
from lab.runs.spec import RunSpec
from lab.runs.summary import read_summary
from scripts.reproduce.common import speed_of, tell_duration, train

# Of every run, unless a further override says otherwise.
READY = ("trainer=gpu", "compile=true")
SWEEP = CONFIGS / "sweep" / "table_1.yaml"


def rows() -> list[str]:
    """The table's rows, by their names in configs/row/."""
    listed: str = yaml.safe_load(SWEEP.read_text())["hydra"]["sweeper"]["params"]["+row"]
    return listed.split(",")


@dataclass(frozen=True)
class Left:
    """A run that is not finished.

    Attributes:
        overrides: as typed.
        samples: that it has still to go through, those of its validations among them.
    """

    overrides: list[str]
    samples: float


def missing(seeds: int, further: Sequence[str]) -> list[Left]:
    """Lists what is still to run, seed by seed.

    Raises:
        LabError: if the overrides do not compose.
    """
    left: list[list[Left]] = [[] for _ in range(seeds)]
    given = {read_override(one).key for one in further}
    ready = [one for one in READY if read_override(one).key not in given]
    for row in rows():
        typed = ["experiment=main_task", *ready, f"+row={row}", *further]
        spec = RunSpec.compose(typed)
        config = spec.config
        # A validation is a third of a training: there is no backward pass.
        epoch = config.data.epoch_size + config.data.validation_size / 3
        for seed, runs in enumerate(left):
            summary = read_summary(spec.changed(seed=seed).folder)
            if summary is None or not summary.finished:
                epochs = config.trainer.max_epochs - (summary.epochs if summary else 0)
                runs.append(Left([*typed, f"seed={seed}"], epochs * epoch))
    return [run for runs in left for run in runs]


def main(seeds: int, further: Sequence[str]) -> None:
    """Trains what is missing; a run that fails does not end the others.

    Raises:
        LabError: if the overrides do not compose, nothing can be trained here, or runs have failed.
    """
    left = missing(seeds, further)
    if left:
        speed = speed_of(left[0].overrides)
        what = f"{len(left)} of {len(rows()) * seeds} runs ({len(rows())} rows, {seeds} seeds)"
        tell_duration(what, sum(run.samples for run in left) * speed.per_sample)
    failed = [run.overrides for run in left if not train(run.overrides)]
    if failed:
        raise LabError(f"{len(failed)} runs failed, for the reasons above: {'; '.join(map(' '.join, failed))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="?", type=int, default=10, help="number of seeds, from 0 on")
    parser.add_argument("further", nargs="*", help="overrides of every run, such as trainer=cpu paths.runs=elsewhere")
    arguments = parser.parse_args()
    with refusals():
        main(arguments.seeds, arguments.further)

"""Figures and tables of the papers as data: the runs that each is made of, what is there, and how long the rest takes.

``figures/<paper>_<number>.yaml`` says what a figure is drawn of and how, ``settings.yaml`` what its runs are.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import getmembers, isfunction, signature
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import ConfigDict, Field

from lab.config.overrides import read_override
from lab.config.suggestions import choices
from lab.config.typed_file import read_typed
from lab.console import LabError, counted, duration, tell
from lab.datasets.cache import cache, read_arrays, write_arrays
from lab.runs.provenance import git_state
from lab.training.build import build_data
from scripts.reproduce.common import of_this_machine, speed_of, this_machine
from scripts.reproduce.seeds import Seeds

HERE = Path(__file__).resolve().parent
SizeName = Literal["published", "small"]
SIZES: tuple[SizeName, ...] = ("published", "small")
PAPERS = {
    "eureka": "Eureka-Moments in Transformers",
    "softmax": '"softmax is not enough"',
}
# What functions of ``drawings`` return, by the key of a figure's file that names them.
DRAWN: dict[str, Any] = {"draw": Figure, "numbers": tuple[str, pd.DataFrame]}
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Setting:
    """One setting of a family: the paper's name for it, and its overrides."""

    label: str
    overrides: tuple[str, ...] = ()

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Family:
    """Runs that share all but their setting and their seed.

    Attributes:
        size: "published", or "small" for two cores.
        always: overrides of every run.
        seed: the first one.
        settings: by name.
        probe: further overrides for the few steps that measure how fast it trains.
        together: whether seeds can be trained as one batched model.
        note: what a reader of its pictures has to know.
    """

    size: SizeName
    always: tuple[str, ...]
    seed: int
    settings: dict[str, Setting]
    probe: tuple[str, ...] = ()
    together: bool = False
    note: str = ""

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Size:
    """A figure at one size; what is left out is as at its published size.

    Attributes:
        family: whose runs are drawn.
        runs: setting -> number of seeds.
        options: of the drawing, in place of the figure's own.
        notes: what a reader of this size has to know.
    """

    family: str
    runs: dict[str, Annotated[int, Field(ge=1)]] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class FigureSpec:
    """A figure of a paper.

    Attributes:
        name: of its file, "eureka_4".
        title: what it is of.
        shows: what the paper's figure shows, in our words.
        draw: its layout, a function of ``drawings``: "training.gradient_norms".
        options: arguments of the layout.
        numbers: what tells the same in numbers, a function of ``drawings``: "numbers.gradient_shares".
        published, small: its runs; None where there is no such size.
        script: a script of its own that trains, draws and writes ``page``, in place of the layout and runs above.
        page: what that script writes, in this repository.
        notes: what a reader has to know.
    """

    name: str
    title: str
    shows: str
    draw: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    numbers: str | None = None
    published: Size | None = None
    small: Size | None = None
    script: str | None = None
    page: str | None = None
    notes: tuple[str, ...] = ()

    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        if (self.draw is None) == (self.script is None) or (self.script is None) != (self.page is None):
            raise ValueError("a figure has either draw, or script and page")
        if self.draw is not None and (self.published is None or self.published.runs is None):
            raise ValueError("published is missing, or has no runs")
        for key, kind in DRAWN.items():
            if name := getattr(self, key):
                self._check_drawing(key, name, drawings(kind))

    def _check_drawing(self, key: str, name: str, valid: Mapping[str, Callable[..., Any]]) -> None:
        """Refuses a function of ``drawings`` that does not exist or takes other options, before any training."""
        if name not in valid:
            raise ValueError(f"{key}: {name} does not exist; {choices(name, list(valid))}")
        for size in filter(None, map(self.at, SIZES)):
            try:
                signature(valid[name]).bind((), **size.options)
            except TypeError as error:
                raise ValueError(f"options: {name} takes others ({error})") from error

    @property
    def number(self) -> str:
        """Name as typed: "eureka:4"."""
        return self.name.replace("_", ":", 1)

    @property
    def heading(self) -> str:
        """Heading of its page: "Figure 4 of Eureka-Moments in Transformers"."""
        paper, _, number = self.name.partition("_")
        return f"Figure {number} of {PAPERS[paper]}"

    def at(self, size: SizeName) -> Size | None:
        """Its runs and the options of its drawing at a size, in full; None where it has no such size."""
        own = getattr(self, size)
        if own is None or self.published is None:
            return None
        return replace(own, runs=own.runs or self.published.runs, options={**self.options, **own.options})


@dataclass(frozen=True, kw_only=True)
class Run(Seeds):
    """The runs of one setting, one per seed.

    Attributes:
        family: by name.
        name: of the setting.
        label: as the paper calls it.
        probe: further overrides to measure its speed with.
    """

    family: str
    name: str
    label: str
    probe: tuple[str, ...] = ()

    def epochs_left(self) -> int:
        """Epochs still to train; of seeds that train together, those of the one that has come least far."""
        return self.left(int(self.spec.config.trainer.max_epochs))


class Speeds:
    """Seconds per epoch, by experiment, model and number of seeds that train together.

    Taken from runs of this machine, else measured once by a few steps without diagnostics and validations, and kept in
    the user's cache until the lab's commit changes.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, str | None, int], float | LabError] = {}

    @functools.cached_property
    def _checkout(self) -> dict[str, Any]:
        return git_state()

    def seconds_an_epoch(self, run: Run) -> float:
        """Seconds of one epoch of a run on this machine.

        Raises:
            LabError: if it does not train here.
        """
        key = (run.spec.experiment, run.spec.choices.get("model"), len(run.seeds) if run.together else 1)
        if key not in self._known:
            try:
                self._known[key] = self._of_runs(run) or self._measured(run)
            except LabError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, LabError):
            raise found
        return found

    def _of_runs(self, run: Run) -> float | None:
        known = of_this_machine(run.summaries())
        return next((one.wall_seconds / one.epochs for one in known if one.epochs), None)

    def _measured(self, run: Run) -> float:
        data = build_data(run.spec.config.data)
        try:
            samples = len(data.train_dataloader()) * data.samples_per_batch
        except FileNotFoundError as error:
            raise LabError(str(error)) from error
        # Diagnostics also run before the first step, which would take longer than all steps of this measurement.
        watched = [one for one in run.overrides if not one.startswith("callbacks")]
        # A GPU takes as long for a few samples as for a whole batch.
        smaller = run.probe if run.spec.config.trainer.accelerator == "cpu" else ()
        asked = [*watched, *smaller, *run.as_one]
        path = _place_of_speed(asked, self._checkout)
        kept = read_arrays(path) if path else None
        if kept is None:
            together = f", {counted(len(run.seeds), 'seed')}" if run.together else ""
            what = f"{run.spec.experiment} ({run.spec.choices.get('model')}{together})"
            tell(f"measuring how fast {what} trains here, without its diagnostics ...")
            kept = {"seconds_a_sample": np.array(speed_of(asked, steps=6).per_sample)}
            if path:
                write_arrays(path, kept)
        return samples * float(kept["seconds_a_sample"])

    def seconds_left(self, runs: Sequence[Run]) -> float:
        """Seconds that the missing parts of these runs take; where no run is there yet, of the training steps alone."""
        left = {run: run.epochs_left() for run in dict.fromkeys(runs)}
        return sum(epochs * self.seconds_an_epoch(run) for run, epochs in left.items() if epochs)

    def left(self, runs: Sequence[Run]) -> str:
        """Time that missing runs take, in words for a list, or why they cannot be trained here."""
        try:
            return f"about {duration(self.seconds_left(runs))}"
        except LabError as error:
            # The list needs only the reason: the overrides before it in the message are known from the row.
            return f"cannot be trained here: {str(error).rpartition(' does not train here: ')[2]}"


def _place_of_speed(overrides: Sequence[str], state: Mapping[str, Any]) -> Path | None:
    """The file in the user's cache for the speed of a training on this machine, at this commit; None if there is none.

    There is none outside a checkout, or in one with changes, which may make it faster.

    Args:
        overrides: of the training.
        state: of the checkout (:func:`lab.runs.provenance.git_state`).
    """
    if state["commit"] is None or state["modified"]:
        return None
    here = {**this_machine(), "threads": torch.get_num_threads()}
    told = json.dumps([list(overrides), here, state["commit"], torch.__version__])
    return cache() / "speeds" / f"{hashlib.blake2b(told.encode(), digest_size=8).hexdigest()}.npz"


class Listed(NamedTuple):
    """A row of ``--list``.

    Attributes:
        name: of a figure or table, as typed.
        size: of its runs.
        known: what can be said at once.
        runs: of which some may be missing.
    """

    name: str
    size: SizeName
    known: str
    runs: Sequence[Run] = ()


def how_many_there(runs: Sequence[Run]) -> str:
    """Number of finished runs, one per seed: "3 of 8 runs"."""
    there = sum(one is not None and one.finished for run in runs for one in run.summaries())
    return f"{there} of {sum(len(run.seeds) for run in runs)} runs"


def listed(rows: Sequence[Listed]) -> Iterator[str]:
    """A line for each row: what is done. Then, for each with missing runs, how long these take.

    The time is measured, which takes minutes: each line is given as soon as it is known.
    """
    names, sizes = (max(map(len, column)) for column in zip(*(row[:2] for row in rows), strict=True))
    yield from (f"{row.name:{names}}  {row.size:{sizes}}  {row.known}" for row in rows)
    missing = [row for row in rows if any(run.epochs_left() for run in row.runs)]
    if missing:
        yield "\nTo train the missing runs on this machine takes:"
    speeds = Speeds()
    for row in missing:
        yield f"{row.name:{names}}  {row.size:{sizes}}  {speeds.left(row.runs)}"


@functools.cache
def families() -> Mapping[str, Family]:
    """All families, by name.

    Raises:
        LabError: if the file is wrong.
    """
    return read_typed(HERE / "settings.yaml", dict[str, Family])


@functools.cache
def drawings(kind: Any) -> Mapping[str, Callable[..., Any]]:
    """The functions of ``drawings`` that return a ``kind``, by the names that figures' files have for them."""
    found = {}
    for path in (HERE / "drawings").glob("[!_]*.py"):
        module = import_module(f"scripts.reproduce.drawings.{path.stem}")
        for name, function in getmembers(module, isfunction):
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if own and signature(function, eval_str=True).return_annotation == kind:
                found[f"{path.stem}.{name}"] = function
    return found


def names() -> list[str]:
    """All figures, by paper and number: "eureka:1b", ..., "softmax:6"."""
    found = [path.stem.replace("_", ":", 1) for path in (HERE / "figures").glob("*.yaml")]
    return sorted(found, key=lambda name: (name.split(":")[0], int(name.split(":")[1].rstrip("ab")), name))


def full_name(name: str) -> str:
    """The name of a figure with its paper, "eureka:4", which "4" alone means, too.

    Raises:
        LabError: if there is no such figure.
    """
    whole = name if ":" in name else f"eureka:{name}"
    if whole not in names():
        raise LabError(f"{name} is not among the figures of this command; {choices(whole, names())}")
    return whole


@functools.cache
def load(name: str) -> FigureSpec:
    """A figure by its name, "eureka:4"; "4" alone is of the Eureka paper.

    Raises:
        LabError: if there is no such figure, or its file is wrong.
    """
    stem = full_name(name).replace(":", "_")
    return read_typed(HERE / "figures" / f"{stem}.yaml", FigureSpec, name=stem)


def runs_of(family: str, seeds: Mapping[str, int], further: Sequence[str] = ()) -> list[Run]:
    """The runs of some settings of a family.

    Args:
        family: by name.
        seeds: setting -> how many seeds.
        further: overrides of every run.

    Raises:
        LabError: if there is no such family or setting.
    """
    every = families()
    if family not in every:
        raise LabError(f"{family} is no family of scripts/reproduce/settings.yaml; {choices(family, list(every))}")
    own = every[family]
    for name in seeds:
        if name not in own.settings:
            raise LabError(f"{family} has no setting {name}; {choices(name, list(own.settings))}")
    given = {read_override(one).key for one in further}
    return [
        Run(
            family=family,
            name=name,
            label=own.settings[name].label,
            # An override that is given again replaces the family's, so that a run's name holds it only once.
            typed=(
                *(o for o in (*own.always, *own.settings[name].overrides) if read_override(o).key not in given),
                *further,
            ),
            seeds=tuple(range(own.seed, own.seed + count)),
            probe=own.probe,
            together=own.together,
        )
        for name, count in seeds.items()
    ]

"""Specification of a run: its composed configuration, the overrides as typed, the chosen configs, its seed."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lab.config.command_line import FROM_PYTHON, composed
from lab.config.identity import identity
from lab.config.overrides import Override, last_of_each, read_override
from lab.console import LabError

# The override that puts a class in the place of the chosen softmax's rule.
RULE = "softmax._target_"
_IN_THE_NAME = ("experiment", "softmax", RULE, "seed")
# Most bytes of a folder's name; a file system allows 255.
_LONGEST_NAME = 160


@dataclass(frozen=True)
class RunSpec:
    """One run, or several seeds of one setting; made once, and never changed.

    Attributes:
        config: the composed configuration, read-only; ``paths.run`` is the run's folder.
        overrides: as typed on the command line (Hydra's task overrides).
        choices: group -> chosen config.
    """

    config: DictConfig
    overrides: tuple[str, ...]
    choices: Mapping[str, str | None]

    @classmethod
    def of(
        cls,
        config: DictConfig,
        overrides: Iterable[str],
        choices: Mapping[str, str | None],
        **changes: Any,
    ) -> RunSpec:
        """Makes the spec of a composed configuration, which stays as it is.

        Args:
            config: composed by Hydra; its own settings (``hydra``) are left out.
            overrides: as typed.
            choices: as Hydra reports them.
            changes: new top-level values: ``seed=3``, ``force=False``.
        """
        plain: Any = OmegaConf.to_container(config, resolve=False)
        plain.pop("hydra", None)
        own = OmegaConf.create({**plain, **changes})
        overrides = tuple(overrides)
        name = run_name(str(choices.get("experiment") or "custom"), str(choices["softmax"]), own.seed, overrides)
        # A run folder is read from other folders, too.
        own.paths.data = _plain(Path(own.paths.data).expanduser().absolute())
        own.paths.run = _plain(runs_folder(own) / name)
        OmegaConf.set_struct(own, True)
        OmegaConf.set_readonly(own, True)
        return cls(own, overrides, dict(choices))

    @classmethod
    def compose(cls, overrides: Sequence[str]) -> RunSpec:
        """Composes what ``python -m lab.train <overrides>`` runs.

        Args:
            overrides: as typed.

        Raises:
            LabError: if they do not compose, or are those of several runs.
        """
        found = composed(overrides, several=FROM_PYTHON)
        return cls.of(found.config, overrides, found.choices)

    def changed(self, **changes: Any) -> RunSpec:
        """Returns the same run with other top-level values, in the folder that these name."""
        return RunSpec.of(self.config, self.overrides, self.choices, **changes)

    @property
    def seed(self) -> int:
        """The seed; of several, the first."""
        return int(self.config.seed)

    @property
    def force(self) -> bool:
        """True if what has finished is to be run again."""
        return bool(self.config.force)

    @property
    def softmax(self) -> str:
        """Name of the softmax: the chosen config, or the class that ``softmax._target_=`` puts in its place."""
        return softmax_name(str(self.choices["softmax"]), self.overrides)

    @property
    def experiment(self) -> str | None:
        """The chosen experiment; None where none is."""
        return self.choices.get("experiment")

    @property
    def runs(self) -> Path:
        """The folder of all runs."""
        return runs_folder(self.config)

    @property
    def folder(self) -> Path:
        """The run folder; of several seeds, the first one's."""
        return Path(self.config.paths.run)

    @property
    def name(self) -> str:
        """The run folder below the folder of all runs."""
        return self.folder.relative_to(self.runs).as_posix()

    @property
    def command(self) -> str:
        """The command line that runs it."""
        typed = [one for one in self.overrides if read_override(one).key != "trial"]
        return shlex.join(["python", "-m", "lab.train", *typed])

    @property
    def several(self) -> bool:
        """True if ``seeds=`` asks for seeds trained together."""
        return self.config.seeds is not None

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that are trained in one process: one, or those of ``seeds=``.

        Raises:
            LabError: if ``seeds=`` asks for none, or for one twice.
        """
        return seeds_of(self.config.seeds, self.seed)

    @cached_property
    def each(self) -> tuple[RunSpec, ...]:
        """A spec of its own for every seed."""
        return tuple(self.changed(seed=seed, seeds=None) for seed in self.seeds) if self.several else (self,)


def _plain(folder: Path) -> str:
    """The folder as text that a config can hold; there, ``${...}`` stands for another value.

    Raises:
        LabError: if its name has such a reference.
    """
    if "${" in str(folder):
        raise LabError(f"{folder}: a config cannot hold a folder with ${{ in its name; give it another one")
    return str(folder)


def runs_folder(config: DictConfig) -> Path:
    """The folder of all runs of a config."""
    return Path(config.paths.runs).expanduser().absolute()


def seeds_of(asked: Any, first: int) -> tuple[int, ...]:
    """Returns the seeds that ``seeds=`` asks for: a number of them from ``first`` on, a list, or ``first`` alone.

    Args:
        asked: the value of ``seeds``: None, a number or a list.
        first: the value of ``seed``.

    Raises:
        LabError: if there is none, one comes twice, or one is too large.
    """
    if asked is None:
        return (first,)
    listed = list(asked) if isinstance(asked, Sequence) and not isinstance(asked, str) else []
    chosen = list(range(first, first + asked)) if isinstance(asked, int) else listed
    if not chosen or len(set(chosen)) < len(chosen) or not all(isinstance(n, int) and n >= 0 for n in chosen):
        raise LabError(f"seeds={asked} is wrong: give a number of seeds (5) or different seeds ([0,3,7])")
    if listed and first and first not in listed:
        raise LabError(f"seed={first} is not one of seeds={asked}, which names all seeds: leave seed= out")
    if max(chosen) >= 2**32:
        raise LabError(f"seed={first} seeds={asked} goes up to seed {max(chosen)}: seeds must be less than 2**32")
    return tuple(chosen)


def run_name(experiment: str, softmax: str, seed: int, overrides: Iterable[str]) -> str:
    """Names the folder of a run below ``paths.runs``: ``main_task/norm_softmax,softmax.tau=0.333/seed=3``.

    Args:
        experiment: the chosen ``experiment`` config.
        softmax: the chosen ``softmax`` config.
        seed: of the run.
        overrides: as typed on the command line; their order does not matter, nor how a number is written, and of a key
            that comes twice the last one counts, as it does for Hydra.
    """
    typed = last_of_each(overrides).values()
    name = softmax_name(softmax, overrides)
    # In normal form, not as typed: a run has the same name by itself and in a sweep.
    rest = [_in_a_name(one) for one in typed if one.is_what and one.key not in _IN_THE_NAME]
    # The softmax config that gives a class of one's own its options is part of the name only if it was typed.
    rest += [one.written for one in typed if one.key == "softmax" and name != softmax]
    return f"{experiment}/{folder_name(','.join([name, *sorted(rest)]))}/seed={seed}"


def _in_a_name(override: Override) -> str:
    """The override as it stands in a run's name; a data folder's path with a digest where signs are replaced."""
    written = override.written.lstrip("+")
    if not override.key.endswith((".folder", ".root")) or folder_name(written) == written:
        return written
    # texts/a and texts-a are two folders.
    return f"{written}-{hashlib.blake2b(written.encode(), digest_size=4).hexdigest()}"


def softmax_name(chosen: str, overrides: Iterable[str]) -> str:
    """Names the softmax of a run: "Rule" under ``softmax._target_=my_rules.Rule``, else the chosen config.

    Args:
        chosen: the chosen ``softmax`` config.
        overrides: as typed on the command line.
    """
    given = [one for one in map(read_override, overrides) if one.key == RULE and one.value]
    return str(given[-1].parsed()).rpartition(".")[2] if given else chosen


def folder_name(text: str) -> str:
    """Turns what was typed into the name of a folder: without slashes and blanks, and not too long.

    Blanks and quotes around a value are dropped, not made hyphens: "optim.lr= 1e-3" would look like a negative rate.
    """
    bare = re.sub(r"""(^|[=,\[{:])[\s'"]+|[\s'"]+($|[,\]}:=])""", r"\1\2", text)
    name = re.sub(r"[^\w.,=+~\[\]-]+", "-", bare)
    if len(encoded := name.encode()) <= _LONGEST_NAME:
        return name
    short = encoded[: _LONGEST_NAME - 13].decode(errors="ignore")
    return f"{short}-{hashlib.blake2b(encoded, digest_size=6).hexdigest()}"


def device_count(trainer: DictConfig) -> int | None:
    """Counts the devices of a node that a trainer's config asks for: 2 of [0,3] and "0,3"; None of auto and -1."""
    devices = trainer.devices
    if isinstance(devices, str) and "," in devices:
        devices = devices.split(",")
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        return len(devices)
    return int(devices) if str(devices).isdigit() else None


def identity_of(config: DictConfig) -> dict[str, Any]:
    """Returns what a configuration runs, by dotted key."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return identity({str(key): value for key, value in plain.items()})

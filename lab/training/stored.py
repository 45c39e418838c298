"""Builds the parts of a trained model from a stored config, which is not trusted: anybody may have written it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from hydra.errors import InstantiationException
from lightning import Trainer
from omegaconf import DictConfig, OmegaConf
from torch import nn

from lab.attention.normaliser import Normaliser
from lab.attention.rule import TemperatureRule
from lab.attention.schedule import HeatTreatment
from lab.config.check import check, check_arguments, takes
from lab.console import LabError, cause_of
from lab.datasets.loading import DataModule
from lab.datasets.sources import Source
from lab.datasets.tasks.task import Task
from lab.datasets.text.corpus import FolderCorpus
from lab.datasets.text.data import TextData
from lab.datasets.text.drawn_problems import DrawnProblems
from lab.datasets.text.given import TOKENIZER
from lab.datasets.text.problem_files import FolderProblems
from lab.datasets.text.tokenizers import ByteTokenizer
from lab.files import DamagedFile, one_line
from lab.models.answering import PretrainedAnsweringModel
from lab.runs.provenance import made_by_other_lab
from lab.runs.stored_config import FILE, check_there, read_config
from lab.training.optim import OptimConfig

# What is built from a stored config, and the types allowed; of modules, only the lab's and trusted ones are imported.
_MADE: Mapping[str, tuple[type, ...]] = {
    # Only those corpora and tokenizers that download nothing.
    "data": (DataModule, Task, Source, FolderCorpus, FolderProblems, DrawnProblems, ByteTokenizer),
    "model": (nn.Module,),
    "softmax": (TemperatureRule, Normaliser, HeatTreatment),
    "optim": (OptimConfig,),
}

# Models that download weights, which a user who inspects a run has not asked for.
_FETCHING = (PretrainedAnsweringModel,)

# Settings of the trainer that matter when a checkpoint is inspected.
_OF_THE_TRAINER = ("precision", "accumulate_grad_batches", "limit_train_batches")


def load_config(folder: Path, trust: Sequence[str] = ()) -> DictConfig:
    """Reads the parts of a run's config that build and inspect its model, checked like a config that is typed.

    Data of language read any text with the run's own tokeniser, which the run folder keeps.

    Args:
        folder: the run folder.
        trust: modules whose classes and functions may be called, beside the lab's own tasks, models and the like.

    Raises:
        LabError: if there is no run in the folder, its config is damaged or names something that may not be built, or a
            trusted module does not exist; says which other version of the lab has made the run, if one has.
    """
    trust = [trust] if isinstance(trust, str) else trust
    for name in trust:
        home = name.partition(".")[0]
        if not home or find_spec(home) is None:
            raise LabError(f"trust={name}: there is no such module; yours is found by PYTHONPATH=<its folder>")
    check_there(folder)
    try:
        return _load_config(folder, trust)
    except DamagedFile:
        raise
    except LabError as error:
        if not (made_by := made_by_other_lab(folder)):
            raise
        raise LabError(f"{error}{made_by}") from cause_of(error)


def _load_config(folder: Path, trust: Sequence[str]) -> DictConfig:
    path = folder / FILE
    plain = read_config(folder)
    for name in (*_MADE, "trainer"):
        if not isinstance(plain.get(name), Mapping) or (name in _MADE and "_target_" not in plain[name]):
            raise DamagedFile(path, f"is damaged: it does not say {name}")
    used = {name: plain[name] for name in _MADE}
    used |= {"trainer": {name: plain["trainer"].get(name) for name in _OF_THE_TRAINER}}
    used |= {"seed": plain.get("seed"), "norm_softmax": plain.get("norm_softmax") or {}}
    refused: dict[str, str] = {}
    for where, value in _values(used):
        if isinstance(value, str) and "${" in value:
            raise LabError(
                f"{path}: {where}={value} refers to something else: a stored config must hold the value itself"
            )
        kinds = _MADE.get(where.split(".")[0], ())
        if where.endswith("._target_") and not _may_be_made(value, f"{path}: {where}", kinds, trust):
            refused[where] = value
    if refused:
        modules = list(dict.fromkeys([*trust, *(value.rpartition(".")[0] or value for value in refused.values())]))
        named = modules[0] if len(modules) == 1 else f"[{','.join(modules)}]"
        are, these, their = ("is", "this one", "its") if len(refused) == 1 else ("are", "them", "their")
        raise LabError(
            f"{path}: {', '.join(f'{where}={value}' for where, value in refused.items())} {are} not made: a stored "
            "config may make only the lab's own data, tasks, models, rules, normalisers and optimisers; "
            f"trust={named} allows {these} too, and runs {their} code"
        )
    _download_nothing(used["data"])
    _take_own_tokenizer(used["data"], folder)
    config = OmegaConf.create(used)
    try:
        if not isinstance(used["norm_softmax"], Mapping):
            raise LabError(f"norm_softmax={used['norm_softmax']!r} is wrong: it must be a mapping")
        check_arguments(Trainer, used["trainer"], "trainer")
        check(config)
    except LabError as error:
        raise LabError(f"{path}: {error}") from cause_of(error)
    return config


@contextmanager
def made_of(folder: Path) -> Iterator[None]:
    """Reports what a constructor refuses, within the block, as an error of the run's config file.

    Raises:
        LabError: in place of Hydra's error.
    """
    try:
        yield
    except InstantiationException as error:
        raise LabError(f"{folder / FILE} does not fit: {error.__cause__ or error}") from cause_of(error)


def _may_be_made(name: str, where: str, kinds: tuple[type, ...], trust: Sequence[str]) -> bool:
    """Tells whether a target is a class of the lab of one of these kinds, or lies in a trusted module."""
    if _lies_in(name, ["lab", *trust]):
        try:
            found = resolve_name(name)
        except (Exception, SystemExit) as error:
            why = "its module ends Python" if isinstance(error, SystemExit) else one_line(error)
            raise LabError(f"{where}={name} cannot be imported: {why}") from cause_of(error)
        # Where it was defined counts: a name of the lab may lead to other modules, as lab.files.os.
        home = str(getattr(found, "__module__", ""))
        of_the_lab = _lies_in(home, ["lab"]) and inspect.isclass(found) and issubclass(found, kinds)
        of_the_lab = of_the_lab and not issubclass(found, _FETCHING)
        return of_the_lab or _lies_in(home, trust)
    return False


def _lies_in(name: str, modules: Sequence[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _values(node: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """All values within a node, at any depth, each with its place: ``data.task._target_``."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _values(str(value) if key == "_target_" else value, f"{where}.{key}" if where else key)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _values(value, f"{where}[{index}]")
    else:
        yield where, node


def _take_own_tokenizer(data: dict[str, Any], folder: Path) -> None:
    """Lets data of language take the tokeniser that the run folder keeps; None where it keeps none."""
    target = resolve_name(str(data["_target_"]))
    if (
        inspect.isclass(target)
        and issubclass(target, TextData)
        and takes(inspect.signature(target).parameters, "tokenizer")
    ):
        own = folder / TOKENIZER
        # Not the path in its config, which a stranger may have written. ``${`` would refer to something else.
        data["tokenizer"] = str(own).replace("${", r"\${") if own.exists() else None


def _download_nothing(node: Any) -> None:
    """Forbids sources to download missing files, which a user who inspects a run has not asked for."""
    if isinstance(node, dict):
        if "download" in node:
            node["download"] = False
        for value in node.values():
            _download_nothing(value)

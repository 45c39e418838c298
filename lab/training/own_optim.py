"""Checks an optimiser, schedule or loss of a user's own before a run: what it returns, and which options it reads."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from itertools import takewhile
from typing import Any

from lab.config.overrides import read_override
from lab.console import LabError, name_of
from lab.training.optim import OWN_METHODS, OptimConfig, dummy_groups


def check_own_optim(optim: OptimConfig, overrides: Iterable[str], epochs: int) -> None:
    """Tries a schedule of a subclass, and refuses typed options that an optimiser, schedule or loss of its own ignores.

    The run would be named by such an option. What a config file sets passes: a file with ``defaults: [deit]`` has all
    options of ``deit``.

    Args:
        optim: the settings, of a subclass or not.
        overrides: as typed.
        epochs: of the run.

    Raises:
        LabError: if the schedule is none; at the first option that is ignored.
    """
    own = [name for name in OWN_METHODS if getattr(type(optim), name) is not getattr(OptimConfig, name)]
    if not own:
        return
    read = _read_when_tried(optim, own, epochs)
    for override in map(read_override, overrides):
        group, _, path = override.key.partition(".")
        option = path.split(".")[0]
        if group != "optim" or override.text.startswith("~"):
            continue
        for method in own:
            reads = OWN_METHODS[method][-1]
            if option in reads and option not in read and not _named_in_source(type(optim), option):
                raise LabError(
                    f"{override.name} is not read by {name_of(type(optim))}, which has {method}() of its own: "
                    "leave it out"
                )


def _read_when_tried(optim: OptimConfig, own: Iterable[str], epochs: int) -> set[str]:
    """The options that these methods read when they are called for a dummy weight; all, where they cannot be tried."""
    noted, read = _noting(optim)
    # With the learning rate of the config itself, which a schedule may compare with min_lr.
    samples = optim.lr_reference_batch or 1
    if "optimizer" in own:
        noted.optimizer(dummy_groups(), samples, True)
    if "scheduler" in own:
        optimizer = optim.made_optimizer(dummy_groups(), samples)
        try:
            made = noted.scheduler(optimizer, epochs)
        except Exception:
            # It may want what a dummy weight lacks, such as two groups. The run itself tells what fails.
            return {one.name for one in fields(optim)}
        optim.check_schedule(made)
    return read


def _noting(optim: OptimConfig) -> tuple[OptimConfig, set[str]]:
    """A copy of these settings, and the set in which it notes the attributes that are read of it."""
    kind, read = type(optim), set[str]()

    def note(self: Any, name: str) -> Any:
        read.update([name] if name != "__dict__" else [one.name for one in fields(optim)])
        return kind.__getattribute__(self, name)

    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__getattribute__": note}
    make: Any = type(kind)
    noted: Any = object.__new__(make(kind.__name__, (kind,), named))
    for name, value in ({one.name: getattr(optim, one.name) for one in fields(optim)} | vars(optim)).items():
        object.__setattr__(noted, name, value)
    return noted, read


def _named_in_source(kind: type[OptimConfig], option: str) -> bool:
    """Tells whether the modules of a subclass name an option: it may be read late, or under a condition."""
    try:
        if option == "label_smoothing":
            # self, logits, target and this one, which the lab gives as the third.
            taken = list(inspect.signature(kind.loss).parameters.values())
            if len(taken) < 4 or any(one.kind is one.VAR_POSITIONAL for one in taken):
                return True
            # An argument that is named once is only taken.
            if len(re.findall(rf"\b{taken[3].name}\b", inspect.getsource(kind.loss))) > 1:
                return True
        modules = {one.__module__ for one in takewhile(lambda one: one is not OptimConfig, kind.__mro__)}
        return any(re.search(rf"\.{option}\b", inspect.getsource(sys.modules[name])) for name in modules)
    except (OSError, TypeError):
        return True  # no source to look into, as in a notebook

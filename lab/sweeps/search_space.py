"""Overrides of a search, the values of each key, and the name of the study that follows from them."""

from __future__ import annotations

import hashlib
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import DictConfig
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from lab.config.identity import NOT_WHAT
from lab.console import LabError
from lab.sweeps.record import overrides_of


def study_name(config: DictConfig) -> str:
    """``search-<digest>``: equal for the same search space and settings, in any order and with any number of trials."""
    what = [*what_is_searched(config), str(config.hydra.sweeper.direction)]
    return f"search-{hashlib.blake2b(chr(10).join(what).encode(), digest_size=6).hexdigest()}"


def what_is_searched(config: DictConfig) -> list[str]:
    """Returns what is searched, as "key=value" in order: without keys that only say where and how runs are trained."""
    said = {key: config.hydra.runtime.choices.get(key) for key in ("experiment", "softmax")}
    typed = by_key(config).items()
    said |= {key: "deleted" if override.is_delete() else override.get_value_string() for key, override in typed}
    # seeds= counts, though it names no run: the mean over several seeds is another objective.
    tops = {key: key.lstrip("+~").split(".")[0].split("/")[0] for key in said}
    return sorted(f"{key}={said[key]}" for key, top in tops.items() if top == "seeds" or top not in NOT_WHAT)


def distribution(override: Override) -> BaseDistribution:
    """Optuna's distribution of the values that Hydra's grammar gives in an override.

    ``interval()`` is continuous, ``int(interval())`` whole numbers, with ``tag(log, ...)`` on a logarithmic scale;
    ``range()`` its numbers in their order; ``choice()``, ``a,b`` and ``glob()`` any of the values, without an order.

    Raises:
        LabError: if the range is empty or its ends are in the wrong order.
    """
    value = override.value()
    try:
        if isinstance(value, IntervalSweep):
            low, high, step = value.start, value.end, None
        elif isinstance(value, RangeSweep):
            numbers = all_values(override)
            low, high, step = min(numbers), max(numbers), abs(value.step)
        else:
            return CategoricalDistribution(all_values(override))
        assert low is not None and high is not None
        log = "log" in value.tags
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high, log=log, step=int(step or 1))
        return FloatDistribution(low, high, log=log, step=step)
    except ValueError as error:
        raise LabError(f"{override.input_line} is no range to search in: {error}") from error


def all_values(override: Override) -> list[Any]:
    """All values of an override: numbers of a range; of a choice, as they are typed."""
    return list(override.sweep_iterator() if override.is_range_sweep() else override.sweep_string_iterator())


def by_key(config: DictConfig) -> dict[str, Override]:
    """Overrides of the sweep and of the command line by key; a later one replaces an earlier one of the same key."""
    # With or without + or ~.
    last = {(override.key_or_group, override.package): override for override in overrides_of(config)}
    return {override.get_key_element(): override for override in last.values()}

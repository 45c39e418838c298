"""Overrides of a search, the values of each key, and the name of the study that follows from them."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import DictConfig
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial

from lab.config.identity import NOT_WHAT
from lab.config.suggestions import choices
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
        LabError: if the range is empty or its ends are in the wrong order, or if a tag says nothing there.
    """
    value = override.value()
    _check_tags(override)
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


def drawn_values(trial: FrozenTrial | Trial) -> dict[str, Any]:
    """Values of a trial; those of a range as it lists them: Optuna's are rounded (0.06999999999999999 for 0.07)."""
    values = dict(trial.params)
    for key, one in trial.distributions.items():
        if isinstance(one, FloatDistribution) and one.step is not None:
            steps = round((values[key] - one.low) / one.step)
            values[key] = float(Decimal(str(one.low)) + steps * Decimal(str(one.step)))
    return values


def _check_tags(override: Override) -> None:
    """Raises LabError at a tag that would be ignored."""
    for tag in sorted(getattr(override.value(), "tags", ())):
        if tag != "log":
            raise LabError(f"{override.input_line}: there is no tag {tag!r}; {choices(tag, ['log'])}")
        if override.is_choice_sweep():
            raise LabError(f"{override.input_line}: values to choose from have no scale, so leave tag(log, ...) out")


def by_key(config: DictConfig) -> dict[str, Override]:
    """Overrides of the sweep and of the command line by key; a later one replaces an earlier one of the same key."""
    # With or without + or ~.
    last = {(override.key_or_group, override.package): override for override in overrides_of(config)}
    return {override.get_key_element(): override for override in last.values()}

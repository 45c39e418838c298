"""Settings: runs that differ in nothing but the seed, under a name that says how they differ from the others."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from lab.config.compose import compose_config
from lab.config.identity import telling
from lab.config.overrides import Override, last_of_each
from lab.report.records import Record, only_watches, what_is_run
from lab.runs.spec import RULE
from lab.runs.summary import Summary

_NAMED_APART = ("experiment", "softmax", RULE, "seed")
# Most keys that names list to tell settings of one command apart (configs of different versions of the lab).
_MOST_NAMED = 3


@dataclass(frozen=True, eq=False)
class Setting:
    """Setting: runs that differ in nothing but the seed.

    Attributes:
        name: short, and unique in its experiment.
        experiment, softmax: as chosen.
        config: what was run by dotted key, without the seed.
        runs: one per seed, sorted by seed.
        doubles: further runs of the same seeds, which do not count.
    """

    name: str
    experiment: str
    softmax: str
    config: Mapping[str, Any]
    runs: tuple[Record, ...]
    doubles: tuple[Record, ...] = ()

    @property
    def finished(self) -> tuple[Record, ...]:
        """Runs that were trained to their end; ratios and times also count those that diverged."""
        return tuple(run for run in self.runs if run.finished)

    @property
    def changed_code(self) -> tuple[str, ...]:
        """The user's own modules of which these runs, or parts of one, were trained with different versions."""
        versions: dict[str, set[str]] = defaultdict(set)
        for run in self.runs:
            for module, digests in run.summary.own_code.items():
                versions[module] |= {*digests}
        return tuple(sorted(module for module, digests in versions.items() if len(digests) > 1))

    @property
    def first(self) -> Record:
        """The first run that stands for all: finished if any is; one that failed before a validation says nothing."""
        return min(self.runs, key=lambda run: (not run.validated_epochs, not run.finished))

    @property
    def metric(self) -> str:
        """Metric that is watched for the moment, without its "val/"."""
        return self.first.summary.eureka.metric.removeprefix("val/")

    @property
    def plain(self) -> bool:
        """True for plain softmax: its own normaliser and a constant tau of any value."""
        others = ("softmax.normaliser.", "softmax.schedule.")
        own = not str(self.config.get("softmax._target_", "lab.")).startswith("lab.")  # a class called softmax
        return self.softmax == "softmax" and not own and not any(key.startswith(others) for key in self.config)


def settings(runs: Iterable[Record]) -> list[Setting]:
    """Groups runs into settings; of a seed that was run twice, one run counts, chosen without a look at its moment.

    It is the finished run whose folder comes first by name; where none has finished, the run with the most epochs.

    Returns:
        Settings sorted by experiment, and in each plain softmax first.
    """
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for run in runs:
        groups[run.experiment, as_text(run.config)].append(run)
    by_experiment: dict[str, list[list[Record]]] = defaultdict(list)
    for experiment, config in sorted(groups):
        by_experiment[experiment].append(groups[experiment, config])
    found = []
    for experiment in sorted(by_experiment):
        own = by_experiment[experiment]
        named = [_setting(name, experiment, group) for name, group in zip(_names(own), own, strict=True)]
        found += sorted(named, key=lambda setting: (not setting.plain, setting.name))
    return found


def _in_one_notation(value: Any) -> Any:
    """Writes 5.0 as 5: a default that another version of the lab writes otherwise is the same setting."""
    if isinstance(value, Mapping):
        return {key: _in_one_notation(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_in_one_notation(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def planned(overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the config that a command would run, by dotted key, in the form of ``Record.config``.

    Raises:
        hydra.errors.HydraException: if the overrides do not compose.
    """
    config = compose_config(list(overrides))
    plain: Any = OmegaConf.to_container(OmegaConf.merge(config, {"paths": {"run": ""}}), resolve=True)
    return what_is_run(plain, config.seed)


def _setting(name: str, experiment: str, group: Sequence[Record]) -> Setting:
    best: dict[int, Record] = {}
    doubles = []
    for run in sorted(group, key=lambda r: (not r.finished, 0 if r.finished else -r.epochs, str(r.folder))):
        if run.seed in best:
            doubles.append(run)
        else:
            best[run.seed] = run
    runs = tuple(best[seed] for seed in sorted(best))
    return Setting(name, experiment, runs[0].softmax, runs[0].config, runs, tuple(doubles))


def _names(groups: Sequence[Sequence[Record]]) -> list[str]:
    """Names of the groups: the softmax (or the row), and the options in which the groups differ."""
    typed = [_given_to_all(group) for group in groups]
    if len(groups) > 1:  # of a setting alone, all options are told
        configs = [group[0].config for group in groups]
        unlike = _unlike(configs)
        shared = set.intersection(*({one.name for one in rest} for _, rest in typed))

        def tells(one: Override) -> bool:
            # A choice whose config sets keys of other parts is told wherever not all made it.
            elsewhere = one.is_group and not any(_set_by(one, config) for config in configs)
            return one.name not in shared and (elsewhere or bool(_set_by(one, unlike)))

        typed = [(head, [one for one in rest if tells(one)]) for head, rest in typed]
    names = [", ".join([head, *(one.name for one in rest)]) for head, rest in typed]
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        configs = [groups[place][0].config for place in places]
        keys = telling(_unlike(configs))
        for number, (place, config) in enumerate(zip(places, configs, strict=True), start=1):
            told = [f"{key}={config.get(key, 'absent')}" for key in keys[:_MOST_NAMED]]
            names[place] = ", ".join([name, *told])
            if len(keys) > _MOST_NAMED:
                names[place] += f" ({number})"
    # Names may still be equal, because 1 and "1" read alike: number them.
    times, seen = Counter(names), Counter[str]()
    for place, name in enumerate(names):
        if times[name] > 1:
            seen[name] += 1
            names[place] = f"{name} ({seen[name]})"
    return names


def head_and_options(run: Summary) -> tuple[str, dict[str, Override]]:
    """Returns the softmax (or the row) of a run, and by key what its name can tell beyond that, experiment and seed."""
    last = last_of_each(run.overrides)
    row = last.pop("row", None)
    told = (one for one in last.values() if one.is_what and one.key not in _NAMED_APART and not only_watches(one.key))
    return row.value if row else run.softmax, {one.key: one for one in told}


def _given_to_all(group: Sequence[Record]) -> tuple[str, list[Override]]:
    """The softmax (or the row) of a setting, and the options that each of its runs was given, in whatever order.

    A run that was not given an option has the same value by default, so that the option is nothing special.
    """
    heads, options = zip(*(head_and_options(run.summary) for run in group), strict=True)
    keys = set.intersection(*map(set, options))
    own = [min((one[key] for one in options), key=lambda option: option.name) for key in keys]
    return min(heads), sorted(own, key=lambda option: option.name)


def _set_by(option: Override, keys: Iterable[str]) -> list[str]:
    """Those of the keys that an option sets; a choice may set all in its part: ``optim/lr`` all in ``optim``."""
    place = option.key.split("/")[0]
    return [key for key in keys if f"{key}.".replace("/", ".").startswith(f"{place}.")]


def _unlike(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose values are not the same in all configurations."""
    keys = sorted(set().union(*configs))
    return [key for key in keys if len({as_text(config[key]) if key in config else None for config in configs}) > 1]


def as_text(value: Any) -> str:
    """Text that two values share only if they make the same setting: True is not 1, and 5.0 is 5."""
    return json.dumps(_in_one_notation(value), sort_keys=True)


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys with different values: key -> (ours, theirs); "absent" where one has none."""
    return {key: (ours.get(key, "absent"), theirs.get(key, "absent")) for key in _unlike([ours, theirs])}

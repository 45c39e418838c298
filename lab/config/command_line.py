"""Reads a Hydra command line before Hydra does: answers a wrong name with the valid ones, and says what would run."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra import compose
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from lab.config.check import PLAIN_VALUES, check, check_complete, check_plain
from lab.config.compose import CONFIGS, initialized
from lab.config.explained import explained, flattened
from lab.config.hydra_internals import argument_parser, keys_of, loader, options_of, search_path
from lab.config.identity import NOT_WHAT
from lab.config.overrides import parsed, values_of
from lab.config.suggestions import choices
from lab.config.unread import defaults_given, does_nothing, unread_defaults, unread_keys
from lab.console import LabError, cause_of, not_installed, refusals, tell

# How several runs are asked for, the end of a sentence that refuses them here; {} stands for what was typed.
BY_A_SWEEP = "add -m, as in python -m lab.train -m {}"
FROM_PYTHON = "loop over lab.run, or train seeds together, as with seeds=2"


def in_order(arguments: Sequence[str]) -> list[str]:
    """The same command line with Hydra's flags first, since Hydra does not find them among the overrides.

    With a flag for help, the overrides and ``-m`` are left out: help does not depend on them, so they may be wrong.
    """
    given = parse_arguments(arguments)
    left = given.overrides
    flags = []
    for argument in reversed(arguments):
        # From the end: the value of a flag may look like an override, and stands right after the flag.
        if left and argument == left[-1]:
            left = left[:-1]
        else:
            flags.append(argument)
    if given.help or given.hydra_help:
        return [flag for flag in reversed(flags) if flag not in ("-m", "--multirun")]
    return [*reversed(flags), *given.overrides]


class Composed(NamedTuple):
    """Config that a command line composes.

    Attributes:
        config: without Hydra's own settings; complete, each plain value checked.
        choices: group -> chosen config.
    """

    config: DictConfig
    choices: dict[str, str | None]


def check_overrides(arguments: Sequence[str]) -> None:
    """Exits with one sentence if the overrides among ``arguments`` do not compose, are wrong, or need a sweep.

    In a sweep (``seed=1,2,3``) each value is checked, together with the first value of every other key. Hydra's own
    flags pass.
    """
    given = parse_arguments(arguments)
    if given.help or given.hydra_help or given.shell_completion or given.config_path or given.config_name:
        return
    with refusals():
        if given.multirun and (given.cfg or given.info):
            raise LabError(
                "--cfg and --info are for one run, without -m; python -m lab.status --plan lists a sweep's runs"
            )
        if given.experimental_rerun:
            raise LabError("--experimental-rerun would run a pickled job: give the run's command again, without it")
        if given.info or given.resolve:
            return
        typed, config_dir = given.overrides, config_dir_of(given)
        once = [] if _is_sweep(given) else [composed(typed, config_dir, BY_A_SWEEP).config]
        for config in once or each_value(typed, config_dir):
            # A placeholder: the folder is named after what is run, which is not known yet.
            config.paths.run = "."
            check(config)


def composed(overrides: Sequence[str], config_dir: Path | None = None, several: str | None = None) -> Composed:
    """Composes what ``python -m lab.train <overrides>`` runs; of several values of a key, it takes the first.

    Args:
        overrides: as typed.
        config_dir: further configs, as under ``--config-dir``.
        several: refuses what acts in sweeps alone, and tells of defaults that nothing reads, which a run of a sweep
            may have; ends the sentence that refuses, ``BY_A_SWEEP`` or ``FROM_PYTHON``. None where the overrides are
            not those of one run.

    Raises:
        LabError: says in one sentence what is wrong with these overrides.
    """
    with initialized(config_dir):
        typed = parsed(overrides, loader())
        _check_allowed(typed)
        whole = _composed([_values(override)[0] for override in typed])
        _check_read(typed, whole)
        if several is None:
            return _without_hydra(whole)
        _check_not_of_sweeps(typed, whole, several)
        found = _without_hydra(whole)
        for key, text in unread_defaults(defaults_given(overrides), found.config).items():
            tell(does_nothing(key, text))
        return found


def each_value(overrides: Sequence[str], config_dir: Path | None = None) -> Iterator[DictConfig]:
    """Yields configs that try each value of a sweep, together with the first value of every other key.

    Plain values, such as seeds, are checked without a config for each.

    Raises:
        LabError: says in one sentence what is wrong with a value; after the last config, which default nothing reads.
    """
    with initialized(config_dir):
        left = defaults_given(overrides)
        for config in _each_value(overrides):
            left = unread_defaults(left, config)
            yield config
        for key, text in left.items():
            raise LabError(does_nothing(key, text))


def _each_value(overrides: Sequence[str]) -> Iterator[DictConfig]:
    """Yields the configs of :func:`each_value`; Hydra must be initialised."""
    typed = parsed(overrides, loader())
    _check_allowed(typed)
    whole = _composed([_values(override)[0] for override in typed])
    _check_read(typed, whole)
    own = {override.key_or_group for override in typed}
    params = values_of(whole.hydra.sweeper.params)
    planned = parsed([f"{key}={one}" for key, one in params.items() if key.lstrip("+") not in own], loader())
    for override in (*planned, *typed):
        if override.is_sweep_override() and override.key_or_group.startswith("paths."):
            raise LabError(f"{override.input_line}: a sweep's runs lie in one place, so give one value")
    values = [_values(override) for override in (*planned, *typed)]
    first = [some[0] for some in values]
    yield _without_hydra(_composed(first) if planned else whole).config
    for place, (override, some) in enumerate(zip((*planned, *typed), values, strict=True)):
        for value in some[1:]:
            # A plain value changes nothing else and is checked by itself; the name of a config may change anything.
            if override.key_or_group in PLAIN_VALUES and not options_of(override.key_or_group):
                check_plain(override.key_or_group, parsed([value])[0].value())
            else:
                yield _without_hydra(_composed([*first[:place], value, *first[place + 1 :]])).config


def _composed(single: Sequence[str]) -> DictConfig:
    """The config of these overrides, Hydra's own settings included; Hydra must be initialised."""
    for override in parsed(single):
        key = override.key_or_group
        if isinstance(override.value(), list) and key not in ("callbacks", "logger") and options_of(key):
            raise LabError(f"{override.input_line} chooses several, and one is needed: {key}=NAME, without brackets")
    try:
        config = compose("train", overrides=list(single), return_hydra_config=True)
    except HydraException as error:
        raise LabError(explained(error, single)) from cause_of(error)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{mark.name}, line {mark.line + 1}: " if mark else ""
        raise LabError(f"{where}{error.problem}: this is no YAML") from cause_of(error)
    except (OmegaConfBaseException, ValueError) as error:
        for override in parsed(single):
            key = override.key_or_group
            if (options := options_of(key)) and not isinstance(override.value(), str | list):
                raise LabError(f"{override.input_line} is no name of a config; {choices('', options)}") from cause_of(
                    error
                )
        raise LabError(flattened(str(error))) from cause_of(error)
    if config.hydra.runtime.choices["hydra/sweeper"] == "search" and find_spec("optuna") is None:
        raise LabError(f"a search needs {not_installed('Optuna', 'optuna')}")
    return config


def _check_allowed(typed: Sequence[Override]) -> None:
    """Refuses values that would put runs where the lab does not look for them, folders that are not there, and values
    that no launcher takes.

    Raises:
        LabError: at the first of them.
    """
    for override in typed:
        key, value = override.key_or_group, str(override.input_line).partition("=")[2]
        if key == "paths.run":
            raise LabError(
                "paths.run cannot be set, as it follows from what is run: set paths.runs, the folder of all runs"
            )
        if key == "hydra.job.chdir" and value.lower() == "true":
            raise LabError("hydra.job.chdir=true would put runs where the lab does not look for them: leave it out")
        if key.startswith("paths.") and os.path.expanduser(value.strip("'\"")).startswith("~"):
            raise LabError(f"{key}={value} names a home folder that does not exist: give the whole path")
        if key == "hydra.searchpath":
            _check_search_path(override)
        if key == "hydra.launcher.n_jobs" and not re.fullmatch(r"-1|[1-9]\d*", value):
            raise LabError(f"hydra.launcher.n_jobs={value} is wrong: give a whole number, at least 1, or -1")


def _check_search_path(override: Override) -> None:
    """Raises LabError if a folder of further configs is not there, which Hydra would pass over in silence."""
    listed = override.value()
    for path in map(str, listed if isinstance(listed, list) else []):
        folder = Path(path.removeprefix("file://"))
        if not path.startswith("pkg://") and not (folder.is_absolute() and folder.is_dir()):
            raise LabError(
                f"hydra.searchpath={path} is no folder: give the whole path of the one that holds softmax/, model/ or "
                "the like, as in [file:///home/me/conf]"
            )


def _check_read(typed: Sequence[Override], whole: DictConfig) -> None:
    """Refuses keys that nothing reads, and values that a sweep's file sets outside ``hydra.sweeper.params``.

    The names of runs would lack such values.

    ``whole`` is the config that ``typed`` composes. Arguments of classes are compared with their signatures elsewhere.

    Raises:
        LabError: at the first key that no config has or refers to; if a sweep's file sets what is run; if a config of
            one's own has the name of one of the lab's that is taken in its place, or takes the place of a callback.
    """
    _check_hidden(typed, whole)
    sweep = whole.hydra.runtime.choices.get("sweep")
    if sweep and (own := sorted(keys_of(f"sweep/{sweep}") - {"seed", *NOT_WHAT})):
        raise LabError(
            f"sweep/{sweep} sets {', '.join(own)}, which no run's name would show: write it below "
            f"hydra.sweeper.params, as in {own[0]}.option: value"
        )
    for key, valid in unread_keys(whole):
        # Of several, the last one counts, as it does for Hydra.
        said = [one.input_line for one in typed if f"{one.key_or_group.split('@')[0]}.".startswith(f"{key}.")]
        if (file := whole.hydra.runtime.choices.get(key)) and options_of(key):
            raise LabError(f"nothing reads what {key}/{file}.yaml sets: its first line must be # @package _global_")
        where = f"{said[-1]}: " if said else "a config file sets it, but "
        raise LabError(f"{where}nothing reads {key}; {choices(key.rpartition('.')[2], valid)}")


def _check_hidden(typed: Sequence[Override], whole: DictConfig) -> None:
    """Refuses a chosen config that lies in two folders, the lab's or one's own: only one of them would be taken."""
    further = whole.hydra.get("searchpath") or []
    listed = [*search_path(), *map(str, further)]
    found = [Path(path.removeprefix("file://")) for path in listed if path.startswith("file://")]
    paths = [path for path in {path.resolve(): path for path in found}.values() if path.resolve() != CONFIGS.resolve()]
    # Of a list of configs, Hydra notes no choice.
    lists = [(one.key_or_group, one.value()) for one in typed if isinstance(one.value(), list)]
    chosen = [
        (str(group), str(name))
        for group, names in (*whole.hydra.runtime.choices.items(), *lists)
        for name in (names if isinstance(names, list | ListConfig) else [names])
    ]
    for group, name in chosen:
        file = f"{group}/{name}.yaml"
        own = [path / file for path in paths if (path / file).exists()]
        if own and (CONFIGS / file).exists():
            raise LabError(f"{own[0]} has the name of one of the lab's configs, which is taken: give it another name")
        if len(own) > 1:
            raise LabError(f"{own[0]} and {own[1]} have one name, and only one is taken: give one another name")
    for part in ("callbacks", "logger"):
        named = [f"{part}/{name}.yaml" for group, name in chosen if group == part]
        if any((CONFIGS / file).exists() for file in named):
            files = [path / file for path in paths for file in named if (path / file).exists()]
            _check_keys(part, whole.get(part) or {}, files)


def _check_keys(group: str, made: Mapping[str, Any], files: Sequence[Path]) -> None:
    """Refuses a callback or logger of one's own that has taken the place of one of the lab's, by its key.

    A file that changes the lab's on purpose names it, or one that has it, among its ``defaults``.

    Args:
        group: "callbacks" or "logger".
        made: all of this group that the run makes, by key.
        files: the user's own that were chosen, beside some of the lab's.
    """
    for file in files:
        with suppress(OSError, ValueError, yaml.YAMLError, OmegaConfBaseException):
            own: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
            if not isinstance(own, Mapping) or any(one != "_self_" for one in own.get("defaults") or ()):
                continue
            for key, node in own.items():
                target = node.get("_target_") if isinstance(node, Mapping) else None
                taken = (CONFIGS / group / f"{key}.yaml").exists() and not str(target).startswith("lab.")
                if target and taken and isinstance(made.get(key), Mapping) and made[key].get("_target_") == target:
                    raise LabError(
                        f"{file}: its key {key} is that of one of the lab's {group}, which would not be made: give it "
                        "another one"
                    )


def _without_hydra(whole: DictConfig) -> Composed:
    choices = dict(whole.hydra.runtime.choices)
    with open_dict(whole):
        whole.pop("hydra")
    check_complete(whole)
    return Composed(whole, choices)


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """Parses a command line as Hydra does: its flags, and the overrides.

    Raises:
        LabError: if a flag is none of Hydra's.
    """
    given, unknown = argument_parser().parse_known_intermixed_args(list(arguments))
    folders = [one for one in arguments if one.partition("=")[0] in ("--config-dir", "-cd")]
    if len(folders) > 1:
        raise LabError("--config-dir is given twice: give one folder, and further ones with hydra.searchpath=[...]")
    if unknown:
        told = f"{unknown[0]} is no flag: python -m lab.train --help lists them"
        name = unknown[0].lstrip("-")
        raise LabError(f"{told}; options are written without dashes: {name}" if "=" in name else told)
    return given


def config_dir_of(given: Namespace) -> Path | None:
    """Returns the folder of ``--config-dir``; None without one."""
    return None if given.config_dir is None else Path(given.config_dir)


def _is_sweep(given: Namespace) -> bool:
    return given.multirun or "hydra.mode=MULTIRUN" in given.overrides


def _values(override: Override) -> list[str]:
    """The override once for each of its values; for a range or an interval to search in, once for each end."""
    key = str(override.input_line).split("=", 1)[0]
    value = override.value()
    if isinstance(value, IntervalSweep):
        return [f"{key}={value.start}", f"{key}={value.end}"]
    if not override.is_sweep_override():
        return [override.input_line or ""]
    found = [f"{key}={one}" for one in override.sweep_string_iterator()]
    if not found:
        raise LabError(f"{override.input_line} has no value to try: a range or a list of one or more is needed")
    return [found[0], found[-1]] if override.is_range_sweep() and len(found) > 1 else found


def _check_not_of_sweeps(overrides: Sequence[Override], config: DictConfig, several: str) -> None:
    """Refuses what a single run would ignore.

    Args:
        overrides: as typed.
        config: what they compose.
        several: how several runs are asked for.

    Raises:
        LabError: at the first such override.
    """
    for override in overrides:
        key, line = override.key_or_group, override.input_line
        if override.is_sweep_override():
            raise LabError(f"{line} asks for several runs, and this is one: {several.format(line)}")
        of_sweeps = key in ("hydra/launcher", "hydra/sweeper") and override.value() != "basic"
        if of_sweeps or key.startswith(("hydra.launcher.", "hydra.sweeper.")):
            raise LabError(f"{line} has an effect only in sweeps, and this is one run, here: {several.format(line)}")
    typed = {override.key_or_group: override for override in overrides}
    if "sweep" in typed:
        # A single run taken from a sweep names the sweep, too, but gives a value for every key that it sweeps over.
        swept = [key for key in config.hydra.sweeper.params or () if key.lstrip("+") not in typed]
        if swept:
            line = typed["sweep"].input_line
            raise LabError(f"{line} is one run here and leaves {', '.join(swept)} out: {several.format(line)}")

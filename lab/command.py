"""Checks a Hydra command line before Hydra does, to answer a wrong name with the valid ones."""

from __future__ import annotations

import re
import sys

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lab.config import CONFIGS, choices, explain_key


def check_overrides(arguments: list[str]) -> None:
    """Exits with one sentence if the overrides among ``arguments`` do not compose.

    Sweeps (``seed=1,2,3``) are tried with their first value. Hydra's own flags pass.
    """
    if any(argument in ("--help", "-h", "--hydra-help", "--version", "--info", "--resolve") for argument in arguments):
        return
    typed = [argument for argument in arguments if "=" in argument and not argument.startswith("-")]
    typed += [argument for argument in arguments if argument.startswith("~") and "=" not in argument]
    problem = problem_with(typed)
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(1)


def problem_with(overrides: list[str]) -> str | None:
    """What is wrong with these overrides, in one sentence; None if they compose."""
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            single = _of_one_job(overrides)
            try:
                compose("train", overrides=single)
            except HydraException as error:
                return _explained(error, single)
    except (HydraException, OmegaConfBaseException) as error:
        return _one_line(str(error))
    return None


def _of_one_job(overrides: list[str]) -> list[str]:
    """The overrides with one value each: the first of a sweep, the lower end of an interval to search in."""
    single = []
    for override in OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides(overrides):
        key = str(override.input_line).split("=", 1)[0]
        value = override.value()
        if isinstance(value, IntervalSweep):
            single.append(f"{key}={value.start}")
        elif override.is_sweep_override():
            single.append(f"{key}={next(iter(override.sweep_string_iterator()))}")
        else:
            single.append(override.input_line or "")
    return single


def _explained(error: Exception, overrides: list[str]) -> str:
    """Hydra's words, and the valid keys where a key is wrong."""
    text = str(error)
    if "hydra/sweeper/optuna" in text:
        return "a search needs Optuna's sweeper, which is not installed: pip install -e '.[optuna]'"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"{group}={name} does not exist; {choices(name, error.options)}"
    if missing := re.search(r"Could not load '([^']+)/([^'/]+)'", text):
        group, name = missing.groups()  # one of a list, of which Hydra does not say what there is
        return f"{group}={name} does not exist; {choices(name, [p.stem for p in (CONFIGS / group).glob('*.yaml')])}"
    wrong = re.search(r"Could not override '([^']+)'", text)
    if wrong is None:
        return _one_line(text)
    key = wrong.group(1)
    groups = [o for o in overrides if "." not in o.split("=")[0] and o.split("=")[0] != key]
    for kept in (groups, []):
        try:
            config = compose("train", overrides=kept)
        except HydraException:
            continue
        OmegaConf.set_struct(config, False)
        return f"{explain_key(config, key)}"
    return _one_line(text)


def _one_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(line.replace("\t", ", ") for line in lines if "full_key" not in line and "object_type" not in line)

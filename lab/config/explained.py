"""Says in one sentence what Hydra finds wrong with a command line, with the names that would be right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra import compose
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf

from lab.config.hydra_internals import Choices, options_of, search_path
from lab.config.overrides import parsed
from lab.config.suggestions import choices, explain_key


def explained(error: Exception, overrides: Sequence[str]) -> str:
    """Says in one sentence what Hydra's error says, with the valid names where a name is wrong."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return _missing(group, name, error.options)
    if of_file := _wrong_defaults_list(text, overrides):
        return of_file
    if twice := re.search(r"Multiple values for (\S+)\. ", text):
        return f"+{twice[1]}= would add a second {twice[1]}: write {twice[1]}=, without the plus"
    if (wrong := re.search(r"Could not override '([^']+)'", text)) is None:
        return flattened(text)
    key = wrong[1]
    if options := options_of(key):
        return _wrong_group(key, options, overrides)
    return _wrong_option(key, overrides) or flattened(text)


def _missing(group: str, name: str, options: Sequence[str]) -> str:
    """Says that there is no such config, and which there are, or that its file has another ending."""
    for path in search_path():
        if (file := Path(path.removeprefix("file://")) / group / f"{name}.yml").exists():
            return f"{group}={name} does not exist: the name of {file} has to end with .yaml"
    return f"{group}={name} does not exist; {choices(name, options)}"


def _wrong_defaults_list(text: str, overrides: Sequence[str]) -> str | None:
    """Says what is wrong in the defaults list of a config, where Hydra's message is of one."""
    if missing := re.search(r"Could not load '([^']+)/([^'/]+)'", text):
        group, name = missing.groups()  # one of a list, for which Hydra does not report the options
        return _missing(group, name, options_of(group))
    if beside := re.search(r"In '(([^']+)/[^'/]+)': Could not find '\2/([^']+)/([^'/]+)'", text):
        file, _, group, name = beside.groups()
        if options_of(group):
            return f"{file}.yaml looks for {group}/{name} beside itself: write - override /{group}: {name}"
    relative = re.search(r"Could not override '[^'@]+?/([^'@/]+)@[^']*'", text)
    if relative and options_of(relative[1]):
        return f"a defaults list overrides {relative[1]}: write - override /{relative[1]}: NAME, with the slash"
    if within := re.search(r"Could not override '([^'@/]+)@([^'@]+)'", text):
        # Without its package, Hydra reads what a config overrides as lying within the config's own folder.
        group, package = within[1], within[2].split(".")[0]
        file = next((one.replace("=", "/") for one in overrides if one.startswith(f"{package}=")), f"{package}/")
        return f"{file}.yaml overrides {group}: '# @package _global_' has to be its first line"
    return None


def _wrong_group(key: str, options: Sequence[str], overrides: Sequence[str]) -> str:
    """Says why nothing can be chosen from a group of configs as it was asked for."""
    value = next((o.split("=", 1)[1] for o in overrides if o.startswith(f"{key}=")), None)
    if value is None:
        by = ", ".join(o for o in overrides if o.startswith("+") and not o.startswith(f"+{key}=")) or "a config"
        return f"{by} sets {key}=, of which nothing is chosen here: leave it out, or choose configs that have {key}"
    # A group from which nothing is chosen by default.
    group = key.rpartition("/")[0]
    if group and (having := _that_choose(key, group)):
        return f"{key}= belongs to {group}={' or '.join(having)}, and another {group}= is chosen here"
    if value in options:
        return f"{key}= is not in the config yet, so add it with a plus: +{key}={value}"
    return f"{key}={value} does not exist; {choices(value, options)}, to be added with a plus: +{key}="


def _wrong_option(key: str, overrides: Sequence[str]) -> str | None:
    """Says which options there are instead; None where nothing composes without it either."""
    named = {o: o.split("=")[0] for o in overrides}
    groups = [o for o, own in named.items() if own == "hydra.searchpath" or ("." not in own and own != key)]
    for kept in (groups, []):
        try:
            config = compose("train", overrides=kept, return_hydra_config=key.startswith("hydra."))
        except HydraException:
            continue
        if key.startswith("hydra.launcher.") and config.hydra.runtime.choices["hydra/launcher"] == "basic":
            listed = ", ".join(name for name in options_of("hydra/launcher") if name != "basic")
            return f"{key} is an option of a launcher, and none is chosen: add hydra/launcher=, one of {listed}"
        OmegaConf.set_struct(config, False)
        return explain_key(config, key)
    return None


def _that_choose(part: str, group: str) -> list[str]:
    """Configs of a group that choose a part of their own, as some of optim= choose an optim/lr=."""
    choices_of = Choices("train")
    return [one for one in options_of(group) if choices_of.of(parsed([f"{group}={one}"])).get(part)]


def flattened(text: str) -> str:
    """Joins the lines of one of Hydra's messages, without those that name its own types."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(line.replace("\t", ", ") for line in lines if "full_key" not in line and "object_type" not in line)

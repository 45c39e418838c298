"""``config.yaml`` of a run folder, read as data: anybody may have written it."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from lab.console import LabError
from lab.files import DamagedFile, read_file
from lab.runs.walk import instead_of

FILE = "config.yaml"
# Limits far above what a config has: a few KiB, six levels, numbers of twenty digits.
_MOST_BYTES, _DEEPEST, _LONGEST_NUMBER = 2**20, 32, 64
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# Types of YAML 1.1 that are not read: OmegaConf writes neither dates nor merges.
_LEFT_OUT = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")


def check_there(folder: Path) -> None:
    """Checks that a folder that was given as a run folder is one.

    Raises:
        LabError: if there is no config in it; says what to do.
    """
    if not (folder / FILE).exists():
        raise LabError(f"{folder} holds no run: {instead_of(folder, FILE)}")


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the configuration of a run as plain values: text, numbers, true, false, null, lists and mappings.

    A stored configuration is resolved already: ``${...}`` in it is plain text.

    Raises:
        DamagedFile: if it is missing, or is no configuration.
    """
    path = folder / FILE
    try:
        text = read_file(path, _MOST_BYTES).decode()
        _check_events(text)
        plain = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise DamagedFile(path, f"cannot be read: {where}{error.problem}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise DamagedFile.unreadable(path, error) from error
    if not isinstance(plain, dict):
        raise DamagedFile(path, "is no configuration")
    return plain


def _check_events(text: str) -> None:
    """Refuses aliases and tags, which make more of a text than it says, and deep nesting, before any object is made.

    The parser in C descends into nested nodes without a limit, and would end the process by a stack overflow.
    """
    depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            raise _refused(f"*{event.anchor} is an alias, and a stored config has none", event)
        if tag := getattr(event, "tag", None):
            raise _refused(f"{tag} is a tag, and a stored config has none", event)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise _refused(f"more than {_DEEPEST} levels are nested", event)


def _refused(why: str, found: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(problem=why, problem_mark=found.start_mark)


# The C parser is ten times faster; it is missing only where PyYAML was built without it.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise _refused("a key is no text", key)
            if key.value in seen:
                raise _refused(f"{key.value!r} comes twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
            raise _refused(f"a number has {len(node.value):,} digits", node)
        return super().construct_scalar(node)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _LEFT_OUT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# A number such as 1e-3, typed by hand, is read as in YAML 1.2, as OmegaConf does.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"), list("-+0123456789")
)

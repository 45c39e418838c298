"""Keys that a config or a command line sets and nothing reads, and defaults for configs that are not chosen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lab.config.check import PLAIN_VALUES
from lab.config.overrides import last_of_each
from lab.config.suggestions import DEFAULTS_FOR

# Top-level keys that code reads; with them the defaults for configs that may be chosen, such as norm_softmax.
_READ = {"": {path.split(".")[0] for path in PLAIN_VALUES} | {"hydra", *DEFAULTS_FOR}}
# And the keys of each group that no class takes, whose signature would tell them.
for _group, _, _name in (path.partition(".") for path in PLAIN_VALUES if not path.endswith("._target_")):
    if _name:
        _READ.setdefault(_group, set()).add(_name)


def unread_keys(whole: DictConfig) -> Iterator[tuple[str, list[str]]]:
    """Yields the keys that neither the lab reads nor another value refers to, each with the names that are read there.

    Looks at the top, and into the groups of options.
    """
    for group, names in _READ.items():
        node = OmegaConf.select(whole, group) if group else whole
        for name in map(str, node) if isinstance(node, DictConfig) else ():
            key = f"{group}.{name}" if group else name
            if name not in names and not _refers_to(whole, key):
                yield key, sorted(names)


def _refers_to(config: DictConfig, key: str) -> bool:
    """Tells if a value elsewhere refers to a key, by its whole path or from beside it (``${.name}``)."""
    plain: Any = OmegaConf.to_container(config, resolve=False)
    parent, _, name = key.rpartition(".")
    (plain.get(parent, {}) if parent else plain).pop(name, None)
    refers = rf"\$\{{([^}}]*\b{re.escape(key)}\b|([^}}]*:)?\.+{re.escape(name)}\b)"
    return re.search(refers, OmegaConf.to_yaml(OmegaConf.create(plain))) is not None


def defaults_given(overrides: Sequence[str]) -> dict[str, str]:
    """Defaults for configs not chosen here (:data:`lab.config.suggestions.DEFAULTS_FOR`) that overrides give.

    By their key, norm_softmax.tau, without what is deeper: no such default is a mapping.
    """
    return {
        ".".join(key.split(".")[:2]): one.text
        for key, one in last_of_each(overrides).items()
        if key.split(".")[0] in DEFAULTS_FOR and not one.text.startswith("~")
    }


def unread_defaults(defaults: Mapping[str, str], config: DictConfig) -> dict[str, str]:
    """Returns those of the defaults that nothing in a config reads."""
    return {key: text for key, text in defaults.items() if not _refers_to(config, key)}


def does_nothing(key: str, text: str) -> str:
    """Says in one sentence that a default is read by nothing, by its key and as it was typed."""
    return (
        f"{text} does nothing: it is a default for {DEFAULTS_FOR[key.split('.')[0]]}, which is not chosen or has a "
        "value of its own; leave it out"
    )

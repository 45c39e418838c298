"""Suggestions for a name that does not exist: the valid ones, and the one that was probably meant."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from lab.config.identity import flatten

# Keys that Hydra's instantiate reads itself.
HYDRA_KEYS = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}
# Top-level keys that hold nothing but an experiment's defaults, each with the config that reads them once it is chosen.
DEFAULTS_FOR = {"norm_softmax": "softmax=norm_softmax", "drawn": "data/source=drawn"}
# Most characters of a list of valid names; a longer one is cut, to keep a message one sentence.
LONGEST_LIST = 270
# Names that other programs use for an option; unlike misspelt names, they do not look like the name used here.
_ALSO_CALLED = {
    "learning_rate": "lr",
    "epochs": "max_epochs",
    "steps": "max_steps",
    "wd": "weight_decay",
    "gpus": "devices",
}


def choices(name: str, valid: Sequence[str]) -> str:
    """The valid names, and the one that was probably meant by ``name``."""
    other = _ALSO_CALLED.get(name)
    return _told(other if other in valid else next(iter(difflib.get_close_matches(name, valid, n=1)), None), valid)


def _told(meant: str | None, valid: Sequence[str]) -> str:
    hint = f"did you mean {meant!r}? " if meant else ""
    if not valid:
        return f"{hint}it has no options"
    return f"{hint}valid: {shorten(', '.join(sorted(valid)), LONGEST_LIST, placeholder=' ...')}"


def explain_key(config: DictConfig, key: str) -> str:
    """The valid choices at the deepest part of a dotted ``key`` that ``config`` has, and the key probably meant."""
    node: Any = config
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(node, DictConfig) or part not in node:
            where = ".".join(parts[:depth]) or "the config"
            listed = [str(k) for k in node if k not in HYDRA_KEYS] if isinstance(node, DictConfig) else []
            taken = _taken_by(node)
            # Of other classes, the lab gives some arguments itself: of a rule its heads, of a model its softmax.
            valid = sorted({*listed, *(taken if parts[0] == "callbacks" else [])})
            if depth == len(parts) - 1 and part in taken:
                return f"{key} is not in the config yet, so add it with a plus: +{key}="
            # An option elsewhere with exactly this name is a better hint than a neighbour with a similar name.
            elsewhere = _elsewhere(config, key)
            return f"{where} has no {part!r}; {_told(elsewhere, valid) if elsewhere else choices(part, valid)}"
        node = node[part]
    return f"{key} exists"


def _taken_by(node: Any) -> list[str]:
    """Arguments of the class or function that a config names, which the config need not list."""
    if not isinstance(node, DictConfig) or "_target_" not in node:
        return []
    try:
        taken = inspect.signature(get_object(str(node._target_))).parameters.values()
    except (Exception, SystemExit):  # what cannot be imported is told where it is checked
        return []
    return [one.name for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def _elsewhere(config: DictConfig, key: str) -> str | None:
    """The option elsewhere whose name is the last part of ``key``; of several, the one most like ``key``.

    A key of a part, such as ``data.tokenizer.name``, was meant for its group, below which the option is looked for.
    Defaults for a config that may not be chosen are no option.
    """
    parts = key.split(".")
    last = parts[-1]
    below = f"{parts[0]}." if len(parts) > 2 and parts[0] in config else ""
    plain: Any = OmegaConf.to_container(config, resolve=False)
    options = [option for option in flatten(plain) if "." in option and option.startswith(below)]
    options = [option for option in options if option.split(".")[0] not in DEFAULTS_FOR]
    for name in filter(None, (last, _ALSO_CALLED.get(last))):
        if found := [option for option in options if option.rsplit(".", 1)[1] == name]:
            return max(found, key=lambda option: difflib.SequenceMatcher(None, key, option).ratio())
    return None

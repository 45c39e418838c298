"""The identity of a run: its configuration, less the keys that say only where and how loudly to run.

Imports nothing heavy: a report reads thousands of configurations with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Top-level keys that say where and how loudly to run, not what: no part of a run's name or identity.
NOT_WHAT = ("force", "paths", "logger", "threads", "checkpoints", "diagnostics", "hydra", "seeds", "sweep", "trial")


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is run, by dotted key: ``{"optim.lr": 0.001, ..., "seed": 3}``.

    Args:
        config: a resolved configuration as plain values.
    """
    flat = flatten({key: value for key, value in config.items() if key not in NOT_WHAT})
    return {key: value for key, value in flat.items() if not _says_nothing(key)}


def _says_nothing(key: str) -> bool:
    """Tells whether a key says only where files lie, or how often a diagnostic looks."""
    looks = key.startswith("callbacks.") and key.endswith((".every_n_epochs", ".pictures_every_n_epochs"))
    # Elsewhere such a key is an option like any other: a rule of one's own may take a root.
    lies = key.startswith(("data.", "callbacks.")) and key.endswith((".root", ".download", ".folder"))
    return looks or lies


def telling(keys: Iterable[str]) -> list[str]:
    """Sorts keys in which two configs differ, for a message: where a class lies says least of what is run."""
    return sorted(keys, key=lambda key: (key.endswith("_target_"), key))


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings into one with dotted keys; an empty mapping keeps its key."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return flat

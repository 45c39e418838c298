"""Which seeds ``seeds=`` asks for; imports nothing heavy, since a sweep is planned with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lab.console import LabError


def seeds_of(config: DictConfig, first: int | None = None) -> list[int]:
    """The seeds that a composed config trains in one process: one, or those of ``seeds=``.

    Args:
        config: composed by Hydra.
        first: in place of ``config.seed``.

    Raises:
        LabError: if ``seeds=`` asks for none, or for one twice.
    """
    asked: Any = OmegaConf.to_object(config.seeds) if OmegaConf.is_config(config.seeds) else config.seeds
    first = config.seed if first is None else first
    return [first] if asked is None else numbers(asked, first)


def numbers(seeds: Any, first: int) -> list[int]:
    """The seeds that ``seeds=`` asks for: so many from ``first`` on, or just those listed.

    Raises:
        LabError: if there is none, or one comes twice.
    """
    listed = list(seeds) if isinstance(seeds, Sequence) and not isinstance(seeds, str) else []
    chosen = list(range(first, first + seeds)) if isinstance(seeds, int) else listed
    if not chosen or len(set(chosen)) < len(chosen) or not all(isinstance(n, int) and n >= 0 for n in chosen):
        raise LabError(f"seeds={seeds} is wrong: give a number of seeds (5) or different seeds ([0,3,7])")
    return chosen

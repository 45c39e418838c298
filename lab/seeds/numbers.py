"""Which seeds ``seeds=`` asks for; imports nothing heavy, since a sweep is planned with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.errors import LabError


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

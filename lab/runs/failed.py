"""Errors of one run of a sweep; apart from ``outcome``, which loads Lightning and takes seconds."""

from __future__ import annotations

from hydra.errors import CompactHydraException

from lab.console import LabError, Unfinished


class Failed(CompactHydraException, LabError):
    """Failure of one run of a sweep; Hydra reports it in one sentence once the other runs are done."""


class BrokenOff(CompactHydraException, Unfinished):
    """Error of one run of a sweep that was cut short: told like :class:`Failed`, but a search goes on with the run."""

"""The sweeper of plain sweeps: Hydra accepts sweepers only from ``hydra_plugins``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hydra._internal.core_plugins import basic_sweeper
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from lab.config.overrides import values_of
from lab.sweeps.waiting import ends_as_told


class BasicSweeper(Sweeper):
    """Sweeper that calls Hydra's own, but a sweep that fails or is told to end says so in the lab's words."""

    def __init__(self, max_batch_size: int | None = None, params: Mapping[str, str | None] | None = None) -> None:
        # Not a subclass: Hydra loads the module of its sweeper anew, and a class from before would not be its base.
        self._hydras = basic_sweeper.BasicSweeper(max_batch_size, values_of(params))

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from lab.sweeps.unfinished import TellingLauncher  # here: every run registers this class, few are sweeps

        self.config = config
        self._hydras.setup(hydra_context=hydra_context, task_function=task_function, config=config)
        assert self._hydras.launcher is not None
        telling: Any = TellingLauncher(self._hydras.launcher, config)
        self._hydras.launcher = telling

    def sweep(self, arguments: list[str]) -> None:
        """Runs all jobs; exits where one did not finish."""
        assert self.config is not None
        with ends_as_told(self.config):
            self._hydras.sweep(arguments)


@dataclass
class Options:
    """``hydra/sweeper=basic``: Hydra's own options. Not its class, of which there are two for the same reason."""

    _target_: str = f"{BasicSweeper.__module__}.{BasicSweeper.__qualname__}"
    max_batch_size: int | None = None
    params: dict[str, str | None] | None = None

"""The sweeper of ``+sweep=search``: Hydra accepts sweepers only from ``hydra_plugins``."""

from __future__ import annotations

from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from lab.console import refusals
from lab.sweeps.waiting import ends_as_told


class SearchSweeper(Sweeper):
    """Sweeper that calls :func:`lab.sweeps.search.search`; options as in ``configs/hydra/sweeper/search.yaml``."""

    def __init__(self, **options: Any) -> None:
        self._launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.hydra_context = config, hydra_context
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Runs the trials that are missing; exits with a one-sentence error where that is not possible."""
        from lab.sweeps.search import search  # here: Optuna takes a second to load, and every run registers this class

        assert self.config is not None and self._launcher is not None
        with refusals(), ends_as_told(self.config):
            search(self.config, self._launcher.launch)

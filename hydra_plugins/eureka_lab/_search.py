"""The sweeper of ``+sweep=search``: Hydra's own, which ends in a traceback where no trial has finished."""

from __future__ import annotations

import os
import sys

from hydra_plugins.hydra_optuna_sweeper.optuna_sweeper import OptunaSweeper

from lab.console import tell


class SearchSweeper(OptunaSweeper):
    """Takes the parameters of the plugin's sweeper."""

    def sweep(self, arguments: list[str]) -> None:
        """Runs the trials; exits with one sentence where there is no best one among them, or no range to search in."""
        try:
            super().sweep(arguments)
        except ValueError as error:
            if os.environ.get("HYDRA_FULL_ERROR"):
                raise
            tell(f"error: {self._nothing_best() or ' '.join(str(error).split())}")
            sys.exit(1)

    def _nothing_best(self) -> str | None:
        """That no trial came to its end, if so: Optuna then looks for the best one in vain."""
        import optuna  # takes seconds, and every run registers this class

        assert self.sweeper.config is not None
        settings = self.sweeper.config.hydra.sweeper
        try:
            trials = optuna.load_study(settings.study_name, settings.storage).trials
        except KeyError:
            return None  # it failed before there was a study
        ended = trials and all(trial.state.is_finished() for trial in trials)
        if not ended or any(trial.state == optuna.trial.TrialState.COMPLETE for trial in trials):
            return None
        return (
            f"none of {len(trials)} trials of {settings.study_name} has finished, so none is the best: "
            f"python -m lab.status {self.sweeper.config.paths.runs} shows why each failed"
        )

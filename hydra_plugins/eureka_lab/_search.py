"""The sweeper of ``+sweep=search``: Hydra's own, which ends in a traceback where no trial has finished."""

from __future__ import annotations

import sys

from hydra_plugins.hydra_optuna_sweeper.optuna_sweeper import OptunaSweeper

from lab.tell import tell


class SearchSweeper(OptunaSweeper):
    """Takes the parameters of the plugin's sweeper."""

    def sweep(self, arguments: list[str]) -> None:
        """Runs the trials; exits with one sentence where there is no best one among them."""
        try:
            super().sweep(arguments)
        except ValueError:
            import optuna  # takes seconds, and every run registers this class

            assert self.sweeper.config is not None
            settings = self.sweeper.config.hydra.sweeper
            trials = optuna.load_study(settings.study_name, settings.storage).trials
            if any(trial.state == optuna.trial.TrialState.COMPLETE for trial in trials):
                raise
            runs = self.sweeper.config.paths.runs
            tell(
                f"error: none of {len(trials)} trials of {settings.study_name} has finished, so none is the best: "
                f"python -m lab.status {runs} shows why each failed"
            )
            sys.exit(1)

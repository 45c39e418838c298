"""Weights & Biases by config: ``logger=wandb``."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from matplotlib.figure import Figure
from torch import Tensor

from lab.console import LabError, noted_if_slow
from lab.runs.boards import Board, keep_run, known_run, title
from lab.runs.files import one_line
from lab.runs.stored_config import read_config

# Most characters of a run's name, and of its group, that W&B takes.
_LONGEST = 128


class WeightsAndBiases(WandbLogger, Board):
    """Lightning's W&B logger, with one W&B run per run folder; the seeds of one setting form a group.

    Curves, pictures and histograms appear as they are logged; the whole config is there, with the path of the run
    folder; the Eureka-moment is ``eureka/epoch`` in the summary. A resumed run goes on in its W&B run: what was logged
    after its last checkpoint is there twice, since W&B takes nothing back.

    Args:
        folder: the run folder. W&B keeps its own files below ``wandb/`` there.
        project: of W&B.
        entity: user or team of W&B; None takes the one that is logged in.
        mode: None goes by ``WANDB_MODE`` and the login; "offline" sends nothing until ``wandb sync`` does.

    Raises:
        LabError: if W&B cannot be reached, or nobody is logged in.
    """

    package = "wandb"

    def __init__(
        self,
        folder: str,
        project: str = "eureka-lab",
        entity: str | None = None,
        mode: Literal["online", "offline", "shared", "disabled"] | None = None,
    ) -> None:
        self._folder = Path(folder)
        known = known_run(self._folder, self.package)
        name = title(self._folder)
        super().__init__(
            name=name[-_LONGEST:],
            group=name.rpartition("/")[0][:_LONGEST],
            save_dir=folder,
            id=known or secrets.token_hex(4),
            project=project,
            entity=entity,
            mode=mode,
            notes=f"run folder: {self._folder.absolute()}",
            # One process may have several W&B runs: in a sweep, or for seeds that train together.
            reinit="create_new",
        )
        from wandb.errors import Error

        try:
            with noted_if_slow("waiting for W&B (up to WANDB_INIT_TIMEOUT seconds, 90 if not set)"):
                self._begin()
        except Error as error:
            raise LabError(
                f"logger=wandb: {one_line(error)}; `wandb login` logs in, logger.wandb.mode=offline needs no login"
            ) from error

    @rank_zero_only
    def _begin(self) -> None:
        """Notes the W&B run in the folder, then starts or reopens it: a kill in between leaves no second run."""
        keep_run(self._folder, self.package, str(self.version))
        given = {"folder": str(self._folder.absolute()), "config": read_config(self._folder)}
        self.experiment.config.update(given, allow_val_change=True)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        log = super().log_metrics
        self.send(lambda: log(metrics, step))

    @rank_zero_only
    def show_figure(self, tag: str, figure: Figure, step: int) -> None:
        self.log_image(tag, [figure], step)

    @rank_zero_only
    def show_histogram(self, tag: str, values: Tensor, step: int) -> None:
        from wandb import Histogram

        # Any: Histogram and log_metrics take these, but their type hints do not say so.
        numbers: Any = values.numpy()
        shown: Any = {tag: Histogram(numbers)}
        self.log_metrics(shown, step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        super().finalize(status)
        if (run := self._experiment) is not None:
            self.send(lambda: run.finish(exit_code=0 if status == "success" else 1), at_last=True)
            if isinstance(self.error, ConnectionError):
                import wandb

                # Its process, that of all W&B runs here, is gone, of which W&B would complain as this one ends.
                with suppress(Exception):
                    wandb.teardown()

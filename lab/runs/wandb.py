"""Weights & Biases by config: ``logger=wandb``."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from lab.console import LabError, noted_if_slow
from lab.files import one_line
from lab.runs.boards import Board, keep_run, known_run, title
from lab.runs.stored_config import read_config

# Most characters of a run's name, and of its group, that W&B takes.
_LONGEST = 128
# What Lightning's logger calls the step.
_STEP = "trainer/global_step"


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
        place = Path(folder)
        name = title(place)
        named: dict[str, Any] = {
            "name": name[-_LONGEST:],
            "id": known_run(place, self.package) or secrets.token_hex(4),
            "project": project,
        }
        group = name.rpartition("/")[0][:_LONGEST]
        run = _begin(place, **named, dir=folder, group=group, entity=entity, mode=mode)
        super().__init__(**named, save_dir=folder, experiment=run)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        log = super().log_metrics
        self.send(lambda: log(metrics, step))

    @rank_zero_only
    def show_picture(self, tag: str, png: str | Path, step: int) -> None:
        self.log_image(tag, [str(png)], step)

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
        self.send(lambda: self.experiment.finish(exit_code=0 if status == "success" else 1), at_last=True)
        if isinstance(self.error, ConnectionError):
            import wandb

            # Its process, that of all W&B runs here, is gone, of which W&B would complain as this one ends.
            with suppress(Exception):
                wandb.teardown()


@rank_zero_only
def _begin(folder: Path, **given: Any) -> Any:
    """Notes the W&B run in the folder, then starts or reopens it: a kill in between leaves no second run.

    Not left to Lightning, which would go on in a run that the user has open, and end it.

    Args:
        folder: the run folder.
        given: arguments of ``wandb.init``.

    Returns:
        The W&B run; None in other processes than the first.
    """
    import wandb

    keep_run(folder, WeightsAndBiases.package, given["id"])
    try:
        with noted_if_slow("waiting for W&B (up to WANDB_INIT_TIMEOUT seconds, 90 if not set)"):
            # create_new: one process may have several runs, in a sweep or for seeds that train together.
            run = wandb.init(**given, notes=f"run folder: {folder.absolute()}", resume="allow", reinit="create_new")
            run.config.update({"folder": str(folder.absolute()), "config": read_config(folder)}, allow_val_change=True)
            run.define_metric(_STEP)
            run.define_metric("*", step_metric=_STEP, step_sync=True)
    except wandb.errors.Error as error:
        raise LabError(
            f"logger=wandb: {one_line(error)}; `wandb login` logs in, logger.wandb.mode=offline needs no login"
        ) from error
    return run

"""MLflow by config: ``logger=mlflow``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.utilities import rank_zero_only
from PIL import Image

from lab.console import LabError, first_line, noted_if_slow
from lab.files import one_line
from lab.runs.boards import Board, keep_run, known_run, title
from lab.runs.stored_config import read_config

# Seconds in which a server has to begin its first answer.
_TIMEOUT = 20.0


class MLflow(MLFlowLogger, Board):
    """Lightning's MLflow logger, with one MLflow run per run folder.

    Curves and pictures appear as they are logged, pictures by step; the config is the artifact ``config.yaml``, the run
    folder is the tag ``folder``, and the Eureka-moment is the metric ``eureka/epoch``. MLflow has no histograms. A
    resumed run goes on in its MLflow run: what was logged after its last checkpoint is there twice, since MLflow takes
    nothing back.

    Args:
        folder: the run folder.
        experiment: of MLflow.
        tracking_uri: of a server or a store; None takes ``MLFLOW_TRACKING_URI``, and without it a database and
            artifacts in ``save_dir``.
        save_dir: folder for that database and the artifacts.

    Raises:
        LabError: if MLflow cannot be reached, no longer has the run, or has a place for artifacts that cannot be
            written.
    """

    package = "mlflow"

    def __init__(
        self,
        folder: str,
        experiment: str = "eureka-lab",
        tracking_uri: str | None = None,
        save_dir: str = "mlruns",
    ) -> None:
        self._folder = Path(folder)
        known = known_run(self._folder, self.package)
        self._goes_on = known is not None
        place, where = Path(save_dir).expanduser().absolute(), str(self._folder.absolute())
        own = None if tracking_uri else os.environ.get("MLFLOW_TRACKING_URI")
        if (uri := tracking_uri or own or "").startswith("http"):
            _check_answers(uri)
        if local := not (tracking_uri or own):
            try:
                place.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LabError(f"logger.mlflow.save_dir={save_dir} cannot be made: {one_line(error)}") from error
        # By itself, MLflow tries for minutes at every call, while the run stands still.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", f"{_TIMEOUT:.0f}")
        from mlflow.exceptions import MlflowException

        errors: tuple[type[Exception], ...] = (MlflowException, *_database_errors())
        try:
            with noted_if_slow("waiting for MLflow"):
                super().__init__(
                    experiment_name=experiment,
                    run_name=title(self._folder),
                    tracking_uri=tracking_uri or own or _database_in(place),
                    artifact_location=(place / "artifacts").as_uri() if local else None,
                    tags={"folder": where, "mlflow.note.content": f"run folder: {where}"},
                    run_id=known,
                )
                self._begin()
        except errors as error:
            raise LabError(f"logger=mlflow: {first_line(error)}") from error

    @rank_zero_only
    def _begin(self) -> None:
        """Starts an MLflow run and notes it in the folder, or reopens the one that is noted there."""
        keep_run(self._folder, self.package, str(self.run_id))
        if self._goes_on:
            self.experiment.update_run(self.run_id, status="RUNNING")
            # The folder may have moved meanwhile.
            for name, value in (self.tags or {}).items():
                self.experiment.set_tag(self.run_id, name, value)
        try:
            self.experiment.log_dict(self.run_id, read_config(self._folder), "config.yaml")
        except OSError as error:
            place = self.experiment.get_run(self.run_id).info.artifact_uri
            raise LabError(
                f"logger=mlflow: its database says that artifacts lie in {place}, which cannot be written "
                f"({one_line(error)}); logger=tensorboard goes on without it"
            ) from error

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        # A resumed run has the same hyper-parameters, and MLflow takes them only once.
        if not self._goes_on:
            log = super().log_hyperparams
            self.send(lambda: log(params))

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        log = super().log_metrics
        self.send(lambda: log(metrics, step))

    @rank_zero_only
    def finalize(self, status: str = "success") -> None:
        end = super().finalize
        self.send(lambda: end(status), at_last=True)

    @rank_zero_only
    def show_picture(self, tag: str, png: str | Path, step: int) -> None:
        key = re.sub(r"[^\w./ -]", "_", tag)
        self.send(lambda: self.experiment.log_image(self.run_id, Image.open(png), key=key, step=step))


@rank_zero_only
def _check_answers(uri: str) -> None:
    """Refuses a server that cannot be reached: MLflow itself would try for five minutes first, without a word."""
    import requests

    try:
        with noted_if_slow("waiting for MLflow"):
            requests.head(uri, timeout=_TIMEOUT)
    except requests.exceptions.SSLError:
        return  # MLflow has options of its own for certificates
    except requests.exceptions.RequestException as error:
        reason: BaseException = error
        while reason.__context__ is not None:
            reason = reason.__context__
        raise LabError(f"logger=mlflow: {uri} does not answer ({one_line(reason)})") from error


def _database_in(folder: Path) -> str:
    """The URL of the database in a folder, which SQLAlchemy writes as its version reads it.

    Raises:
        LabError: if it would read another folder from it, as versions before 2.1 do where a name has a question mark.
    """
    from sqlalchemy import URL, make_url

    database = str(folder / "mlflow.db")
    url = URL.create("sqlite", database=database).render_as_string()
    if make_url(url).database != database:
        raise LabError(
            f"logger=mlflow: its database cannot lie in {folder}, by its name: name another folder with "
            "logger.mlflow.save_dir, or install a newer SQLAlchemy"
        )
    return url


def _database_errors() -> tuple[type[Exception], ...]:
    """Errors of a database, which MLflow passes on; none where it has no SQLAlchemy, and asks a server."""
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        return ()
    return (SQLAlchemyError,)

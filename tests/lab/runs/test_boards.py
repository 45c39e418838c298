"""Boards: what each is given of a run, that a run that goes on goes on there, and what is said where one is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pandas as pd
import pytest
import yaml
from conftest import ROOT, newest, set_status, summary_of, train_in
from hydra.utils import get_object
from lightning.pytorch.loggers import Logger
from omegaconf import OmegaConf

from lab.callbacks.diagnostics.base import Keeper
from lab.config.compose import CONFIGS
from lab.console import LabError
from lab.runs.boards import FILE, LEFT_ALONE, Board, check_installed, keep_run, known_run
from lab.runs.folder import Run
from lab.runs.spec import RunSpec
from lab.train import run as train_with
from lab.training.build import build_loggers

LOOKS = (
    "callbacks=[reasoning,attention_scores]",
    "diagnostics.every_n_epochs=2",
    "diagnostics.pictures_every_n_epochs=2",
)
SHORT = ("experiment=reasoning", "data.numbers=4", "trainer.max_epochs=4", "trainer.check_val_every_n_epoch=2", *LOOKS)
PASSED = "callbacks.eureka.threshold=0.01"


def go_on(run: Path, *overrides: str) -> None:
    """The same command again, after the run was killed at step 2."""
    (checkpoint,) = run.glob("checkpoints/last-000000004.ckpt")
    checkpoint.unlink()
    set_status(run, "running")
    train_with([*overrides, "threads=1"])
    assert summary_of(run)["status"] == "finished" and len(newest(run)["state_dict"]) > 0


def test_the_board_of_the_page_takes_curves_the_moment_and_pictures(tmp_path: Path, monkeypatch) -> None:
    page = (ROOT / "docs" / "loggers.md").read_text()
    code, config = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "yaml"))
    assert code is not None and config is not None
    (tmp_path / "my_board.py").write_text(code[1])
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "conf" / "logger").mkdir(parents=True)
    (tmp_path / "conf" / "logger" / "pictures.yaml").write_text(config[1])
    search = f"hydra.searchpath=['file://{tmp_path / 'conf'}']"
    run = train_in(tmp_path / "runs", search, *SHORT, PASSED, "logger=pictures")
    (table,) = run.glob("csv/*/metrics.csv")
    rows = pd.read_csv(table).groupby("step").max()
    assert rows["val/accuracy"].dropna().index.tolist() == rows["eureka/epoch"].dropna().index.tolist() == [1, 3]
    assert {"train/loss", "eureka/threshold", "accuracy/best"} <= set(rows.columns)
    shown = {path.name for path in (run / "csv").glob("*.png")}
    assert {f"attention_scores_layers_{step}.png" for step in (0, 1, 3)} | {"gradient_norms_3.png"} <= shown


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_board_whose_package_is_missing_is_refused_before_any_work(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("lab.runs.boards.find_spec", lambda package: None)
    with pytest.raises(LabError, match=rf"^logger={name} needs {name}, .*eureka-lab\[{name}\]'$"):
        train_in(tmp_path / "runs", *SHORT, f"logger={name}")
    assert not (tmp_path / "runs").exists()
    check_installed("csv", Logger)


def test_the_identifier_of_a_run_on_a_board_is_data(tmp_path: Path) -> None:
    assert known_run(tmp_path, "wandb") is None
    keep_run(tmp_path, "wandb", "abc")
    keep_run(tmp_path, "mlflow", "def")
    assert (known_run(tmp_path, "wandb"), known_run(tmp_path, "mlflow")) == ("abc", "def")
    (tmp_path / FILE).write_text('{"wandb": "../../elsewhere", "mlflow": 1}')
    assert known_run(tmp_path, "wandb") is known_run(tmp_path, "mlflow") is None
    (tmp_path / FILE).write_text("[]")
    assert known_run(tmp_path, "wandb") is None
    keep_run(tmp_path, "wandb", "abc")
    assert known_run(tmp_path, "wandb") == "abc"
    (tmp_path / FILE).write_text("{")
    with pytest.raises(LabError, match=FILE):
        known_run(tmp_path, "wandb")


def test_weights_and_biases(tmp_path: Path, monkeypatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'eureka-lab[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    overrides = (*SHORT, PASSED, "logger=wandb", "checkpoints.every_n_steps=2", f"paths.runs={tmp_path}")
    run = train_in(tmp_path, *overrides)
    known = known_run(run, "wandb")
    go_on(run, *overrides)
    assert known_run(run, "wandb") == known
    # Offline, each start is a file of its own, of one and the same run.
    files = sorted(run.glob(f"wandb/offline-run-*-{known}/run-{known}.wandb"))
    assert len(files) == 2
    kept = files[0].read_bytes()
    for word in ("val/accuracy", "eureka/epoch", "attention_scores/layers", str(run), "reasoning/softmax"):
        assert word.encode() in kept
    assert list(run.glob("wandb/offline-run-*/files/media/images/attention_scores/*.png"))
    # Seeds that train together are runs of their own, and so is one that the user has open, in a notebook.
    with wandb.init(dir=tmp_path) as mine:
        train_with([*overrides, "seeds=[1,2]", "threads=1"])
        assert wandb.run is mine and mine.step == 0
        mine.log({"mine": 1.0})
    assert len({mine.id, *(known_run(run.with_name(f"seed={seed}"), "wandb") for seed in (0, 1, 2))}) == 4


def test_mlflow(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'eureka-lab[mlflow]'")
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    short = (*SHORT, PASSED, "logger=mlflow", "checkpoints.every_n_steps=2")
    overrides = (*short, f"logger.mlflow.save_dir={tmp_path / 'board'}", f"paths.runs={tmp_path / 'runs'}")
    run = train_in(tmp_path / "runs", *overrides)
    (damaged := tmp_path / "damaged.db").write_text("no database")
    with pytest.raises(LabError, match=r"^logger=mlflow: .*file is not a database"):
        train_with([*short, f"logger.mlflow.tracking_uri=sqlite:///{damaged}", f"paths.runs={tmp_path / 'none'}"])
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow has set it to the store before
    with pytest.raises(LabError, match=r"^logger\.mlflow\.save_dir=.*damaged\.db/x cannot be made"):
        train_with([*short, f"logger.mlflow.save_dir={damaged}/x", f"paths.runs={tmp_path / 'none'}"])
    assert not (tmp_path / "none").exists()
    client = MlflowClient(f"sqlite:///{tmp_path / 'board' / 'mlflow.db'}")
    known = str(known_run(run, "mlflow"))
    found = client.get_run(known)
    assert found.info.status == "FINISHED" and found.info.run_name.startswith("reasoning/softmax")
    assert found.data.tags["folder"] == str(run) and found.data.params["softmax"] == "softmax"
    assert found.data.metrics["eureka/epoch"] == 2
    config = next(tmp_path.glob(f"board/artifacts/{known}/artifacts/config.yaml"))
    assert yaml.safe_load(config.read_text()) == yaml.safe_load((run / "config.yaml").read_text())
    assert len(list(config.parent.glob("images/attention_scores?layers*.png"))) == 3
    go_on(run, *overrides)
    assert known_run(run, "mlflow") == known
    steps = [one.step for one in client.get_metric_history(known, "val/accuracy")]
    assert sorted(steps) == [1, 3, 3]
    assert client.get_run(known).info.status == "FINISHED"
    # The folder of runs has moved, and where it was there is a file.
    moved = tmp_path / "moved"
    (tmp_path / "runs").rename(moved)
    (tmp_path / "board").rename(tmp_path / "store")
    (tmp_path / "board").touch()
    there = [*short, f"logger.mlflow.save_dir={tmp_path / 'store'}", f"paths.runs={moved}", "threads=1"]
    run = moved / run.relative_to(tmp_path / "runs")
    set_status(run, "running")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(
        LabError, match=rf"^logger=mlflow: .*artifacts lie in file://{tmp_path}/board/artifacts/{known}/"
    ):
        train_with(there)
    tags = MlflowClient(f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}").get_run(known).data.tags
    assert (tags["folder"], tags["mlflow.note.content"]) == (str(run), f"run folder: {run}")
    again = ["experiment=reasoning", "logger=mlflow", f"paths.runs={tmp_path / 'other'}"]
    with pytest.raises(
        LabError, match=r"^logger=mlflow: http://localhost:1 does not answer \(ConnectionRefusedError: "
    ):
        train_with([*again, "logger.mlflow.tracking_uri=http://localhost:1"])
    assert not (tmp_path / "other").exists()
    (run / FILE).write_text(json.dumps({"mlflow": "0" * 32}))
    set_status(run, "running")
    with pytest.raises(LabError, match=r"^logger=mlflow: .*not found"):
        train_with(there)


class Gone(Board):
    """A board that answers once, and again when it is back."""

    package = "gone"
    back = False

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []

    @property
    def name(self) -> str:
        return "gone"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.send(lambda: self._take(step or 0))

    def _take(self, step: int) -> None:
        if self.taken and not self.back:
            raise ConnectionResetError("Connection lost")
        self.taken.append(step)


def test_a_board_that_no_longer_answers_does_not_end_the_run(monkeypatch, capsys) -> None:
    board, clock = Gone(), 0.0
    monkeypatch.setattr("lab.runs.boards.time.monotonic", lambda: clock)
    for step in range(4):
        board.log_metrics({}, step)
    clock = LEFT_ALONE + 1
    board.log_metrics({}, 4)
    assert board.taken == [0] and isinstance(board.error, ConnectionResetError)
    board.back = True
    board.log_metrics({}, 5)
    assert board.taken == [0], "it is left alone again"
    clock *= 3
    board.log_metrics({}, 6)
    assert board.taken == [0, 6] and board.error is None
    board.back = False
    board.log_metrics({}, 7)
    board.back = True
    board.log_metrics({}, 8)
    board.send(lambda: board._take(9), at_last=True)
    assert board.taken == [0, 6, 9]
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("logger=gone no longer takes what is logged (Connection lost): ")


class Numbers(Gone):
    """A board that takes numbers alone, as one does that writes JSON."""

    taken_by_all: ClassVar[set[str]] = set()

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        wrong = {name: value for name, value in metrics.items() if not isinstance(value, int | float)}
        assert not wrong, wrong
        self.taken_by_all.update(metrics)


def classes(group: str) -> dict[str, Any]:
    """The classes of a group's configs, by their names; not of those that are lists of others, or nothing."""
    found = {path.stem: OmegaConf.load(path).get(path.stem) for path in (CONFIGS / group).glob("*.yaml")}
    return {name: get_object(node._target_) for name, node in found.items() if node is not None}


@pytest.mark.parametrize("seeds", ["seed=0", "seeds=2"])
def test_every_callback_watches_and_every_logger_is_given_numbers(
    seeds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Numbers, "taken_by_all", set())
    monkeypatch.setattr("lab.runs.boards.find_spec", lambda package: True)
    numbers = f"+logger.numbers={{_target_: {__name__}.Numbers, _partial_: true}}"
    short = (*SHORT[:2], "trainer.max_epochs=1", "trainer.check_val_every_n_epoch=1", "threads=1")
    # Diagnostics are tried elsewhere, and loggers of a package or a server above.
    callbacks = [name for name, own in classes("callbacks").items() if not issubclass(own, Keeper)]
    loggers = [name for name, own in classes("logger").items() if getattr(own, "package", None) is None]
    watched = f"callbacks=[{','.join([*callbacks, 'gradient_norms', 'attention_entropy'])}]"
    given = (f"logger=[{','.join(loggers)}]", numbers)
    train_with([*short, watched, PASSED, seeds, *given, f"paths.runs={tmp_path}"])
    names = {"train/loss", "train/learning_rate", "val/accuracy", "accuracy/best", "eureka/threshold"}
    assert Numbers.taken_by_all >= {*names, "gradient/q/layer_0", "temperature/tau/layer_0"}


@pytest.mark.parametrize("error", [ConnectionResetError("Connection lost"), ValueError("not taken")])
def test_a_board_of_wandb_that_is_lost_ends_alone(tmp_path: Path, monkeypatch, error: Exception) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'eureka-lab[wandb]'")
    from lab.runs.wandb import WeightsAndBiases

    monkeypatch.setenv("WANDB_SILENT", "true")
    ended = []
    monkeypatch.setattr(wandb, "teardown", lambda: ended.append(True))
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    board = WeightsAndBiases(str(tmp_path), mode="disabled")

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(board.experiment, "log", fail)
    board.log_metrics({"loss": 1.0}, 1)
    assert board.error is error
    if isinstance(error, ConnectionError):
        monkeypatch.setattr(board.experiment, "finish", fail)
    board.finalize("success")
    assert bool(ended) == isinstance(error, ConnectionError), "its process, and so all its runs, are gone"


def test_a_lost_store_of_mlflow_does_not_end_the_run(tmp_path: Path, monkeypatch, capsys) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'eureka-lab[mlflow]'")
    from lab.runs.mlflow import MLflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    log, there = MLflow.log_metrics, f"logger.mlflow.save_dir={tmp_path / 'a ?%41b'}"

    def lose(board: MLflow, metrics: Any, step: int | None = None) -> None:
        (tmp_path / "a ?%41b" / "mlflow.db").write_text("no database")
        log(board, metrics, step)

    def refuse(*_: Any) -> None:
        raise ValueError("500")

    monkeypatch.setattr(MLflow, "log_metrics", lose)
    monkeypatch.setattr(MLflow.__base__, "log_hyperparams", refuse)
    run = train_in(tmp_path / "runs", *SHORT, "logger=mlflow", there)
    assert summary_of(run)["status"] == "finished"
    assert capsys.readouterr().err.count("logger=mlflow no longer takes what is logged (500)") == 1


def test_a_slow_board_is_told_of_once(monkeypatch, capsys) -> None:
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr("lab.runs.boards.time", SimpleNamespace(monotonic=lambda: next(clock)))
    board = Gone()
    for _ in range(20):
        board.send(lambda: None)
    assert capsys.readouterr().err.count("logger=gone is slow: the run has waited 32 s of 60 s") == 1


def test_only_the_first_process_of_a_run_makes_its_boards(tmp_path: Path) -> None:
    """Two at once would make the same tables of a database."""
    spec = RunSpec.compose([*SHORT, f"paths.runs={tmp_path}"])
    kinds = [len(build_loggers(spec, Run(spec.folder, primary), 0)) for primary in (True, False)]
    assert kinds == [2, 1]

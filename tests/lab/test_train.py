"""Runs from the command line, as a user types them: small, but whole."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import (
    SMALL,
    TWO_PROCESSES,
    Process,
    assert_same_weights,
    lab_train,
    made_once,
    newest,
    only_run,
    python,
    set_status,
    summary_of,
    torchrun,
    train_in,
    write_a_summary,
)
from hydra.utils import get_class
from lightning.pytorch.utilities import rank_zero_only

import lab.train
from lab.callbacks.checkpoints import Checkpoints
from lab.console import LabError
from lab.runs.checkpoints import AtomicCheckpointIO
from lab.runs.metrics import read_metrics
from lab.runs.spec import RunSpec
from lab.runs.summary import Eureka, Summary, read_summary
from lab.train import run as train_with
from lab.training import fit
from lab.training.module import TwoStepModule
from lab.training.stored import load_config

RESNET = ("model=resnet9", "model.width=2")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """One small run from start to end."""

    def train(folder: Path) -> None:
        lab_train(*SMALL, "softmax=norm_softmax_heat_treatment", folder=folder)

    return only_run(made_once(tmp_path_factory, "undisturbed", train))


def test_a_run_leaves_all_that_a_reader_needs(undisturbed: Path) -> None:
    summary = summary_of(undisturbed)
    assert summary["status"] == "finished"
    assert summary["experiment"] == "main_task"
    assert summary["softmax"] == "norm_softmax_heat_treatment"
    assert (summary["epochs"], summary["steps"], summary["samples"]) == (4, 16, 256)
    assert summary["eureka"]["happened"] is False
    assert summary["peak_memory_bytes"]["host"] > 2**20
    assert "python -m lab.train" in summary["command"]
    assert {"torch", "python"} <= summary["versions"].keys()
    for name in ("config.yaml", "provenance.json", "metrics.csv", "pictures/scenes.png", "checkpoints/best.ckpt"):
        assert (undisturbed / name).stat().st_size > 0
    assert len(list(undisturbed.glob("events.*"))) == 1
    assert undisturbed.name == "seed=0"


def test_metrics_hold_what_the_callbacks_saw(undisturbed: Path) -> None:
    rows = read_metrics(undisturbed / "metrics.csv")
    epochs = [row for row in rows if "val/accuracy" in row]
    assert [row["epoch"] for row in epochs] == [0, 1, 2, 3]
    last = epochs[-1]
    assert {"train/loss", "train/accuracy", "val/loss", "val/accuracy_top_right", "val/accuracy_bottom_left"} <= set(
        last
    )
    assert {f"gradient/{name}/layer_{i}" for name in "qkv" for i in (0, 1)} <= set(rows[0])
    # Heat treatment over the first two of four epochs: 1/tau is 3, then half-way, then 1/sqrt(8).
    taus = [row["temperature/tau/layer_1"] for row in epochs]
    end = 8**-0.5
    assert taus == pytest.approx([1 / 3, 2 / (3 + end), 1 / end, 1 / end], rel=1e-5)


def test_a_finished_run_is_not_run_again_unless_forced(undisturbed: Path) -> None:
    folder = undisturbed.parents[3]
    before = (undisturbed / "summary.json").read_text()
    again = lab_train(*SMALL, "softmax=norm_softmax_heat_treatment", folder=folder)
    assert "finished already" in again.stderr and "is not sent to" not in again.stderr
    assert (undisturbed / "summary.json").read_text() == before


def test_force_runs_again_and_keeps_the_old_run(tmp_path: Path) -> None:
    run = train_in(tmp_path, *SMALL, "debug=fast")
    old = (run / "summary.json").read_text()
    train_with([*SMALL, "debug=fast", f"paths.runs={tmp_path}", "threads=1", "force=true"])
    assert (run.with_name("seed=0~1") / "summary.json").read_text() == old
    assert (run / "summary.json").read_text() != old
    assert_same_weights(newest(run), newest(run.with_name("seed=0~1")))


def test_a_stopped_run_without_a_checkpoint_is_kept_when_it_starts_anew(tmp_path: Path, capsys) -> None:
    run = train_in(tmp_path, *SMALL, "debug=fast")
    old = (run / "metrics.csv").read_text()
    set_status(run, "stopped")
    for path in run.glob("checkpoints/last-*"):
        path.unlink()
    train_with([*SMALL, "debug=fast", f"paths.runs={tmp_path}", "threads=1"])
    aside = run.with_name("seed=0~1")
    assert f"no checkpoint is there to go on from, so it starts anew: the run before is kept in {aside}" in (
        capsys.readouterr().err
    )
    assert (aside / "metrics.csv").read_text() == old and (aside / "checkpoints" / "best.ckpt").exists()
    assert summary_of(run)["status"] == "finished"


def test_a_run_whose_summary_cannot_be_read_is_not_written_over(tmp_path: Path) -> None:
    run, command = (
        train_in(tmp_path, *SMALL, "debug=fast"),
        [*SMALL, "debug=fast", f"paths.runs={tmp_path}", "threads=1"],
    )
    for path in run.glob("checkpoints/*"):
        path.unlink()
    newer = json.dumps({**summary_of(run), "version": 99})
    (run / "summary.json").write_text(newer)
    with pytest.raises(LabError, match=r"summary.json is of version 99, and this lab reads up to 1: update the lab"):
        train_with(command)
    assert (run / "summary.json").read_text() == newer
    (run / "summary.json").write_text('{"status": "fini')
    old = (run / "metrics.csv").read_text()
    train_with(command)
    assert (run.with_name("seed=0~1") / "metrics.csv").read_text() == old
    assert summary_of(run)["status"] == "finished"


KILLED = """
import os, sys
from lab.runs.checkpoints import AtomicCheckpointIO
sound, last = AtomicCheckpointIO.save_checkpoint, sys.argv.pop(1)
def save(self, content, path, storage_options=None):
    sound(self, content, path)
    if str(path).endswith(last):
        os.kill(os.getpid(), 9)
AtomicCheckpointIO.save_checkpoint = save
from lab.train import main
main()
"""


@pytest.mark.parametrize("step", [6, 8])
def test_a_killed_run_ends_with_the_same_weights(tmp_path: Path, undisturbed: Path, step: int) -> None:
    """SIGKILL right after a checkpoint in mid-epoch (6) or at an epoch's end (8), then the same command."""
    command = [*SMALL, "softmax=norm_softmax_heat_treatment", f"checkpoints.every_n_steps={step}"]
    killed = python("-c", KILLED, f"last-{step:09d}.ckpt", *command, folder=tmp_path, check=False)
    assert killed.returncode == -signal.SIGKILL
    run = only_run(tmp_path)
    assert summary_of(run)["status"] == "stopped"
    resumed = lab_train(*command, folder=tmp_path)
    assert "going on from" in resumed.stderr
    assert summary_of(run)["status"] == "finished"
    assert_same_weights(newest(run), newest(undisturbed))
    fields = ("step", "epoch", "train/loss", "train/accuracy", "val/accuracy", "gradient/q/layer_0")
    kept, whole = (
        [{f: row.get(f) for f in fields} for row in read_metrics(r / "metrics.csv")] for r in (run, undisturbed)
    )
    assert kept == whole


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path: Path, undisturbed: Path, capsys) -> None:
    command = [*SMALL, "softmax=norm_softmax_heat_treatment", "checkpoints.every_n_steps=3"]
    run = train_in(tmp_path, *command)
    set_status(run, "stopped")
    last = sorted((run / "checkpoints").glob("last-*.ckpt"))[-1]
    last.write_bytes(last.read_bytes()[:2000])
    train_in(tmp_path, *command)
    assert f"damaged checkpoint, left out: {last}" in capsys.readouterr().err
    assert_same_weights(newest(run), newest(undisturbed))


def test_a_finished_run_of_another_configuration_is_not_taken_for_this_one(tmp_path: Path, capsys) -> None:
    """As after a change of a default, which is in no name. A new option that is null changes nothing."""
    run = train_in(tmp_path, *SMALL[:-1], "trainer.max_epochs=1", "logger=csv_only")
    config = run / "config.yaml"
    before = config.read_text().replace("  repeats: null\n", "")
    assert before != config.read_text()
    config.write_text(before)
    train_in(tmp_path, *SMALL[:-1], "trainer.max_epochs=1")
    told = capsys.readouterr().err
    assert "finished already" in told and "it was logged with csv_only and is not sent to tensorboard" in told
    config.write_text(before.replace("weight_decay: 0.05", "weight_decay: 0.5"))
    with pytest.raises(LabError, match=r"another configuration \(optim\.weight_decay: 0\.5 there, 0\.05 now\):"):
        train_in(tmp_path, *SMALL[:-1], "trainer.max_epochs=1")
    # Of an older lab, whose classes lay elsewhere: what was run is told first.
    config.write_text(config.read_text().replace("_target_: lab.", "_target_: older.lab."))
    provenance = run / "provenance.json"
    provenance.write_text(re.sub(r'"eureka-lab": "[^"]+"', '"eureka-lab": "0.1.0"', provenance.read_text()))
    told = r"\(optim\.weight_decay: 0\.5 .*_target_: .*; and \d+ more\) \(made by lab 0\.1\.0(, commit [0-9a-f]{8})?,"
    with pytest.raises(LabError, match=told):
        train_in(tmp_path, *SMALL[:-1], "trainer.max_epochs=1")
    with pytest.raises(LabError, match=r"=older\.lab\.\S+ .* not made: .* \(made by lab 0\.1\.0.*, which reads it\)$"):
        load_config(run)
    with pytest.raises(LabError, match=r"PYTHONPATH=<its folder>$"):
        load_config(run, ["no_such_module"])


@pytest.mark.parametrize("epochs", ["null", "-1", "0"])
def test_a_run_without_a_last_epoch_is_refused(tmp_path: Path, epochs: str) -> None:
    with pytest.raises(LabError, match=r"trainer\.max_epochs=.* is wrong: it must be (greater than 0|a whole number)"):
        train_in(tmp_path, *SMALL[:-1], f"trainer.max_epochs={epochs}", "trainer.max_steps=5")
    assert not list(tmp_path.iterdir())


def test_checkpoints_of_a_run_are_written_beside_their_place(tmp_path: Path, monkeypatch) -> None:
    moved = []
    sound = AtomicCheckpointIO.save_checkpoint
    monkeypatch.setattr(
        AtomicCheckpointIO,
        "save_checkpoint",
        lambda self, content, path, storage_options=None: (moved.append(Path(path).name), sound(self, content, path)),
    )
    run = train_in(tmp_path, *SMALL[:-1], "trainer.max_epochs=1")
    assert {path.name for path in (run / "checkpoints").iterdir()} == {*moved} == {"best.ckpt", "last-000000004.ckpt"}


def test_a_run_killed_at_its_very_end_keeps_its_numbers(tmp_path: Path) -> None:
    """Between the last checkpoint and the last summary: there is nothing left to train, and nothing logged anew."""
    command = [*SMALL, "callbacks=[default,attention_entropy]", "diagnostics.pictures_every_n_epochs=0"]
    command += ["callbacks.throughput.every_n_steps=2"]
    run = train_in(tmp_path, *command)
    whole = summary_of(run)
    path = run / "summary.json"
    path.write_text(json.dumps({**whole, "status": "stopped", "metrics": {}, "epochs": 3, "best": None}))
    pictures = [run / "pictures" / f"{name}.png" for name in ("gradient_norms", "attention_entropy")]
    for picture in pictures:
        picture.unlink()
    train_in(tmp_path, *command)
    after = summary_of(run)
    for name in ("status", "epochs", "steps", "metrics", "best", "eureka", "samples_per_second"):
        assert after[name] == whole[name] is not None, name
    assert after["wall_seconds"] <= whole["wall_seconds"]  # what loading takes does not count
    assert all(picture.exists() for picture in pictures)


def test_a_run_that_ends_within_an_epoch_has_its_epochs_when_it_is_gone_on_with(tmp_path: Path, capsys) -> None:
    run = train_in(tmp_path, *SMALL, "trainer.max_steps=15")
    told = capsys.readouterr().err
    assert "the last 3 of trainer.max_steps=15 steps are not validated: 4 steps come between" in told
    whole = summary_of(run)["epochs"]
    set_status(run, "stopped")
    train_in(tmp_path, *SMALL, "trainer.max_steps=15")
    assert summary_of(run)["epochs"] == whole == 4


def test_an_accuracy_of_nothing_is_no_number(tmp_path: Path, capsys, recwarn) -> None:
    always = ["data.task.top_right_probability=1", "callbacks.eureka.threshold=0.999"]
    run = train_in(tmp_path, *SMALL[:-1], "trainer.max_epochs=1", *always)
    last = [row for row in read_metrics(run / "metrics.csv") if "val/accuracy" in row][-1]
    assert math.isnan(last["val/accuracy_bottom_left"]) and last["val/accuracy_top_right"] == last["val/accuracy"]
    assert summary_of(run)["metrics"]["val/accuracy_bottom_left"] is None
    assert not [one for one in recwarn if "compute" in str(one.message)]


def test_a_plateau_that_is_no_share_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.datasets.vision.VisionData.prior_accuracy", lambda self: "half")
    with pytest.raises(
        LabError, match=r"VisionData\.prior_accuracy\(\) gives 'half': it must be a number from 0 to 1, or"
    ):
        train_in(tmp_path, *SMALL)


def test_a_length_that_does_not_fit_is_told(tmp_path: Path, capsys) -> None:
    train_in(tmp_path / "1", *SMALL[:-1], "trainer.max_epochs=5", "trainer.max_steps=2")
    told = capsys.readouterr().err
    assert "no Eureka-moment can be seen: the first validation would come at step 4, and the run ends at 2" in told
    assert (
        "schedules are for trainer.max_epochs=5, of which trainer.max_steps=2 trains 0.5: for whole ones give " in told
    )
    train_in(
        tmp_path / "2", *SMALL[:-1], "trainer.max_epochs=1", "trainer.accumulate_grad_batches=3", "trainer.max_steps=1"
    )
    told = capsys.readouterr().err
    assert "the last step of each epoch has 1 of 3 batches, and 1/3 of the gradient" in told
    assert "trainer.max_steps=1 trains 0.5: for whole ones leave trainer.max_steps out\n" in told
    train_in(tmp_path / "3", *SMALL[:-1], "trainer.max_epochs=1", "trainer.accumulate_grad_batches=2")
    told = capsys.readouterr().err
    assert "last step of each epoch" not in told and "schedules are for" not in told


def test_a_run_that_has_had_its_moment_long_enough_trains_no_more(tmp_path: Path, capsys) -> None:
    command = [*SMALL, "callbacks.eureka.threshold=0.01", "callbacks.eureka.stop_after=1"]
    run = train_in(tmp_path, *command)
    assert "threshold=0.01 is no sign of a Eureka-moment here: the prior p(z) alone reaches" in capsys.readouterr().err
    assert summary_of(run)["epochs"] == 2
    set_status(run, "stopped")
    train_in(tmp_path, *command)
    assert (summary_of(run)["epochs"], summary_of(run)["steps"]) == (2, 8)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "callbacks.eureka.metric=val/acc",
            r"callbacks\.eureka\.metric=val/acc is not logged; did you mean 'val/accuracy'",
        ),
        ("checkpoints.best=val/acc", r"checkpoints\.best=val/acc is not logged; did you mean 'val/accuracy'"),
    ],
)
def test_a_metric_that_nobody_logs_is_named_before_training(tmp_path: Path, override: str, words: str) -> None:
    for seeds in ("null", "2"):
        with pytest.raises(LabError, match=words):
            train_in(tmp_path, *SMALL, "model.drop_path_rate=0", override, f"seeds={seeds}")
        assert not list(tmp_path.iterdir())


def test_the_best_loss_is_the_least(tmp_path: Path) -> None:
    validated = ("data.numbers=4", "trainer.max_epochs=30", "trainer.check_val_every_n_epoch=1", "optim.lr=0.1")
    folder = train_in(tmp_path, "experiment=reasoning", *validated, "checkpoints.best=val/loss", "logger=csv_only")
    losses = [row["val/loss"] for row in read_metrics(folder / "metrics.csv") if "val/loss" in row]
    assert losses[-1] > min(losses) < losses[0]
    assert newest(folder)["callbacks"]["Checkpoints"]["best_value"] == pytest.approx(min(losses), rel=1e-5)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("optim.name=lion", "+optim.options.fused=true"), r"optim\.options .* do not fit optim\.name=lion: "),
        (("optim.schedule=plateau",), r"optim\.schedule='plateau' is wrong: it must be 'cosine', "),
        (("trainer.max_time=abc",), r"trainer\.max_time='abc' is wrong: it must be days:hours:minutes:seconds"),
        (("trainer.devices=[0]",), "these options of trainer do not work here: .*CPUAccelerator"),
        (("trainer.devices=[0]", "seeds=2", "model.drop_path_rate=0"), "these options of trainer do not work here"),
        (("trainer.max_time={minute:15}",), r"trainer\.max_time"),
        (
            ("trainer.max_time=00:00:00:00",),
            r"trainer\.max_time='00:00:00:00' is wrong: it must be longer than no time",
        ),
        (("trainer.max_time={seconds:0}",), r"trainer\.max_time.* must be longer than no time"),
        (("trainer.strategy=ddp_spawn",), r"trainer\.strategy='ddp_spawn' is wrong"),
        (("trainer.accelerator=auto", "trainer.precision=16-mixed"), r"trainer\.precision=16-mixed is for GPUs: on a"),
        (
            ("trainer.strategy=single_device", "trainer.devices=2"),
            r"trains on 1, not on trainer\.devices=2",
        ),
        (("+trainer.default_root_dir=mine",), r"trainer\.default_root_dir='mine' is wrong: it must be null"),
        (
            ("trainer.limit_val_batches=0.1", "trainer.check_val_every_n_epoch=2"),
            r"check 0\.1 of the `val_dataloader` but 0\.1 \* 2 < 1",
        ),
        (("optim=deit", "optim.name=adahessian"), "optim.name=adahessian needs second derivatives"),
        (
            ("+logger.mine={_target_: lightning.pytorch.loggers.CSVLogger, save_dir: .}",),
            "logger.mine has no _partial_: true",
        ),
        (("model.drop_path_rate=5",), r"model\.drop_path_rate=5 is wrong: it must be at least 0 and less than 1"),
        (("intervention=grad_scaling", *RESNET), "has no attention whose gradients could be scaled"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_built_is_told_in_one_sentence(tmp_path: Path, overrides: tuple[str, ...], words: str) -> None:
    small = SMALL if "model=resnet9" not in overrides else [one for one in SMALL if not one.startswith("model.")]
    with pytest.raises(LabError, match=words):
        train_in(tmp_path, *small, *overrides)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_callback_of_lightning_saves_beside_the_lab_s(tmp_path: Path) -> None:
    mine = "{_target_: lightning.pytorch.callbacks.ModelCheckpoint, dirpath: " + str(tmp_path / "mine" / "here") + "}"
    run = train_in(tmp_path / "runs", *SMALL, f"+callbacks.mine={mine}")
    assert summary_of(run)["status"] == "finished" and list((tmp_path / "mine" / "here").glob("*.ckpt"))


def test_how_often_diagnostics_look_is_no_other_run(tmp_path: Path) -> None:
    watched = [*SMALL, "callbacks=[default,attention_entropy]"]
    run = train_in(tmp_path, *watched, "diagnostics.every_n_epochs=2")
    set_status(run, "stopped")
    train_in(tmp_path, *watched, "diagnostics.every_n_epochs=3")
    assert summary_of(run)["status"] == "finished"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"cannot be written: .*name another folder with paths\.runs"):
        train_with([*SMALL, f"paths.runs={tmp_path / 'file'}"])


def test_how_a_run_ended_is_one_line_with_its_reason() -> None:
    common = {"softmax": "softmax", "seed": 0, "epochs": 1}
    failed = {"status": "failed", "eureka": {"happened": False, "threshold": 0.7}, "steps": 30, **common}
    told = str(Summary.model_validate({**failed, "error": "the loss is nan at step 30"}))
    assert told == "failed: no Eureka-moment, 30 steps, the loss is nan at step 30"
    unwatched = {"status": "finished", "eureka": {"happened": False, "threshold": None}, "steps": 5, **common}
    assert str(Summary.model_validate(unwatched)) == "finished: 5 steps"


def test_a_seed_that_failed_among_others_fails_the_command(tmp_path: Path, monkeypatch, capsys) -> None:
    eureka = Eureka(happened=False, threshold=0.7)
    common = {"softmax": "softmax", "eureka": eureka, "epochs": 0}
    ends = [Summary(status="finished", seed=0, **common), Summary(status="failed", seed=1, error="nan", **common)]
    monkeypatch.setattr(lab.train, "start", lambda _: ends)
    monkeypatch.setattr(sys, "argv", ["lab.train", *SMALL, "seeds=2", f"hydra.run.dir={tmp_path}"])
    with pytest.raises(SystemExit) as ended:
        lab.train.main()
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert "seed 1: failed: no Eureka-moment, 0 steps, nan" in said and "error: seeds 1 failed" in said


def test_the_causes_of_an_error_are_shown_where_they_are_asked_for(tmp_path: Path, monkeypatch, capsys) -> None:
    cause = ValueError("rows do not fit")

    def fails(_: object) -> None:
        raise LabError("the data cannot be made") from cause

    monkeypatch.setattr(lab.train, "start", fails)
    monkeypatch.setattr(sys, "argv", ["lab.train", *SMALL, f"hydra.run.dir={tmp_path}"])
    with pytest.raises(SystemExit):
        lab.train.main()
    assert "error: the data cannot be made\n" in capsys.readouterr().err
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(LabError, match="the data cannot be made") as error:
        lab.train.main()
    assert error.value.__cause__ is cause


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    broken = ["optim.lr=1e30", "optim.lr_reference_batch=null", "optim.warmup_epochs=0", "checkpoints.every_n_steps=1"]
    with pytest.raises(LabError, match=r"the loss is nan at step \d+ .*gradient norms: .*blocks\.0 "):
        train_in(tmp_path, *SMALL, *broken)
    run = only_run(tmp_path)
    summary = summary_of(run)
    assert summary["status"] == "failed" and summary["diverged"]
    told = [summary["eureka"][name] for name in ("happened", "threshold", "changed")]
    assert told == [False, 0.7, None], "before the first validation it is known, too, that no moment comes"
    assert "gradient norms" in summary["error"]
    weights = newest(run)["state_dict"]
    assert newest(run)["global_step"] <= summary["steps"]
    assert all(torch.isfinite(tensor).all() for tensor in weights.values() if tensor.is_floating_point())


def test_an_interrupted_run_is_stopped_and_can_go_on(tmp_path: Path) -> None:
    command = [*SMALL, "trainer.max_epochs=3000", "checkpoints.every_n_steps=5"]
    process = Process("-m", "lab.train", *command, folder=tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("last-*.ckpt")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, said
    assert "Ctrl-C: saved at step" in said and "Traceback" not in said
    run = only_run(tmp_path)
    summary = summary_of(run)
    assert summary["status"] == "stopped"
    assert summary["steps"] == newest(run)["global_step"] >= 5
    assert (run / "metrics.csv").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_before_it_trains_leaves_nothing(
    tmp_path: Path, number: signal.Signals, monkeypatch
) -> None:
    """As its data are read, which takes long.

    In small pieces, as real data are: a signal in the moment before one long sleep would be heard only after it.
    """
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "slow.py").write_text(
        "import time\n\nclass Slow:\n    def load(self, split: str):\n        while True: time.sleep(0.01)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "data"))
    # So few are drawn in no time, and nothing says that they are kept.
    few = ["+drawn.train_size=20", "+drawn.test_size=20"]
    slow = ["data/source=drawn", *few, "+data.source.slow={_target_: slow.Slow}"]
    process = Process("-m", "lab.train", "experiment=main_task", *slow, folder=tmp_path)
    deadline = time.monotonic() + 120
    while not (tmp_path / "runs").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    *before, last = said.strip().splitlines()
    assert last == ("Ctrl-C: ended" if number == signal.SIGINT else "SIGTERM: ended")
    assert set(before) <= {"loading PyTorch"}  # a busy machine takes more than three seconds
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("module", ["lab.train", "lab.inspect"])
def test_ctrl_c_while_a_command_is_importing_is_one_line(module: str, tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("raise KeyboardInterrupt")
    process = subprocess.run([sys.executable, "-m", module, "--x"], cwd=tmp_path, capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (130, "\nCtrl-C: ended\n")


def test_a_command_started_as_a_file_says_how_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder then leads Python's path, and `lab/inspect.py` is taken for Python's own module of that name."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for command in ([lab.train.__file__], ["-c", "import dataclasses"]):
        process = subprocess.run(
            [sys.executable, *command], cwd=Path(lab.train.__file__).parent, capture_output=True, text=True
        )
        assert process.returncode == 1
        assert process.stderr.count("\n") == 1 and "python -m lab.train" in process.stderr


@pytest.mark.slow
def test_two_processes_share_scenes_and_validation(tmp_path: Path) -> None:
    """In a sweep, too, where each run has to start processes of its own and not the sweep's."""
    lab_train("-m", "seed=1", *SMALL, *TWO_PROCESSES, "callbacks.eureka.threshold=0.01", folder=tmp_path)
    run = only_run(tmp_path)
    summary = summary_of(run)
    assert summary["status"] == "finished"
    assert summary["seed"] == 1 and " -m seed" not in summary["command"]
    # 64 scenes an epoch, 16 a process: two steps.
    assert (summary["steps"], summary["samples"]) == (8, 256)
    assert summary["eureka"]["epoch"] == 1
    right = 40 * summary["eureka"]["accuracy"]  # of 40 scenes, none of them counted twice
    assert right == pytest.approx(round(right), abs=1e-3)
    # One event file: only the first process logs.
    assert len(list(run.glob("events.*"))) == 1


@pytest.mark.slow
def test_an_epoch_that_processes_resume_half_way_reports_all_of_itself(tmp_path: Path) -> None:
    command = [*SMALL, "data.epoch_size=128", "trainer.max_epochs=1", "checkpoints.every_n_steps=2"]
    torchrun(*command, folder=tmp_path)
    run = only_run(tmp_path)
    whole = summary_of(run)
    assert [path.name for path in sorted((run / "checkpoints").glob("last-*"))] == [
        "last-000000002.ckpt",
        "last-000000004.ckpt",
    ]
    (run / "checkpoints" / "last-000000004.ckpt").unlink()
    set_status(run, "stopped")
    torchrun(*command, folder=tmp_path)
    assert summary_of(run)["metrics"] == pytest.approx(whole["metrics"], rel=1e-5)


def test_processes_share_the_full_batch_of_the_reasoning_task(tmp_path: Path, one_thread) -> None:
    """The mean of their gradients is that of the whole: the same training but for rounding."""
    setting = ("experiment=reasoning", "data.numbers=4", "trainer.max_epochs=20", "logger=csv_only")
    torchrun(*setting, folder=tmp_path)
    shared, alone = summary_of(only_run(tmp_path)), summary_of(train_in(tmp_path / "alone", *setting))
    assert shared["samples"] == alone["samples"] == 20 * 76
    assert shared["metrics"]["train/loss"] == pytest.approx(alone["metrics"]["train/loss"], rel=1e-3)


def test_the_best_is_a_number() -> None:
    best = Checkpoints(Path("nowhere"), best="val/loss")
    assert not best._is_better(math.nan)
    assert best._is_better(0.5)


@pytest.mark.parametrize("accelerator", ["gpu", "auto"])
def test_compiling_for_a_gpu_needs_a_compiler_of_c(accelerator: str, monkeypatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/clang" if name == "clang" else None)
    fit._check_compiler(accelerator)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(LabError, match="needs a C compiler for a GPU, and no-such-compiler is not there"):
        fit._check_compiler(accelerator)


def test_accumulated_samples_are_those_that_were_seen(tmp_path: Path) -> None:
    """Four batches an epoch, three a step: the second step of an epoch has one."""
    summary = summary_of(train_in(tmp_path, *SMALL, "trainer.accumulate_grad_batches=3"))
    assert (summary["steps"], summary["samples"]) == (8, 256)


def test_the_reasoning_task_finds_its_moment_and_stops_after_it(tmp_path: Path) -> None:
    # A threshold below chance: the moment comes with the first validation.
    eureka = ["callbacks.eureka.threshold=0.02", "callbacks.eureka.stop_after=10"]
    run = train_in(tmp_path, "experiment=reasoning", "softmax=learnable_temperature", *eureka)
    summary = summary_of(run)
    assert summary["status"] == "finished"
    assert (summary["eureka"]["epoch"], summary["eureka"]["step"], summary["eureka"]["samples"]) == (10, 10, 43_920)
    assert summary["steps"] == 20
    assert any("temperature/factor/layer_0/head_3" in row for row in read_metrics(run / "metrics.csv"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["softmax.tau=-1"], "softmax.tau=-1 is wrong: it must be greater than 0"),
        (["softmax.tau=abc"], "softmax.tau='abc' is wrong"),
        (["softmax.tua=1"], "did you mean 'tau'?"),
        (["model.patch_size=5"], "model.patch_size=5 does not divide"),
        (
            ["callbacks.eureka.threshold=2"],
            "eureka.threshold=2 must be below 1, as val/accuracy is an accuracy",
        ),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(LabError) as error:
        train_in(tmp_path, *SMALL, *overrides)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("there", "overrides", "words"),
    [
        (0, ["trainer=gpu"], r"^trainer\.accelerator=gpu, and PyTorch finds no GPU here: trainer=cpu trains without "),
        (2, ["trainer=ddp", "trainer.devices=4"], r"^trainer\.devices=4, and PyTorch finds no more than 2 GPU here$"),
        (
            0,
            ["trainer.num_nodes=2"],
            r"^trainer\.num_nodes=2 would wait here for other nodes, whose processes SLURM or",
        ),
    ],
)
def test_devices_that_are_not_there_are_told_before_anything_is_built(
    tmp_path: Path, there: int, overrides: list[str], words: str, monkeypatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name in ("LOCAL_RANK", "NODE_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LabError, match=words):
        train_with([*SMALL, *overrides, f"paths.runs={tmp_path}"])
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("overrides", [["optim.loss_precision=float64"], ["trainer.precision=64-true"]])
@pytest.mark.parametrize("accelerator", ["gpu", "mps", "auto"])
def test_64_bit_floats_are_refused_on_a_gpu_without_them(
    tmp_path: Path, accelerator: str, overrides: list[str], monkeypatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    command = [*SMALL, f"trainer.accelerator={accelerator}", *overrides, f"paths.runs={tmp_path}"]
    with pytest.raises(LabError, match=rf"^{re.escape(overrides[0])}: Apple's GPU knows no 64-bit floats; trainer=cpu"):
        train_with(command)
    assert not list(tmp_path.rglob("*"))


def test_processes_that_would_each_train_alone_in_one_folder_are_refused(tmp_path: Path, monkeypatch) -> None:
    """torchrun has started two, and the trainer knows of one."""
    for name, value in {"LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for devices in (1, "auto"):
        with pytest.raises(LabError, match=r"^2 processes were started, as by torchrun, and each would"):
            train_in(tmp_path, *SMALL, f"trainer.devices={devices}")
    assert not list(tmp_path.iterdir())


def test_a_task_of_a_launcher_trains_the_run_that_its_own_command_names(tmp_path: Path, monkeypatch) -> None:
    """As of ``srun sh -c 'python -m lab.train ... seed=$SLURM_PROCID'``: Lightning takes this process for rank 1."""
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    assert summary_of(train_in(tmp_path, *SMALL, "seed=1"))["status"] == "finished"


def test_a_run_that_a_signal_ends_before_its_block_begins_is_taken_back(tmp_path: Path) -> None:
    opening = fit._opened(RunSpec.compose([*SMALL, f"paths.runs={tmp_path}"]))
    opening.__enter__()
    assert len(list(tmp_path.rglob("config.yaml"))) == 1
    del opening
    assert not list(tmp_path.iterdir())


def test_a_folder_of_runs_whose_name_is_too_long_is_told(tmp_path: Path, monkeypatch, capsys) -> None:
    long = f"paths.runs={tmp_path / ('x' * 300)}"
    with pytest.raises(LabError, match=r"cannot be written: .*File name too long.*; name another folder with paths"):
        train_with(["experiment=reasoning", long])
    monkeypatch.setattr(sys, "argv", ["lab.train", "-m", "experiment=reasoning", "seed=0,1", long])
    with pytest.raises(SystemExit, match=r"^1$"):
        lab.train.main()
    assert re.fullmatch(r"error: paths\.runs: .* cannot be written: File name too long\n", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_a_machine_without_a_gpu_knows_what_one_has_finished(tmp_path: Path, monkeypatch) -> None:
    """As the login node of a cluster does, which looks at every run of a sweep."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    command = ["experiment=reasoning", "trainer=gpu", f"paths.runs={tmp_path}"]
    folder = tmp_path / "reasoning" / "softmax,trainer=gpu" / "seed=0"
    write_a_summary(folder)
    monkeypatch.setattr("lab.training.fit.train", lambda _: [read_summary(folder)])
    (summary,) = train_with(command)
    assert summary.status == "finished"
    for more in (["force=true"], ["seed=1"], ["seeds=2"]):
        with pytest.raises(LabError, match="finds no GPU here"):
            train_with([*command, *more])


def test_a_launcher_without_a_sweep_does_not_train_right_here(tmp_path: Path) -> None:
    """It would, on the login node of a cluster."""
    done = lab_train("experiment=reasoning", "hydra/launcher=submitit_slurm", folder=tmp_path, check=False)
    assert done.returncode == 1 and not list(tmp_path.iterdir())
    assert done.stderr.startswith("error: hydra/launcher=submitit_slurm has an effect only in sweeps")
    assert "add -m" in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(
        LabError, match=r"\+sweep=table_1 is one run here and leaves experiment, \+row, seed out: loop over lab\.run"
    ):
        train_with(["+sweep=table_1", f"paths.runs={tmp_path}"])


def test_the_command_line_answers_bad_input_in_one_sentence(tmp_path: Path) -> None:
    done = lab_train("experiment=main_task", "paths.data=/nowhere", folder=tmp_path, check=False)
    assert done.returncode == 1
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "no MNIST in /nowhere" in sentence and "data/source=drawn" in sentence
    assert "Traceback" not in done.stderr
    typo = lab_train("softmax=norm_softmx", folder=tmp_path, check=False)
    assert typo.returncode == 1
    assert "norm_softmax" in typo.stderr and "Traceback" not in typo.stderr


def late(*arguments: Any) -> Any:
    """Stands in for own code that fails in mid-training."""
    return {}["gone"]


@pytest.mark.parametrize(
    ("failing", "words"),
    [
        ("lab.datasets.reasoning.ReasoningData.draw_train", "drawing a batch fails (step 0 of epoch 1, both from 0)"),
        ("lab.training.interventions.grad_scaling.GradScaling.__call__", "GradScaling fails: "),
        ("lab.attention.schedule.HeatTreatment.__call__", "HeatTreatment fails when 50% of training is done: "),
    ],
)
def test_own_code_that_fails_in_mid_training_is_told_with_its_line(
    failing: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, _, name = failing.rpartition(".")
    kind = get_class(where)
    sound, epochs = getattr(kind, name), []

    def fails(*arguments: Any, **options: Any) -> Any:
        return (late if epochs else sound)(*arguments, **options)

    monkeypatch.setattr(kind, name, fails)
    monkeypatch.setattr(TwoStepModule, "on_train_epoch_end", lambda self: epochs.append(1))
    short = ("experiment=reasoning", "data.numbers=4", "trainer.max_epochs=2", "softmax=heat_treatment")
    with pytest.raises(LabError) as told:
        train_in(tmp_path, *short, "intervention=grad_scaling", "logger=csv_only")
    assert words in str(told.value) and "KeyError: 'gone' (" in str(told.value) and "test_train.py" in str(told.value)


def test_gradients_are_clipped_under_autocast(tmp_path: Path) -> None:
    """Lightning refuses to clip there where the optimiser is fused."""
    run = train_in(tmp_path, *SMALL, "trainer.precision=bf16-mixed", "+trainer.gradient_clip_val=0.1")
    assert summary_of(run)["status"] == "finished"


def test_what_a_profiler_has_found_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train_in(tmp_path, *SMALL, "trainer.max_epochs=1", "+trainer.profiler=simple")
    assert "Profiler Report" in caplog.text


def test_a_run_of_max_steps_goes_on_from_the_end_of_an_epoch(tmp_path: Path) -> None:
    typed = ["experiment=max_retrieval", "data.batch_size=8", "data.epoch_steps=4", "data.validation_size=16"]
    typed += ["trainer.max_epochs=3", "trainer.max_steps=10", "checkpoints.every_n_steps=2", "checkpoints.keep=9"]
    typed += ["threads=1", "logger=csv_only", f"paths.runs={tmp_path}"]
    train_with(typed)
    (folder,) = (path.parent for path in tmp_path.rglob("summary.json"))
    undisturbed = (folder / "metrics.csv").read_text()
    for path in folder.glob("checkpoints/last-*.ckpt"):
        if int(path.stem.removeprefix("last-")) > 4:
            path.unlink()
    set_status(folder, "stopped")
    train_with(typed)
    assert (folder / "metrics.csv").read_text() == undisturbed


def test_a_folder_whose_name_a_config_takes_for_a_reference_is_refused(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "${seed}").mkdir()
    monkeypatch.chdir(tmp_path / "${seed}")
    with pytest.raises(LabError, match=r"/\$\{seed\}/.*: a config cannot hold a folder with \$\{ in its name"):
        train_with(list(SMALL))
    assert not list((tmp_path / "${seed}").iterdir()) and not (tmp_path / "0").exists()

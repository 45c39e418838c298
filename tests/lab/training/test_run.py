import errno
import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from conftest import held, summary_of, write_a_summary
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from lab.callbacks.checkpoints import Checkpoints
from lab.callbacks.summary import RunSummary
from lab.config.compose import initialized
from lab.config.overrides import read_override
from lab.console import LabError
from lab.runs.checkpoints import (
    AtomicCheckpointIO,
    Checkpoint,
    DamagedCheckpoint,
    read_checkpoint,
    save_checkpoint,
)
from lab.runs.folder import Run
from lab.runs.outcome import Ending
from lab.runs.spec import RunSpec, run_name
from lab.runs.summary import Eureka, Summary
from lab.runs.walk import walk_runs
from lab.sweeps.record import jobs_of
from lab.sweeps.status import status_of
from lab.training.resume import check_resumable
from lab.training.start import start_apart


def test_a_name_says_what_is_run_whatever_the_order() -> None:
    typed = ["experiment=main_task", "softmax=norm_softmax", "softmax.tau=0.333", "seed=3", "trainer=gpu"]
    name = run_name("main_task", "norm_softmax", 3, typed)
    assert name == "main_task/norm_softmax,softmax.tau=0.333,trainer=gpu/seed=3"
    assert run_name("main_task", "norm_softmax", 3, typed[::-1]) == name


def test_a_name_leaves_out_where_it_runs() -> None:
    plain = run_name("reasoning", "softmax", 0, [])
    assert run_name("reasoning", "softmax", 0, ["paths.runs=/x", "force=true", "logger=csv_only"]) == plain
    assert run_name("reasoning", "softmax", 0, ["data.seed=4"]) != plain


def test_a_name_is_that_of_a_sweep_where_a_key_is_taken_out() -> None:
    name = run_name("reasoning", "softmax", 0, ["~callbacks.gradient_norms"])
    assert name == "reasoning/softmax,~callbacks.gradient_norms/seed=0"
    assert run_name("reasoning", "softmax", 0, ["~callbacks.gradient_norms=null"]) == name  # as Hydra hands it on
    assert read_override("~callbacks.gradient_norms=null").name == "~callbacks.gradient_norms"
    assert read_override("+row=vit").name == "row=vit"


def test_an_experiment_may_have_any_name(tmp_path: Path) -> None:
    names = ("checkpoints", "diagnostics", "pictures", "tensorboard")
    for name in names:
        write_a_summary(tmp_path / name / "softmax" / "seed=0")
        write_a_summary(tmp_path / name / "softmax" / "seed=0" / "checkpoints")  # within a run nothing is looked for
    assert sorted(found.path.parts[-3] for found in walk_runs(tmp_path)) == sorted(names)


def test_folders_of_data_that_differ_in_a_sign_have_runs_of_their_own() -> None:
    names = {run_name("language", "softmax", 0, [f"data.corpus.folder={one}"]) for one in ("texts/a", "texts-a", "a")}
    assert len(names) == 3
    assert "language/softmax,data.corpus.folder=a/seed=0" in names


def test_a_class_in_place_of_the_softmax_gives_its_own_name() -> None:
    typed = ["softmax._target_=my_rules.Mine", "optim.lr=1e-3"]
    assert run_name("reasoning", "softmax", 0, typed) == "reasoning/Mine,optim.lr=0.001/seed=0"
    based = run_name("reasoning", "norm_softmax", 0, ["softmax=norm_softmax", *typed])
    assert based == "reasoning/Mine,optim.lr=0.001,softmax=norm_softmax/seed=0"


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (["optim.lr= 0.01"], "optim.lr=0.01"),  # and no negative rate
        (["optim.lr='1e-3'"], "optim.lr=1e-3"),  # a word
        (["optim.lr=1e-3"], "optim.lr=0.001"),
        (["optim.lr=.0010"], "optim.lr=0.001"),
        (["softmax.tau=NULL", "model.layer_norm=TRUE"], "model.layer_norm=true,softmax.tau=null"),
        (["callbacks=[ a, b ]"], "callbacks=[a,b]"),
        (["optim.lr=1", "optim.lr=2"], "optim.lr=2"),
        (["data.note='a b'"], "data.note=a-b"),
    ],
)
def test_a_name_has_neither_blanks_and_quotes_around_values_nor_a_key_twice(typed: list[str], named: str) -> None:
    assert run_name("reasoning", "softmax", 0, typed) == f"reasoning/softmax,{named}/seed=0"


def test_a_run_by_itself_and_one_of_a_sweep_are_one_run() -> None:
    typed = ["experiment=reasoning", "optim.lr=1e-3", "model.layer_norm=false", "seed=0"]
    with initialized():
        config = GlobalHydra.instance().hydra.compose_config(
            "train", typed, run_mode=RunMode.MULTIRUN, with_log_configuration=False
        )
        (job,) = jobs_of(config)
    assert "optim.lr=0.001" in job, "what Hydra makes of it"
    assert run_name("reasoning", "softmax", 0, job) == run_name("reasoning", "softmax", 0, typed)


def test_a_name_of_long_foreign_letters_is_a_folder(tmp_path: Path) -> None:
    one, other = (run_name("reasoning", "softmax", 0, [f"+data.note='{'語' * 120}{end}'"]) for end in "ab")
    assert one != other
    (tmp_path / one).mkdir(parents=True)


def test_names_are_folders_even_when_long_or_odd() -> None:
    overrides = [f"model.option_{i}=value/{i} x" for i in range(40)]
    first = run_name("main_task", "softmax", 0, overrides)
    second = run_name("main_task", "softmax", 0, [*overrides[:-1], "model.option_39=other"])
    assert first != second
    assert all(len(part) <= 160 for part in first.split("/"))
    assert len(first.split("/")) == 3


def test_two_processes_cannot_hold_one_folder(tmp_path: Path) -> None:
    run = held(tmp_path / "r")
    with pytest.raises(LabError, match="another process is running in"):
        held(tmp_path / "r")
    run.release()
    held(tmp_path / "r").release()


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    run = held(tmp_path / "r")
    config = OmegaConf.create({"optim": {"lr": 0.1}, "paths": {"runs": "a"}, "force": False})
    run.identify(config, {})
    run.identify(OmegaConf.create({"optim": {"lr": 0.1}, "paths": {"runs": "b"}, "force": True}), {})
    with pytest.raises(LabError, match=r"optim\.lr: 0\.1 there, 0\.2 now"):
        run.identify(OmegaConf.create({"optim": {"lr": 0.2}, "paths": {}, "force": False}), {})
    run.release()


def test_force_keeps_the_run_before(tmp_path: Path) -> None:
    run = held(tmp_path / "r")
    assert run.set_aside() is None
    for number in (1, 2):
        (run.folder / "metrics.csv").write_text(f"old {number}")
        aside = run.set_aside()
        assert aside is not None and aside.name == f"r~{number}"
        assert (aside / "metrics.csv").read_text() == f"old {number}"
        assert not (run.folder / "metrics.csv").exists()
    run.release()


def test_a_run_that_cannot_be_set_aside_whole_stays_where_it_is(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "r").mkdir()
    for name in ("config.yaml", "metrics.csv", "provenance.json"):
        (tmp_path / "r" / name).write_text(name)
    run = held(tmp_path / "r")
    sound, moves = shutil.move, iter(range(9))

    def move(path: Path, to: Path) -> None:
        if next(moves) == 1:
            raise OSError("no")
        sound(path, to)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "move", move)
        with pytest.raises(OSError, match="no"):
            run.set_aside()
    run.take_back()
    assert sorted(path.name for path in run.folder.glob("[!.]*")) == ["config.yaml", "metrics.csv", "provenance.json"]
    assert not (tmp_path / "r~1").exists()

    def told(path: Path, to: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        sound(path, to)

    # Ctrl-C in the midst of it is heard after it: nothing is lost, and the run is moved back, as one again.
    monkeypatch.setattr(shutil, "move", told)
    with pytest.raises(KeyboardInterrupt):
        run.set_aside()
    with pytest.raises(KeyboardInterrupt):
        run.take_back()
    assert not (tmp_path / "r~1").exists()
    assert sorted(path.name for path in run.folder.glob("[!.]*")) == ["config.yaml", "metrics.csv", "provenance.json"]


@pytest.mark.parametrize(
    ("metric", "accuracy", "loss"),
    [
        ("val/accuracy_glossy", "val/accuracy_glossy", "val/loss"),
        ("val/loss_of_b", "val/accuracy", "val/loss_of_b"),
        ("val/perplexity", "val/accuracy", "val/loss"),
    ],
)
def test_curves_of_accuracy_and_loss_are_of_the_watched_metric_where_it_is_one(metric, accuracy, loss) -> None:
    eureka = Eureka(metric=metric)
    assert (eureka.drawn("accuracy"), eureka.drawn("loss")) == (accuracy, loss)


def test_a_killed_run_reads_as_stopped(tmp_path: Path) -> None:
    run = held(tmp_path / "r")
    write_a_summary(run.folder, "running")
    assert summary_of(run.folder)["status"] == "running"
    run.release()
    assert summary_of(run.folder)["status"] == "stopped"


@pytest.mark.parametrize("content", [b'{"status": "fin', b"\xff\xfe", b"[]", b"null", b'{"status": "asleep"}'])
def test_a_damaged_summary_reads_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "summary.json").write_bytes(content)
    assert summary_of(tmp_path) == {}
    assert status_of(tmp_path).status == "damaged"


def test_a_start_that_fails_does_not_take_back_what_a_run_had_come_to(tmp_path: Path) -> None:
    before = {
        "status": "stopped",
        "seed": 0,
        "softmax": "softmax",
        "epochs": 200,
        "eureka": {"happened": True, "epoch": 30},
        "metrics": {"a": 1.0},
    }
    (tmp_path / "summary.json").write_text(json.dumps({**before, "error": "of last time"}))
    fixed = Summary(status="running", seed=0, softmax="softmax")
    RunSummary(tmp_path, fixed).write(None, "failed", "no MNIST there")
    after = json.loads((tmp_path / "summary.json").read_text())
    assert {name: after[name] for name in before} == {**before, "status": "failed"}
    assert after["error"] == "no MNIST there"


def test_a_run_that_a_search_gave_up_stays_so_until_it_has_finished(tmp_path: Path) -> None:
    fixed = Summary(status="running", seed=0, softmax="softmax", epochs=1)
    for status, pruned, then in (("stopped", True, True), ("failed", False, True), ("finished", False, False)):
        RunSummary(tmp_path, fixed).write(None, status, pruned=pruned)
        assert summary_of(tmp_path)["pruned"] is then


def test_a_folder_that_cannot_be_written_hides_no_error_that_ended_the_run(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(tmp_path / "summary.json"))

    monkeypatch.setattr("lab.callbacks.summary.write_summary", refuse)
    monkeypatch.setattr("lab.runs.outcome.users_line_of", lambda _: None)  # for which it takes this test
    summary = RunSummary(tmp_path, Summary(status="running", seed=0, softmax="softmax"))
    for status in ("failed", "stopped"):
        summary.write(None, status)
    with pytest.raises(LabError, match=r"come to its end, but its summary cannot be written \(.*summary\.json"):
        summary.write(None, "finished")
    words = r"^.*summary\.json cannot be read or written \(Operation not permitted\): mend this and give the same "
    with pytest.raises(LabError, match=words), Ending(tmp_path).told():
        summary.write(None, "running")


def test_the_newest_checkpoints_are_kept_and_a_damaged_one_ahead_is_none_of_them(tmp_path: Path) -> None:
    def at(step: int) -> Any:
        return SimpleNamespace(
            global_step=step, loggers=[], is_global_zero=True, save_checkpoint=lambda path: path.write_bytes(b"")
        )

    def kept() -> set[int]:
        return {int(path.stem.split("-")[1]) for path in tmp_path.iterdir()}

    # 300 was killed before it let go of 100; 500 is damaged.
    for step in (100, 200, 300, 500):
        (tmp_path / f"last-{step:09d}.ckpt").touch()
    keeping = Checkpoints(tmp_path, keep=2)
    keeping.on_train_start(at(300), L.LightningModule())
    assert kept() == {200, 300, 500}
    keeping.save(at(300))
    assert kept() == {200, 300, 500}, "training has not gone on yet"
    keeping.save(at(400))
    assert kept() == {300, 400}


def checkpointed(folder: Path, *steps: int) -> Run:
    """A run folder with a checkpoint at each of these steps."""
    run = Run(folder, primary=False)
    for step in steps:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        save_checkpoint({"global_step": step, "weight": torch.zeros(100)}, run.checkpoints / f"last-{step:09d}.ckpt")
    return run


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_by_100_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def without_its_digest(path: Path) -> None:
    torch.save(read_checkpoint(path).content, path)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut_in_half, cut_by_100_bytes, without_its_digest, emptied])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(damage, tmp_path: Path, capsys) -> None:
    run = checkpointed(tmp_path, 10, 20)
    assert [one.step for one in run.intact_checkpoints()] == [20, 10]
    damage(run.checkpoints / "last-000000020.ckpt")
    newest = run.newest_checkpoint()
    assert newest is not None and newest.step == 10
    assert "damaged checkpoint, left out: " in (said := capsys.readouterr().err) and "last-000000020.ckpt" in said
    damage(run.checkpoints / "last-000000010.ckpt")
    with pytest.raises(LabError, match=r"no checkpoint of .* is intact: .*last-000000010\.ckpt .*force=true"):
        run.newest_checkpoint()


def test_a_checkpoint_of_before_digests_is_not_called_changed(tmp_path: Path) -> None:
    without_its_digest(path := checkpointed(tmp_path, 10).checkpoints / "last-000000010.ckpt")
    with pytest.raises(DamagedCheckpoint, match="it has no digest at its end: an older lab, or another program"):
        read_checkpoint(path)


def test_an_older_damaged_checkpoint_is_named_too(tmp_path: Path, capsys) -> None:
    run = checkpointed(tmp_path, 10, 20)
    emptied(run.checkpoints / "last-000000010.ckpt")
    assert [one.step for one in run.intact_checkpoints()] == [20]
    assert "last-000000010.ckpt" in capsys.readouterr().err


def test_every_flipped_bit_of_a_checkpoint_is_seen(tmp_path: Path) -> None:
    run = checkpointed(tmp_path, 10)
    path = run.checkpoints / "last-000000010.ckpt"
    content = path.read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(DamagedCheckpoint):
            read_checkpoint(path)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[...] DefaultCPUAllocator: can't allocate memory: ...")]
)
def test_what_the_machine_lacks_is_no_damage(tmp_path: Path, monkeypatch, error: Exception) -> None:
    """The run is to wait, not to go on from an older checkpoint."""
    run = checkpointed(tmp_path, 10, 20)
    assert checkpointed(tmp_path / "new").newest_checkpoint() is None

    def without_memory(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(torch, "load", without_memory)
    with pytest.raises(type(error)):
        run.newest_checkpoint()


def test_half_a_reserve_of_a_killed_run_goes(tmp_path: Path) -> None:
    (tmp_path / "..reserve.abcdefgh.unfinished").touch()
    held(tmp_path).release()
    assert not list(tmp_path.glob("*.unfinished"))


@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "provenance.json", "metrics.csv"])
def test_a_folder_where_a_file_would_be_is_refused(tmp_path: Path, name: str) -> None:
    run = held(tmp_path)
    (tmp_path / name).mkdir()
    with pytest.raises(LabError, match=f"{name} is a folder"):
        run.identify(OmegaConf.create({}), {})
    run.release()


def test_a_third_checkpoint_goes_where_nothing_is_left_to_train(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        (tmp_path / f"last-{step:09d}.ckpt").touch()
    trainer: Any = SimpleNamespace(global_step=30, is_global_zero=True)
    Checkpoints(tmp_path, keep=2).on_fit_end(trainer, L.LightningModule())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last-000000020.ckpt", "last-000000030.ckpt"]


def test_a_folder_where_a_checkpoint_would_be_is_refused(tmp_path: Path) -> None:
    run = checkpointed(tmp_path, 10)
    (run.checkpoints / "best.ckpt").mkdir()
    with pytest.raises(LabError, match=r"best\.ckpt is a folder"):
        run.newest_checkpoint()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"optimizer_states": []}, "lacks optimizer_states, so that training cannot go on: move it elsewhere"),
        ({"state_dict": {"weight": torch.zeros(3, 2), "bias": torch.zeros(2)}}, r"does not fit .*size mismatch"),
        ({"state_dict": {"weight": torch.zeros(2, 2)}}, r'does not fit .*Missing key.*"bias"'),
    ],
)
def test_a_checkpoint_that_training_cannot_go_on_from_is_refused(changed: dict, words: str, vision_data) -> None:
    module = torch.nn.Linear(2, 2)
    whole = {"state_dict": module.state_dict(), "optimizer_states": [{"param_groups": [{}]}], "callbacks": {"a": {}}}
    whole["loops"] = {"b": {}}
    check_resumable(Checkpoint(Path("last.ckpt"), whole, 1), module, vision_data)
    with pytest.raises(LabError, match=words):
        check_resumable(Checkpoint(Path("last.ckpt"), {**whole, **changed}, 1), module, vision_data)


def test_a_checkpoint_is_written_beside_its_place_and_moved_there(tmp_path: Path, monkeypatch) -> None:
    """Not in $TMPDIR, from where a move to another file system is a copy over what was there."""
    path = tmp_path / "best.ckpt"
    AtomicCheckpointIO(path.parent).save_checkpoint({"global_step": 1}, path)
    written: list[str] = []

    def killed(descriptor: int) -> None:
        written.extend(one.name for one in tmp_path.iterdir() if one != path)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpointIO(path.parent).save_checkpoint({"global_step": 2}, path)
    assert read_checkpoint(path).content == {"global_step": 1}
    assert len(written) == 1 and [one.name for one in tmp_path.iterdir()] == ["best.ckpt"]


def test_the_best_of_one_metric_is_not_that_of_another(tmp_path: Path) -> None:
    of_loss = Checkpoints(tmp_path, best="val/loss")
    of_loss.best_value = 1.2
    again, other = (Checkpoints(tmp_path, best=metric) for metric in ("val/loss", "val/accuracy"))
    for one in (again, other):
        one.load_state_dict(of_loss.state_dict())
    assert (again.best_value, other.best_value) == (1.2, None)


def test_a_run_that_is_a_command_of_its_own_keeps_its_share_of_the_cores(tmp_path: Path, monkeypatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("lab.training.start.train_apart", lambda words: asked.append(words) or 0)
    spec = RunSpec.compose(["experiment=reasoning", f"paths.runs={tmp_path}"])
    assert start_apart(spec, ["--config-dir=my"]) == [] == start_apart(spec.changed(threads=3), [])
    assert asked == [["--config-dir=my", *spec.overrides], [*spec.overrides, "threads=3"]]


def test_a_summary_is_kept_up_to_date_often_at_first_and_every_half_minute_later(tmp_path: Path, monkeypatch) -> None:
    now = 1000.0
    monkeypatch.setattr("lab.callbacks.summary.time", SimpleNamespace(monotonic=lambda: now))
    written: list[float] = []
    summary = RunSummary(tmp_path, Summary(status="running", seed=0, softmax="softmax"))
    monkeypatch.setattr(summary, "write", lambda *_: (written.append(now), setattr(summary, "_written", now)))
    trainer: Any = SimpleNamespace()
    summary.on_fit_start(trainer, trainer)
    summary.on_train_start(trainer, trainer)
    for second in range(1, 1000):
        now = 1000.0 + second
        summary.on_train_batch_end(trainer, trainer, None, None, 0)
    after = [moment - 1000 for moment in written]
    assert after[:4] == [0, 3, 6, 9] and after[-1] - after[-2] == 31 and len(after) < 60

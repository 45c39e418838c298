import json
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest
import torch
from conftest import summary_of, write_a_summary
from omegaconf import OmegaConf

from lab.callbacks.checkpoints import Checkpoints
from lab.callbacks.summary import RunSummary
from lab.console import LabError
from lab.runs.checkpoints import AtomicCheckpointIO
from lab.runs.folder import Run, load_checkpoint
from lab.runs.spec import run_name
from lab.runs.summary import Summary
from lab.sweeps.status import status_of


def test_a_name_says_what_is_run_whatever_the_order() -> None:
    typed = ["experiment=main_task", "softmax=norm_softmax", "softmax.tau=0.333", "seed=3", "trainer=gpu"]
    name = run_name("main_task", "norm_softmax", 3, typed)
    assert name == "main_task/norm_softmax,softmax.tau=0.333,trainer=gpu/seed=3"
    assert run_name("main_task", "norm_softmax", 3, typed[::-1]) == name


def test_a_name_leaves_out_where_it_runs() -> None:
    plain = run_name("reasoning", "softmax", 0, [])
    assert run_name("reasoning", "softmax", 0, ["paths.runs=/x", "force=true", "logger=csv_only"]) == plain
    assert run_name("reasoning", "softmax", 0, ["data.seed=4"]) != plain


def test_names_are_folders_even_when_long_or_odd() -> None:
    overrides = [f"model.option_{i}=value/{i} x" for i in range(40)]
    first = run_name("main_task", "softmax", 0, overrides)
    second = run_name("main_task", "softmax", 0, [*overrides[:-1], "model.option_39=other"])
    assert first != second
    assert all(len(part) <= 160 for part in first.split("/"))
    assert len(first.split("/")) == 3


def test_two_processes_cannot_hold_one_folder(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
    with pytest.raises(LabError, match="another process is running in"):
        Run(tmp_path / "r")
    run.release()
    Run(tmp_path / "r").release()


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
    config = OmegaConf.create({"optim": {"lr": 0.1}, "paths": {"runs": "a"}, "force": False})
    run.identify(config, {})
    run.identify(OmegaConf.create({"optim": {"lr": 0.1}, "paths": {"runs": "b"}, "force": True}), {})
    with pytest.raises(LabError, match=r"optim\.lr: 0\.1 there, 0\.2 now"):
        run.identify(OmegaConf.create({"optim": {"lr": 0.2}, "paths": {}, "force": False}), {})
    run.release()


def test_force_keeps_the_run_before(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
    assert run.set_aside() is None
    for number in (1, 2):
        (run.folder / "metrics.csv").write_text(f"old {number}")
        aside = run.set_aside()
        assert aside is not None and aside.name == f"r~{number}"
        assert (aside / "metrics.csv").read_text() == f"old {number}"
        assert not (run.folder / "metrics.csv").exists()
    run.release()


def test_a_killed_run_reads_as_stopped(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
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


def test_checkpoints_behind_are_let_go_of_and_a_damaged_one_ahead_does_not_count(tmp_path: Path) -> None:
    ahead = tmp_path / "last-000000500.ckpt"
    ahead.write_bytes(b"damaged")
    keeping = Checkpoints(tmp_path, keep=2)
    for step in (100, 200, 300):
        trainer = SimpleNamespace(
            global_step=step, loggers=[], is_global_zero=True, save_checkpoint=lambda path: path.write_bytes(b"")
        )
        keeping.save(trainer)  # type: ignore[arg-type]
    assert {path.name[5:14] for path in tmp_path.iterdir()} == {"000000200", "000000300", "000000500"}


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
    run.checkpoints.mkdir()
    torch.save({"global_step": 10}, run.checkpoints / "last-000000010.ckpt")
    torch.save({"global_step": 20}, run.checkpoints / "last-000000020.ckpt")
    assert run.newest_checkpoint()[1] == 20
    broken = run.checkpoints / "last-000000020.ckpt"
    broken.write_bytes(broken.read_bytes()[:100])
    path, step, damaged = run.newest_checkpoint()
    assert path is not None and path.name == "last-000000010.ckpt"
    assert step == 10
    assert len(damaged) == 1 and "last-000000020.ckpt" in damaged[0]
    run.release()


def test_nothing_begins_anew_over_checkpoints_of_which_none_loads(tmp_path: Path, monkeypatch) -> None:
    run = Run(tmp_path / "r")
    assert run.newest_checkpoint() == (None, 0, []) and run.checkpoint_steps() == set()
    run.checkpoints.mkdir()
    (run.checkpoints / "last-000000010.ckpt").write_bytes(b"damaged")
    for read in (run.newest_checkpoint, run.checkpoint_steps):
        with pytest.raises(LabError, match=r"no checkpoint of .*/r loads: .*last-000000010\.ckpt .*force=true"):
            read()

    # What the machine lacks is no damage: the run is to wait, not to go on from an older checkpoint.
    def without_memory(path: Path) -> dict:
        raise MemoryError

    monkeypatch.setattr("lab.runs.folder.load_checkpoint", without_memory)
    for read in (run.newest_checkpoint, run.checkpoint_steps):
        with pytest.raises(MemoryError):
            read()
    run.release()


def test_a_checkpoint_is_written_beside_its_place_and_moved_there(tmp_path: Path, monkeypatch) -> None:
    """Not in $TMPDIR, from where a move to another file system is a copy over what was there."""
    path = tmp_path / "best.ckpt"
    AtomicCheckpointIO().save_checkpoint({"global_step": 1}, path)
    written = []

    def killed(content: object, file: BinaryIO) -> None:
        written.append(Path(file.name) if isinstance(file.name, str) else tmp_path)
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpointIO().save_checkpoint({"global_step": 2}, path)
    assert load_checkpoint(path) == {"global_step": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["best.ckpt"]


@pytest.mark.parametrize("left", [0.5, -100], ids=["half", "all but 100 bytes"])
def test_a_truncated_checkpoint_is_damaged_and_no_fault_of_the_machine(tmp_path: Path, left: float) -> None:
    run = Run(tmp_path / "r")
    run.checkpoints.mkdir()
    weights = {"weight": torch.zeros(1000)}
    for step in (10, 20):
        torch.save({"global_step": step, **weights}, run.checkpoints / f"last-{step:09d}.ckpt")
    newest = run.checkpoints / "last-000000020.ckpt"
    size = newest.stat().st_size
    newest.write_bytes(newest.read_bytes()[: int(size * left) if left > 0 else int(left)])
    path, step, damaged = run.newest_checkpoint()
    assert path is not None and step == 10 and len(damaged) == 1
    (run.checkpoints / "last-000000010.ckpt").write_bytes(b"")
    with pytest.raises(LabError, match="force=true starts anew"):
        run.newest_checkpoint()
    run.release()

"""Runs are found and read once each; damaged ones are named, and nothing that a stranger wrote is believed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from report_runs import EPOCHS

from lab.bench.gathering import write_runs
from lab.files import DamagedFile
from lab.report import gather as gathering
from lab.report.assemble import assemble
from lab.report.gather import INDEX, gather
from lab.report.make import report
from lab.report.outcomes import outcome
from lab.report.settings import settings
from lab.sweeps.status import Gathering


def test_curves_and_the_rest_are_what_the_folder_says(write, tmp_path: Path) -> None:
    write(3, 12, accuracy=0.8)
    (run,) = gather(tmp_path).runs
    assert (run.seed, run.moment, run.accuracy, run.epochs, run.status) == (3, 12, 0.8, EPOCHS, "finished")
    assert list(run.curve("epoch")) == list(range(1, EPOCHS + 1))
    assert np.allclose(run.curve("val/accuracy"), [0.5] * 11 + [0.8] * 29)
    assert np.isnan(run.curve("train/accuracy")).all()
    assert "seed" not in run.config and "data.seed" not in run.config and run.config["optim.lr"] == 0.005


def test_only_what_is_new_is_read_again(write, tmp_path: Path) -> None:
    one, two = write(0, 12), write(1, None)
    assert gather(tmp_path).read == 2
    again = gather(tmp_path)
    assert again.read == 0 and [run.moment for run in again.runs] == [12, None]
    assert np.isfinite(again.runs[1].curve("val/accuracy")).all()
    write(1, 30)
    shutil.rmtree(one)
    write(2, 7)
    found = gather(tmp_path)
    assert found.read == 2 and [(run.seed, run.moment) for run in found.runs] == [(1, 30), (2, 7)]
    (tmp_path / INDEX).write_bytes(b"PK\x03\x04 half of it")
    assert gather(tmp_path).read == 2
    assert two.exists()


def test_many_runs_are_read_side_by_side_and_the_same(tmp_path: Path, monkeypatch, capsys) -> None:
    write_runs(tmp_path, 30, epochs=3)
    alone = gather(tmp_path, processes=1)
    (tmp_path / INDEX).unlink()
    monkeypatch.setattr(gathering, "_FOR_A_PROCESS", 10)
    together = gather(tmp_path, processes=2)
    assert "one process does the work" not in capsys.readouterr().err
    assert [run.folder for run in alone.runs] == [run.folder for run in together.runs]
    for one, other in zip(alone.runs, together.runs, strict=True):
        assert one.summary == other.summary and np.array_equal(one.curves, other.curves, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("summary.json", '{"status": "fin', "summary.json cannot be read"),
        ("summary.json", '{"status": "finished"}', "does not say seed, softmax"),
        ("config.yaml", "a: [1, 2", "config.yaml cannot be read"),
        ("config.yaml", None, "config.yaml cannot be read"),
        ("metrics.csv", "step,epoch,val/accuracy\n9,0.0,0.5\n19,1.", "the last line is incomplete"),
        ("metrics.csv", "step,epoch,val/accuracy\n9,0.0,high\n", "metrics.csv cannot be read"),
        ("metrics.csv", "\x00\x01", "metrics.csv cannot be read"),
        ("metrics.csv", "step,epoch,my/metric\n9,0.0,high\n", "metrics.csv cannot be read"),
        ("metrics.csv", "", "metrics.csv cannot be read: it is empty"),
        ("metrics.csv", "step,epoch,val/accuracy\n", "metrics.csv holds no row, although 400 steps were trained"),
        (
            "metrics.csv",
            "step,epoch,val/accuracy\n9,0,0.5\n",
            "metrics.csv ends at epoch 1, although 40 epochs were trained",
        ),
        ("metrics.csv", None, "metrics.csv holds no row, although 400 steps were trained"),
        ("config.yaml", "a: !!python/name:os.system", "config.yaml cannot be read: line 1"),
        ("config.yaml", "- " * 100_000, "config.yaml cannot be read: line 1: more than"),
    ],
)
def test_a_damaged_run_is_found(write, tmp_path: Path, name: str, content, told: str) -> None:
    write(0, 12)
    folder = write(1, 12)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    found = gather(tmp_path)
    assert [run.seed for run in found.runs] == [0]
    assert told in found.damaged[folder]


def test_a_run_that_ended_between_two_validations_is_whole(write, tmp_path: Path) -> None:
    """As by max_steps or max_time: metrics are logged with validations."""
    for seed, trained in ((0, 17), (1, 20)):
        folder = write(seed, None, "trainer.check_val_every_n_epoch=10", epochs=10)
        told = (folder / "summary.json").read_text()
        (folder / "summary.json").write_text(told.replace('"epochs": 10', f'"epochs": {trained}'))
    found = gather(tmp_path)
    assert [run.seed for run in found.runs] == [0]
    assert "ends at epoch 10, although 20 epochs were trained" in found.damaged[folder]


def test_what_was_a_run_is_named_where_it_counts_as_none(write, tmp_path: Path) -> None:
    aside, lost = (write(seed, 12) for seed in (0, 1))
    aside = aside.rename(aside.with_name("seed=0~1"))
    (lost / "summary.json").unlink()
    (lost / "provenance.json").touch()
    found = gather(tmp_path)
    assert not found.runs and found.damaged.keys() == {aside, lost}
    assert "seed=0~1 has a ~ in its name, as a run that force=true has set aside" in found.damaged[aside]
    assert "seed=1 has no summary.json" in found.damaged[lost]
    assert [run.status for run in Gathering(tmp_path).look()] == []


@pytest.mark.parametrize(("status", "until"), [("stopped", 15), ("running", 15), ("finished", EPOCHS)])
def test_rows_newer_than_the_summary_do_not_tell_that_no_moment_has_come(write, tmp_path, status, until) -> None:
    """As of a run that was killed: the summary is written less often, and the moment is known from it alone."""
    write(0, None, status=status, watched=15)
    (run,) = gather(tmp_path).runs
    assert (run.validated_epochs, run.watched_until, run.visible_epochs) == (until, until, until - 5)
    assert run.curve("epoch").max() == EPOCHS


def test_what_could_not_be_read_is_tried_again(write, tmp_path: Path, monkeypatch) -> None:
    folder = write(0, 12)
    with monkeypatch.context() as patch:  # as without the right to read: the files do not change with it

        def refused(path: Path) -> None:
            raise DamagedFile(path, "cannot be read")

        patch.setattr(gathering, "read_record", refused)
        assert folder in gather(tmp_path).damaged
    assert [run.folder for run in gather(tmp_path).runs] == [folder]


@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "metrics.csv"])
def test_a_link_to_nothing_is_a_damaged_run(write, tmp_path: Path, name: str) -> None:
    write(0, 12)
    folder = write(1, None, status="stopped")
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "annex")
    found = gather(tmp_path)
    assert [run.seed for run in found.runs] == [0]
    assert name in found.damaged[folder]


def test_damaged_runs_are_named_and_left_out(write, tmp_path: Path, capsys) -> None:
    write(0, 12)
    folder = write(1, 12)
    (folder / "summary.json").write_text("{")
    found, out = report([tmp_path], pictures_mib=0)
    assert len(found.runs) == 1
    assert f"left out: {folder}" in capsys.readouterr().err
    for name in ("index.html", "report.md"):
        assert "summary.json cannot be read" in (out / name).read_text()


def test_folders_that_are_not_looked_into_are_named(write, tmp_path: Path, monkeypatch) -> None:
    closed, scandir = [write(seed, 12) for seed in range(3)][1], os.scandir
    (tmp_path / "linked").symlink_to(closed.parent)

    def scan(folder: Path) -> Any:
        if Path(folder) == closed:
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", scan)
    found = gather(tmp_path)
    assert [run.seed for run in found.runs] == [0, 2]
    assert found.damaged == {
        closed: "seed=1 cannot be read: Permission denied",
        tmp_path / "linked": "linked is a link, which is not followed: name what it points to",
    }
    told = {run.folder: (run.status, run.reason) for run in Gathering(tmp_path).look()}
    assert told[closed] == ("left out", "cannot be read: Permission denied")
    assert told[tmp_path / "linked"][0] == "left out" and len(told) == 4


def test_an_index_that_came_with_a_folder_is_not_believed(write, tmp_path: Path) -> None:
    write(0, 12)
    gather(tmp_path)
    with np.load(tmp_path / INDEX) as stored:
        told, curves = json.loads(stored["text"].tobytes()), stored["curves"]
    for wrong in ({"configs": [5]}, {"runs": [{**told["runs"][0], "length": -1}]}, {"runs": 5}):
        text = json.dumps(told | wrong).encode()
        np.savez(tmp_path / INDEX, text=np.frombuffer(text, np.uint8), curves=curves)
        assert gather(tmp_path).read == 1


def test_a_run_that_nobody_holds_is_not_running(write, tmp_path: Path) -> None:
    folder = write(0, None, status="running", epochs=5)
    assert gather(tmp_path).runs[0].status == "stopped"
    with FileLock(folder / ".lock"):
        assert gather(tmp_path).runs[0].status == "running"


def test_which_run_of_a_seed_counts_does_not_hang_on_its_moment(write, tmp_path: Path) -> None:
    first = [write(seed, 12 if seed else None, root=tmp_path / "a", epochs=15 if seed else EPOCHS) for seed in range(2)]
    for seed in range(2):
        write(seed, None if seed else 12, root=tmp_path / "b", epochs=EPOCHS if seed else 15)
    (setting,) = settings(gather(tmp_path).runs)
    assert [run.folder for run in setting.runs] == first and len(setting.doubles) == 2


def test_the_most_advanced_run_of_a_seed_counts(write, tmp_path: Path) -> None:
    write(0, None, status="stopped", epochs=30, root=tmp_path / "a")
    done = write(0, 12, root=tmp_path / "b")
    (setting,) = settings(gather(tmp_path).runs)
    assert [run.folder for run in setting.runs] == [done] and len(setting.doubles) == 1
    assert outcome(setting).ratio.seeds == 1  # type: ignore[union-attr]


def test_folders_that_lie_in_each_other_count_once(write, tmp_path: Path) -> None:
    write(0, 12)
    found = assemble([gather(tmp_path), gather(tmp_path / "reasoning")])
    assert len(found.runs) == 1 and not found.settings[0].doubles


def test_one_folder_may_be_given_as_it_is(write, tmp_path: Path) -> None:
    left, out = write(0, 12), write(1, 12)
    found, _ = report(str(tmp_path), without=[out])
    assert [run.folder for run in found.runs] == [left]

"""A short storm: some of each sort of case, drawn by another seed than that of the page."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import yaml
from hydra.utils import instantiate

from lab.console import LabError
from lab.runs.checkpoints import DamagedCheckpoint, read_checkpoint, save_checkpoint
from scripts.storm.__main__ import storm
from scripts.storm.case import Outcome
from scripts.storm.command import Said
from scripts.storm.compare import unlike
from scripts.storm.grounds import Grounds, Undisturbed
from scripts.storm.hostile import ATTACKS
from scripts.storm.kills import STORM
from scripts.storm.record import Record
from scripts.storm.signals import _left_wrongly
from scripts.storm.strike import Strike

# Flip 14 is the only one from which a command goes on.
SHORT = ("--kills=2", "--signals=1", "--damage=2", "--flips=15", "--disk=1", "--lines=2", "--hostile=3", "--workers=1")


@pytest.fixture(autouse=True)
def grounds_that_go(tmp_path: Path, monkeypatch) -> None:
    """The folder of a storm with a failure stays: here, with the test's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.storm
@pytest.mark.slow
def test_the_lab_holds_in_a_short_storm(tmp_path: Path, capfd) -> None:
    held = storm(["--seed=1", *SHORT, "--only=kills,signals,damage,flips,disk,lines,hostile", f"--out={tmp_path}"])
    page = (tmp_path / "README.md").read_text()
    assert held, capfd.readouterr().err[-4000:]
    assert "| kills | 2 | 2 | 0 |" in page and "| flips | 15 | 15 | 0 |" in page and "No case failed." in page


def test_a_case_is_drawn_from_the_seed_and_its_number_alone(tmp_path: Path) -> None:
    few, many, other = (STORM.cases(Grounds(seed, tmp_path), count) for seed, count in ((3, 5), (3, 20), (4, 20)))
    assert [one.what for one in few] == [one.what for one in many[:5]] != [one.what for one in other[:5]]


def test_a_failure_is_told_with_the_command_that_repeats_it(tmp_path: Path, monkeypatch, capfd) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("scripts.storm.flips._flip", lambda *_: "bit 0, left as it was")
        assert not storm(["--only=flips", "--flips=2", "--workers=1", f"--out={tmp_path}"])
    page = (tmp_path / "README.md").read_text()
    assert "| flips | 2 | 0 | 2 |" in page
    assert "`python -m scripts.storm --seed 0 --flips 2 --only flips --number 1`: " in page
    assert "bit 0, left as it was is not noticed" in page
    # The same command tries again what failed, once; what has held is not carried out any more.
    for _ in range(2):
        assert storm(["--only=flips", "--flips=2", "--workers=1", f"--out={tmp_path}"])
        page = (tmp_path / "README.md").read_text()
        assert "| flips | 2 | 2 | 0 |" in page and "## Failed before, and held" in page and "not noticed" in page
    assert len((tmp_path / "cases.jsonl").read_text().splitlines()) == 4


def test_values_are_told_apart_however_deep() -> None:
    one, other = {"a": [torch.zeros(2), {"seconds": 1.0}]}, {"a": [-torch.zeros(2), {"seconds": 2.0}]}
    assert list(unlike(one, one, "x")) == []
    assert list(unlike(one, other, "x")) == ["x: a: 0 is another tensor"]
    assert list(unlike({"a": 1}, {"b": 1}, "x")) != []


def test_what_held_of_another_lab_is_carried_out_again_and_a_line_cut_off_is_left_out(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    case = STORM.cases(Grounds(0, tmp_path), 1)[0]
    path = tmp_path / "cases.jsonl"
    record = Record(path, 0)
    record.note("kills", Outcome(0, case, None))
    with path.open("a") as file:
        file.write('{"seed": 0, "storm": "ki')
    again = Record(path, 0)
    assert again.held("kills", 0, case) and not again.held("kills", 1, case)
    assert "its last line was cut off" in capsys.readouterr().err
    assert len(path.read_text().splitlines()) == 1
    monkeypatch.setattr("scripts.storm.record.state_of_the_lab", lambda: "another")
    assert not Record(path, 0).held("kills", 0, case)
    path.write_text("no line\n" + path.read_text())
    with pytest.raises(LabError, match="line 1 is no end of a case"):
        Record(path, 0)


# Hydra itself refuses to make two of them: other readers of such a file need not.
BLOCKED = ("model: builtins.exec", "softmax: subprocess.run", "a path of hydra")
MAKING = [name for name in ATTACKS if ":" in name and name not in BLOCKED and "lab.files" not in name]


@pytest.mark.parametrize("name", MAKING)
def test_an_attack_would_run_code_where_a_reader_made_what_is_named(name: str, tmp_path: Path) -> None:
    made, section = tmp_path / "made", name.split(":")[0]
    (tmp_path / "config.yaml").write_text(f"{section}: {{}}\ncallbacks: {{}}\n")
    ATTACKS[name](tmp_path, made)
    found = yaml.safe_load((tmp_path / "config.yaml").read_text())
    with suppress(Exception):
        instantiate(found[section] if section != "callbacks" else found["callbacks"]["eureka"])
    assert made.exists()


def test_a_pickle_in_a_checkpoint_would_run_code_where_a_reader_took_it_for_the_lab_s_own(tmp_path: Path) -> None:
    made, folder = tmp_path / "made", tmp_path / "checkpoints"
    folder.mkdir()
    for step in (1, 2):
        save_checkpoint({"global_step": step, "state_dict": {}}, folder / f"last-{step:09d}.ckpt")
    ATTACKS["a pickle in a checkpoint"](tmp_path, made)
    newest = folder / "last-000000002.ckpt"
    with pytest.raises(DamagedCheckpoint, match="it holds something other than tensors and plain values"):
        read_checkpoint(newest)
    assert not made.exists()
    torch.load(newest, weights_only=False)
    assert made.exists()


@pytest.mark.parametrize(
    ("status", "err", "saved", "problem"),
    [
        (130, "Ctrl-C: saved at step 6, from where the same command goes on", [3, 6], None),
        (130, "Ctrl-C: saved at step 6, from where the same command goes on", [3], "its newest checkpoint is of [3]"),
        (130, "Ctrl-C: ended", [], None),
        (130, "Ctrl-C: ended", [3], "it left without saving"),
        (130, "Ctrl-C: ended", [27, 30], None),
        (0, "", [30], "it trained on to its end"),
        (-2, "", [], None),
        (-2, "", [3], "though it had begun to save"),
        (1, "error: no", [3], "exit status 1"),
    ],
)
def test_how_a_run_leaves_that_was_told_to_go(status: int, err: str, saved: list[int], problem, tmp_path: Path) -> None:
    events = tuple(f"replace last-{step:09d}.ckpt" for step in range(3, 33, 3))
    undisturbed = Undisturbed(tmp_path / "undisturbed", events, 1.0)
    for runs, steps in ((undisturbed.runs, [27, 30]), (tmp_path / "runs", saved)):
        runs.mkdir()
        for step in steps:
            (runs / f"last-{step:09d}.ckpt").write_text("")
    told = _left_wrongly(Said(status, "", err), Strike("checkpoint", 2, 1), undisturbed, tmp_path / "runs")
    assert told is None if problem is None else problem in told

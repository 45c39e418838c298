"""A short storm: some of each sort of case, drawn by another seed than that of the page."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from scripts.storm.__main__ import storm
from scripts.storm.compare import unlike
from scripts.storm.grounds import Grounds
from scripts.storm.kills import STORM

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
    import torch

    one, other = {"a": [torch.zeros(2), {"seconds": 1.0}]}, {"a": [-torch.zeros(2), {"seconds": 2.0}]}
    assert list(unlike(one, one, "x")) == []
    assert list(unlike(one, other, "x")) == ["x: a: 0 is another tensor"]
    assert list(unlike({"a": 1}, {"b": 1}, "x")) != []

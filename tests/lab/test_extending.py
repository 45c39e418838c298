"""A study outside of the repository: docs/extending.md, done as it says."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from conftest import ROOT, lab_train, python, summary_of

import lab.train
from lab.config.command_line import check_overrides
from lab.train import run as train_with

PAGE = (ROOT / "docs" / "extending.md").read_text()
SHORT = ("experiment=reasoning", "data.numbers=4", "logger=csv_only", "trainer.max_epochs=2", "softmax.gain=0.5")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the page tells to make; its module is on PYTHONPATH."""
    folder = tmp_path / "study"
    # As printed: what Hydra reads of a file's first line is not to be found in its second.
    for text in re.findall(r"```(?:python|yaml)\n((?:# @package \S+\n)?# \S+\.\w+\n.*?)```", PAGE, re.DOTALL):
        name = re.findall(r"^# (\S+\.\w+)$", text, re.MULTILINE)[0]
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    made = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert made == set(re.findall(r"^  (\S+)$", PAGE, re.MULTILINE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    return folder


def test_a_softmax_outside_the_repository_trains(study: Path, tmp_path: Path, monkeypatch, one_thread) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    lab_train(*SHORT, "softmax=length_scaled", "--config-dir", "../study/conf", folder=elsewhere)
    # The same from a notebook.
    monkeypatch.syspath_prepend(study)
    train_with([*SHORT, "softmax=length_scaled", "seed=1", f"hydra.searchpath=[file://{study}/conf]",
                f"paths.runs={elsewhere / 'runs'}"])  # fmt: skip
    summaries = [summary_of(path.parent) for path in elsewhere.rglob("summary.json")]
    assert sorted(summary["seed"] for summary in summaries) == [0, 1]
    ends = {(summary["status"], summary["softmax"], summary["steps"]) for summary in summaries}
    assert ends == {("finished", "length_scaled", 2)}
    assert "gain: 0.5" in next(elsewhere.rglob("config.yaml")).read_text()


def test_a_run_that_a_sweep_starts_as_a_command_finds_the_configs(study: Path, tmp_path: Path, monkeypatch) -> None:
    """As one of several processes is."""
    asked: list[Sequence[str]] = []
    monkeypatch.setattr("lab.training.start.train_apart", lambda words: asked.append(words) or 0)
    several = ("softmax=length_scaled", "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "seed=2")
    path = f"hydra.searchpath=[file://{study}/conf]"
    words = ["-m", *SHORT, *several, f"paths.runs={tmp_path}"]
    for name in ("LOCAL_RANK", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(study)
    for given, told in ((["-cd", f"{study}/conf"], f"--config-dir={study}/conf"), ([path], path)):
        monkeypatch.setattr(sys, "argv", ["lab.train", *words, *given])
        lab.train.main()
        assert asked[-1][0] == told and {*SHORT, *several} <= set(asked[-1])
        check_overrides(asked[-1])


def test_the_commands_of_the_page_work(study: Path) -> None:
    """As printed, but cut short."""
    lines = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    assert lines.pop(0) == "export PYTHONPATH=$PWD"
    short = ("data.numbers=4", "logger=csv_only", "threads=1", "trainer.max_epochs=2")
    said: dict[str, str] = {}
    for line in lines:
        words = shlex.split(line)[1:]
        changed = short if words[1] == "lab.train" or "--plan" in words else ()
        said[line] = python(*words, *changed, folder=study).stdout
    (planned,) = (text for line, text in said.items() if "--plan" in line)
    # Five seeds of two softmaxes, of which those of one have been trained by then.
    assert "5 missing, 5 finished" in planned
    assert "16 finished" in said["python -m lab.status runs"]
    # What the callback keeps is in the checkpoint.
    (mean,) = (study / "runs").rglob("mean_loss.txt")
    saved = torch.load(next(mean.parent.rglob("last-*.ckpt")), weights_only=True)["callbacks"]
    assert saved["MeanLoss"] == {"mean": pytest.approx(float(mean.read_text()))}
    report = next((study / "runs" / "short_reasoning").rglob("report.md")).read_text()
    assert "length_scaled" in report and "norm_softmax" in report

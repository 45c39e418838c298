"""The README's commands and its softmax of one's own, run as printed."""

from __future__ import annotations

import csv
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, problem_with, python, small_gpt2, summary_of, train_in

from lab.datasets.prior import prior_accuracy
from lab.datasets.reasoning import reasoning_table
from lab.inspect import main as look
from lab.report.__main__ import main as report
from lab.report.statistics import fisher
from lab.train import run as train_with

README = (ROOT / "README.md").read_text()


# Their whole way, in small, is walked by tests/scripts.
REPRODUCE = ("python -m scripts.reproduce.", "python -m scripts.atlas ", "scripts/reproduce/")


def blocks(language: str) -> list[str]:
    """Fenced blocks of the README in a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    """Every command line of the README's shell blocks."""
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line]


def test_commands_are_of_the_known_kinds() -> None:
    known = (
        "make ",
        "pip install .",  # tests/test_wheel.py installs it
        "tensorboard ",
        *(f"python -m lab.{name} " for name in ("train", "inspect", "status", "bench", "report")),
    )
    assert commands()
    assert all(command.startswith((*known, *REPRODUCE)) for command in commands())


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("python -m lab.train")])
def test_training_commands_train(command: str, tmp_path: Path) -> None:
    """As printed, but cut short and on this machine's processor."""
    overrides = shlex.split(command)[3:]
    assert problem_with([o for o in overrides if o != "-m"]) is None
    if any(o.startswith("+sweep=") for o in overrides):
        return  # tests/lab/config/test_configs.py composes every run of it
    if "-m" in overrides:
        # One run of it; that all of them run is tested in test_sweep.py.
        overrides = [o.split(",")[0] for o in overrides if o != "-m" and not o.startswith("hydra/")]
    short = [o for o in overrides if o != "trainer=gpu"]
    short += ["trainer.max_epochs=1", "trainer.max_steps=2"]
    if any(o.startswith("experiment=main_task") for o in overrides):
        wanted = ["data/source=drawn", "data.batch_size=8", "data.epoch_size=16", "data.validation_size=8"]
        sizes = [
            f"data.source.{kind}.{split}_size=50" for kind in ("digits", "garments") for split in ("train", "test")
        ]
        short = [o for o in short if not o.startswith(("data", "debug"))] + wanted + sizes
    runs = train_with([*short, f"paths.runs={tmp_path}", "threads=1"])
    assert runs and all(run.finished for run in runs)


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("python -m lab.inspect")])
def test_looking_commands_look(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed, but at a run of two steps, or at a small model."""
    monkeypatch.chdir(tmp_path)
    if "model=hf:" in command:
        small_gpt2(tmp_path / "gpt2")
        (tmp_path / "book.txt").write_text("To see is to forget the name of the thing one sees. " * 99)
    else:
        run = train_in(tmp_path, "experiment=reasoning", "data.numbers=4", "trainer.max_epochs=2")
    words = [f"run={run}" if word.startswith("run=") else word for word in shlex.split(command)[3:]]
    monkeypatch.setattr(sys, "argv", ["lab.inspect", *words])
    look()
    assert list(tmp_path.glob("**/inspect/*/diagnostics/*.csv"))


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("python -m lab.report")])
def test_report_commands_report(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed, in a folder where a run of two steps lies."""
    train_with(["experiment=reasoning", "trainer.max_epochs=2", f"paths.runs={tmp_path / 'runs'}", "threads=1"])
    monkeypatch.setattr(sys, "argv", ["lab.report", *shlex.split(command)[3:]])
    monkeypatch.chdir(tmp_path)
    report()
    # The paper's ratio where it is asked for.
    assert ("3/5" if "--against" in command else "1 finished") in next(tmp_path.rglob("report.md")).read_text()


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith(REPRODUCE)])
def test_reproductions_exist_and_say_what_they_do(command: str, tmp_path: Path) -> None:
    words = [*shlex.split(command), "--help"]
    if words[0] != "python":
        # A script in bash: what it has Python do, which a fork of this one does in a second.
        (tells := tmp_path / "python").write_text("#!/bin/sh\nprintf '%s\\n' python \"$@\"\n")
        tells.chmod(0o755)
        environment = {**os.environ, "PYTHON": str(tells)}
        done = subprocess.run(
            [ROOT / words[0], *words[1:]], env=environment, capture_output=True, text=True, check=True
        )
        words = done.stdout.splitlines()
    done = python(*words[1:], folder=ROOT)
    assert "the same command goes on" in " ".join(done.stdout.split())


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("make ")])
def test_make_targets_exist(command: str) -> None:
    done = subprocess.run(["make", "-n", *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_numbers_of_the_first_picture_are_those_of_its_runs() -> None:
    with (ROOT / "results" / "reasoning_small" / "runs.csv").open() as file:
        runs = list(csv.DictReader(file))
    counts = {}
    for softmax in ("norm_softmax", "softmax"):
        own = [row for row in runs if row["setting"] == softmax]
        assert sorted(int(row["seed"]) for row in own) == list(range(10))
        assert all(row["epochs"] == "400" and row["status"] == "finished" for row in own)
        counts[softmax] = sum(bool(row["moment_epoch"]) for row in own)
    p = fisher((counts["norm_softmax"], 10), (counts["softmax"], 10))
    told = " ".join(README.split())
    assert f"NormSoftmax has its Eureka-moment on {counts['norm_softmax']} of 10 seeds" in told
    assert f"softmax on {counts['softmax']} of 10 (Fisher's exact test: p = {p:.3f})" in told
    _, labels, latents = reasoning_table(7)
    assert f"{prior_accuracy(latents, labels):.1%}".replace("%", " %") in told


def test_tensorboard_is_installed() -> None:
    assert python("-m", "tensorboard.main", "--version", folder=ROOT).stdout.strip()


@pytest.mark.pictures
def test_the_demo_prints_its_table_and_draws_its_picture(tmp_path: Path, monkeypatch, capsys) -> None:
    """`make demo` in small: it gives up after 20 epochs, and says so."""

    def train_here(overrides: list[str]) -> int:
        train_with([*overrides, "threads=1"])
        return 0

    # A process each in truth, which tests/scripts/test_reproduce.py sees.
    monkeypatch.setattr("lab.training.processes.train_apart", train_here)
    arguments = ["--runs", str(tmp_path / "demo"), "--limit", "20", "--epochs-after", "10"]
    monkeypatch.setattr(sys, "argv", ["demo.py", *arguments])
    with pytest.raises(SystemExit, match="1"):
        runpy.run_path(str(ROOT / "scripts" / "demo.py"), run_name="__main__")
    told = capsys.readouterr().out
    for word in ("NormSoftmax", "Eureka-moment", "tensorboard", "demo.png"):
        assert word in told
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 10_000
    runs = [summary_of(path.parent) for path in (tmp_path / "demo").rglob("summary.json")]
    assert {run["softmax"] for run in runs} == {"softmax", "norm_softmax"}
    folder = next((tmp_path / "demo").rglob("summary.json")).parent
    monkeypatch.setattr(sys, "argv", ["curves.py", "--gradients", "--out", str(tmp_path / "g.png"), str(folder)])
    runpy.run_path(str(ROOT / "scripts" / "curves.py"), run_name="__main__")
    assert (tmp_path / "g.png").stat().st_size > 10_000


def test_a_softmax_of_one_s_own(tmp_path: Path, monkeypatch) -> None:
    """The class and the config, copied from the README, train the reasoning task."""
    (tmp_path / "my_rules.py").write_text(blocks("python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    config = yaml.safe_load(blocks("yaml")[0])
    assert config.pop("defaults")
    overrides = [f"softmax.{k}={'null' if v is None else v}" for k, v in config.items() if k != "_partial_"]
    (summary,) = train_with(["experiment=reasoning", *overrides, f"paths.runs={tmp_path}", "trainer.max_epochs=10"])
    assert summary.finished


def test_the_example_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed, but cut short: a list of summaries, and two tables of the same run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lab.run", lambda overrides: train_with([*overrides, "trainer.max_epochs=10", "threads=1"]))
    names: dict[str, Any] = {}
    exec(blocks("python")[1], names)
    assert names["summary"].finished and names["summary"].accuracy is not None
    assert names["runs"]["folder"].tolist() == names["metrics"]["folder"].unique().tolist()

"""The reproduction scripts in small: they train, go on, and write their pages."""

from __future__ import annotations

import argparse
import re
import runpy
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT, SMALL, problem_with, summary_of
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from lab.config.compose import CONFIGS
from lab.config.overrides import read_override
from lab.config.typed_file import read_typed
from lab.console import LabError
from lab.models.set_attention import SetAttention
from lab.plotting.figures import lay_out
from lab.plotting.style import styled
from lab.runs.spec import RunSpec
from lab.runs.summary import Summary, write_summary
from lab.train import run as train
from scripts.reproduce import (
    common,
    figure,
    figure_8,
    fluke,
    max_retrieval,
    max_retrieval_evaluation,
    max_retrieval_figures,
    max_retrieval_penalties,
    plan,
    reasoning_setups,
    table,
)
from scripts.reproduce.drawings import maps, numbers, probes
from scripts.reproduce.drawings.runs import Shown
from scripts.reproduce.kept import Kept, check_ended
from scripts.reproduce.kept import summary_of as run_of
from scripts.reproduce.max_retrieval_evaluation import sets_of
from scripts.reproduce.seeds import Seeds


@pytest.fixture(autouse=True)
def speeds_of_this_test(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test a cache of measured speeds of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(plan, "cache", lambda: folder)


@pytest.fixture
def script(monkeypatch, capsys, trained_here):
    """Runs a script as typed, it and its trainings in this process: each new one would import torch once more."""

    def told(module: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        runpy.run_path(str(ROOT / "scripts" / "reproduce" / f"{module}.py"), run_name="__main__")
        return capsys.readouterr().out

    return told


def test_numbers_of_a_page_stand_as_they_were_written() -> None:
    page = common.markdown(pd.DataFrame({"rate": ["1e-4"], "p": ["1.00"], "id": ["007"]}))
    assert page.splitlines()[-1].replace(" ", "") == "|1e-4|1.00|007|"


def test_trainings_are_processes_of_their_own(tmp_path: Path, capfd) -> None:
    overrides = ["experiment=reasoning", "data.numbers=4", "trainer.max_epochs=2", "threads=1"]
    common.train([*overrides, "seed=1"], tmp_path)
    told = capfd.readouterr()
    assert told.out == f"$ python -m lab.train {' '.join(overrides)} seed=1\n"
    assert "finished" in told.err
    summary = summary_of(Seeds(typed=(*overrides, "softmax=softmax"), seeds=(1,), runs=tmp_path).folder(1))
    assert summary["status"] == "finished"
    assert summary["command"].startswith("python -m lab.train experiment=reasoning")


@pytest.mark.parametrize(("together", "trained"), [(False, ["seed=1", "seed=2"]), (True, ["seeds=[1,2]"])])
def test_a_seed_that_diverged_is_not_trained_again(together, trained, tmp_path: Path, monkeypatch, capsys) -> None:
    typed = ("experiment=reasoning", "softmax=softmax")
    ends = Seeds(typed=typed, seeds=(0, 1, 2), runs=tmp_path, together=together)
    for seed, told in enumerate(({"diverged": True}, {"diverged": False})):
        ends.folder(seed).mkdir(parents=True)
        write_summary(ends.folder(seed), Summary(status="failed", seed=seed, softmax="softmax", **told))
    asked = []
    monkeypatch.setattr("scripts.reproduce.seeds.train", lambda typed, runs: asked.append(typed[-1]))
    assert not ends.train() and asked == trained
    assert capsys.readouterr().out == f"diverged, not trained again: {ends.folder(0)}\n"


@pytest.mark.slow
@pytest.mark.pictures
def test_figure_8_in_small(tmp_path: Path, script, monkeypatch) -> None:
    monkeypatch.setattr(common, "speed_of", lambda *_, **__: common.Speed(0.01, 1e-4))
    arguments = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--epochs", "20", "--seeds", "2"]
    told = script("figure_8", *arguments, "--grid", "5e-3")
    assert "about" in told.splitlines()[0]
    page = (tmp_path / "out" / "README.md").read_text()
    assert page.count("0/2 (0% to 66%)") == 3
    assert "| 3/5" in page
    assert (tmp_path / "out" / "figure_8.png").stat().st_size > 10_000
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("metrics.csv")}
    assert len(written) == 3 * (1 + 2)
    # The same command finds all of it finished, and writes the same page.
    assert "about" not in script("figure_8", *arguments, "--grid", "5e-3")
    assert (tmp_path / "out" / "README.md").read_text() == page
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())


@pytest.mark.slow
@pytest.mark.pictures
def test_max_retrieval_in_small(tmp_path: Path, monkeypatch, capsys) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    train(["experiment=max_retrieval", "seeds=2", "trainer.max_steps=150", f"paths.runs={runs}", "threads=1"])
    folders = sorted(path.parent for path in runs.rglob("config.yaml"))
    for module in (max_retrieval, max_retrieval_evaluation, max_retrieval_figures):
        monkeypatch.setattr(module, "SIZES", (16, 64, 256))
    asked = max_retrieval.Asked(200, 30, ["softmax softmax.tau=0.5"])
    # Stopped in the middle: what was measured is not measured again.
    measured, sound = [], max_retrieval_evaluation.accuracies

    def counted(models: dict, size: int, sets: int, seed: int) -> dict[str, float]:
        if len(measured) == 4:
            measured.append(None)
            raise KeyboardInterrupt
        measured.append((seed, size))
        return sound(models, size, sets, seed)

    monkeypatch.setattr(max_retrieval_evaluation.Evaluation, "seconds_per_item", lambda *_: 1e-3)
    monkeypatch.setattr(max_retrieval_evaluation, "accuracies", counted)
    with pytest.raises(KeyboardInterrupt):
        max_retrieval.evaluate(folders, out, asked)
    first = capsys.readouterr().out
    assert "evaluation of 2 seeds: about" in first and "seed 1" not in first
    max_retrieval.evaluate(folders, out, asked)
    assert [one for one in measured if one] == [(seed, size) for seed in (0, 1) for size in (16, 64, 256)]
    page = (out / "README.md").read_text()
    capsys.readouterr()
    max_retrieval.evaluate(folders, out, asked)
    assert "about" not in capsys.readouterr().out and (out / "README.md").read_text() == page
    scores = pd.read_csv(out / "accuracies.csv")
    assert len(scores) == 2 * 4 * 3
    baseline = scores[scores["measure"] == "baseline"].groupby("size")["accuracy"].mean()
    assert baseline[16] > 0.5 > baseline[256]
    assert "softmax.coefficients=[" in page
    assert " baseline, paper |" in page and " baseline, 95 % interval |" in page
    assert " p-value of softmax softmax.tau=0.5, here |" in page
    for name in ("figure_2_and_6", "figure_4", "figure_5"):
        assert (out / f"{name}.png").stat().st_size > 10_000


def test_a_softmax_that_does_not_exist_is_no_row() -> None:
    with pytest.raises(LabError, match=r"--softmax 'normsoftmax': .*did you mean 'norm_softmax'"):
        max_retrieval.Asked(10, 10, ["normsoftmax"]).rules()
    with pytest.raises(LabError, match=r"--softmax 'heat_treatment' moves its temperature over training"):
        max_retrieval.Asked(10, 10, ["heat_treatment"]).rules()
    with pytest.raises(LabError, match="--softmax needs a name"):
        max_retrieval.Asked(10, 10, [" "]).rules()


def summary_with(**fields: object) -> Summary:
    """A summary of a finished run, but for these fields."""
    return Summary.model_validate({"status": "finished", "softmax": "softmax", "seed": 0, "epochs": 1, **fields})


@pytest.fixture
def told_by(monkeypatch):
    """Summaries of Figure 8 as a function tells them of softmax, learning rate, seed, and whether it is a trial."""

    def tell(summary: Callable[[str, str, int, bool], Summary | None]) -> None:
        def own(seeds: Seeds, seed: int) -> Summary | None:
            typed = {one.key: one.value for one in map(read_override, seeds.typed)}
            return summary(typed["softmax"], typed["optim.lr"], seed, "callbacks.eureka.stop_after" in typed)

        monkeypatch.setattr(Seeds, "summary", own)

    return tell


def test_figure_8_chooses_the_earliest_moment(told_by) -> None:
    def summary(softmax: str, lr: str, seed: int, trial: bool) -> Summary | None:
        moments = {"1e-3": None, "2e-3": 900, "5e-3": 300, "1e-2": 100}
        moment = moments[lr]
        eureka = {"happened": moment is not None, **({"epoch": moment} if moment else {})}
        # The fastest has failed after its moment.
        status = "failed" if lr == "1e-2" else "finished"
        return summary_with(status=status, eureka=eureka, best={"accuracy": 0.99 if lr == "1e-3" else 0.8, "epoch": 1})

    told_by(summary)
    plan = figure_8.Plan(Path("runs"), 100, 5, ("1e-3", "2e-3", "5e-3", "1e-2"), ())
    assert figure_8.choose(plan, "softmax") == "5e-3"
    with pytest.raises(LabError, match="softmax failed at every learning rate"):
        figure_8.choose(figure_8.Plan(Path("runs"), 100, 5, ("1e-2",), ()), "softmax")


def test_figure_8_tells_what_is_left_at_the_rate_that_is_chosen(told_by) -> None:
    """Seeds that are finished at another rate are no part of it; a trial that failed is not tried again."""
    status = {"1e-3": "finished", "2e-3": "finished", "1e-2": "failed"}

    def summary(softmax: str, lr: str, seed: int, trial: bool) -> Summary | None:
        if not trial:
            return summary_with(steps=100) if lr == "1e-3" else None
        best = {"accuracy": 0.53 if lr == "1e-3" else 0.54, "epoch": 1}
        failed = {"diverged": status[lr] == "failed"}
        return summary_with(status=status[lr], steps=40, eureka={"happened": False}, best=best, **failed)

    told_by(summary)
    plan = figure_8.Plan(Path("runs"), 100, 5, ("1e-3", "2e-3", "1e-2"), ())
    assert figure_8.steps_left(plan) == (0, 3 * 100)
    assert figure_8.steps_left(figure_8.Plan(Path("runs"), 100, 5, ("1e-3", "1e-2"), ())) == (0, 0)
    status["2e-3"] = "stopped"
    assert figure_8.steps_left(plan) == (3 * 60, 3 * 100)
    # Killed between its last step and its end, a trial is still open.
    alone = figure_8.Plan(Path("runs"), 40, 5, ("2e-3",), ())
    assert figure_8.steps_left(alone) == (0, 3 * 40)


def test_figure_8_says_where_its_rate_is_hardly_more_than_luck(told_by) -> None:
    moments = {"softmax": None, "heat_treatment": None, "norm_softmax": 30}

    def summary(softmax: str, lr: str, seed: int, trial: bool) -> Summary | None:
        moment = moments[softmax]
        return summary_with(eureka={"happened": moment is not None, "epoch": moment})

    told_by(summary)
    plan = figure_8.Plan(Path("runs"), 100, 5, ("1e-3", "2e-3"), ())
    told = figure_8.by_luck(plan, figure_8.SOFTMAXES)
    assert told.startswith("Of Softmax and Softmax + HT no trial on seed 0 had a moment")
    assert figure_8.by_luck(plan, ["NormSoftmax"]) == ""


def test_figure_8_lists_the_seeds_of_a_row_in_one_order(told_by, monkeypatch) -> None:
    moments, accuracies = (40, None, 20), (0.9, 0.5, 0.8)

    def summary(softmax: str, lr: str, seed: int, trial: bool) -> Summary | None:
        eureka = {"happened": moments[seed] is not None, "epoch": moments[seed]}
        return summary_with(seed=seed, metrics={"val/accuracy": accuracies[seed]}, eureka=eureka)

    told_by(summary)
    monkeypatch.setattr(figure_8, "slingshots_of", lambda folder: folder.name.removeprefix("seed="))
    plan = figure_8.Plan(Path("runs"), 100, 3, ("1e-3",), ())
    row = figure_8.ratio_table(plan, [("Softmax", "1e-3")]).iloc[0]
    assert row["Eureka-epochs"] == "20, 40" and row["slingshots after each"] == "2, 0"
    assert row["final accuracies"] == "80.0%, 90.0%, 50.0%"


def test_figure_8_counts_a_seed_that_diverged_as_one_without_a_moment(told_by, monkeypatch) -> None:
    def summary(softmax: str, lr: str, seed: int, trial: bool) -> Summary | None:
        failed = {"status": "failed", "diverged": True} if seed == 2 else {}
        return summary_with(seed=seed, eureka={"happened": seed == 0, "epoch": 40 if seed == 0 else None}, **failed)

    told_by(summary)
    monkeypatch.setattr(figure_8, "slingshots_of", lambda folder: 0)
    plan = figure_8.Plan(Path("runs"), 100, 3, ("1e-3",), ())
    rows = figure_8.ratio_table(plan, [("Softmax", "1e-3")])
    told = rows.iloc[0]["Eureka-ratio (95 % Wilson)"]
    assert told.startswith("1/3 (") and told.endswith(", 1 failed")
    assert "without seed 0" not in rows  # one rate: nothing was chosen
    several = replace(plan, grid=("1e-3", "2e-3"))
    assert figure_8.ratio_table(several, [("Softmax", "1e-3")])["without seed 0"][0].startswith("0/2 (")


def test_figure_8_keeps_rates_on_its_page_that_a_larger_grid_did_not_choose(told_by, tmp_path: Path) -> None:
    def summary(softmax: str, lr: str, seed: int, trial: bool) -> Summary | None:
        if not trial and lr == "1e-3":
            return None
        eureka = {"happened": True, "epoch": 40} if lr == "5e-3" else {"happened": False}
        return summary_with(
            epochs=100, metrics={"val/accuracy": 0.5}, best={"accuracy": 0.5, "epoch": 1}, eureka=eureka
        )

    told_by(summary)
    plan = figure_8.Plan(Path("runs"), 100, 5, ("1e-3", "2e-3", "5e-3"), ())
    ratios, others = figure_8.page(plan, {"Softmax": "2e-3"}, tmp_path).split("Rates not chosen")
    assert "0/5" in ratios and "5/5" not in ratios
    assert "5/5" in others and "0/5" not in others.split("## The grid")[0]
    alone = figure_8.Plan(Path("runs"), 100, 5, ("1e-3", "2e-3"), ())
    assert "Rates not chosen" not in figure_8.page(alone, {"Softmax": "2e-3"}, tmp_path)


@pytest.mark.parametrize(
    ("words", "told"),
    [(["4", "5"], "4 5: name one table"), (["--list", "4"], "none after --list"), (["--seeds", "0"], "at least 1")],
)
def test_a_table_s_words_are_taken_or_refused(words: list[str], told: str, capsys) -> None:
    with pytest.raises((LabError, SystemExit)) as refused:
        table.main(asked_for(*words))
    assert told in f"{refused.value}{capsys.readouterr().err}"


def test_overrides_stand_where_a_table_s_name_may_stand(monkeypatch) -> None:
    given, row = list[list[str]](), plan.Listed("eureka:4", "small", "0 of 1 runs")
    monkeypatch.setattr(table, "rows_of_list", lambda _, further: given.append(further) or [row])
    table.main(asked_for("--list", "data/source=drawn", "trainer=gpu"))
    assert given == [["data/source=drawn", "trainer=gpu"]]


def test_a_run_of_another_default_is_no_run_of_what_is_asked_for(tmp_path: Path) -> None:
    typed = ["experiment=reasoning", "softmax=softmax", "seed=0"]
    write_summary(tmp_path, summary_with(status="finished", epochs=3))
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(RunSpec.compose(typed).config, resolve=True))
    found = run_of(typed, tmp_path)
    assert found is not None and found.finished
    with pytest.raises(LabError, match=r"holds a run of another configuration \(model.layer_norm: True there, False"):
        run_of([*typed, "model.layer_norm=false"], tmp_path)
    assert run_of(typed, tmp_path / "nothing") is None
    with pytest.raises(LabError, match="not all runs have come to their end"):
        check_ended([found, summary_with(status="failed", error="the disk has no room")])
    check_ended([found, summary_with(status="failed", diverged=True)])


def test_rows_of_table_4_are_those_of_their_folder() -> None:
    # Table 5 has one more, a smaller ViT.
    known = {path.stem for path in (CONFIGS / "row").glob("*.yaml")}
    rows = [row.overrides for row in table.table_of("4").rows]
    assert {f"+row={name}" for name in known - {"vit_heads6_depth4"}} == {one for row in rows for one in row or ()}


def asked_for(*words: str) -> argparse.Namespace:
    """What the command line of a table makes of these words."""
    parsed = table.parser().parse_intermixed_args(words)
    return argparse.Namespace(**vars(parsed), typed=list(words))


@pytest.mark.slow
def test_a_table_in_small(tmp_path: Path, monkeypatch, one_thread) -> None:
    """Seed by seed; what fails ends no other run; the same command runs what is missing; a stop ends all of it."""
    begun: list[str] = []
    status = {"+row=vit_heat_treatment": 1}
    whole = table.table_of("4")
    rows = [row for row in whole.rows if row.label in ("ViT, τ = √d_k", "ViT + HT, τ = 1/3 → √d_k")]
    monkeypatch.setattr(table, "table_of", lambda name: replace(whole, rows=tuple(rows)))

    def train_here(overrides: list[str], log: object = None) -> int:
        if log is None:
            begun.append(" ".join(o for o in overrides if o.startswith(("+row", "seed"))))
        (row,) = (o for o in overrides if o.startswith("+row"))
        if not status.get(row):
            train([*overrides, "logger=csv_only"])
        return status.get(row, 0)

    monkeypatch.setattr(common, "train_apart", train_here)
    small = [*SMALL[1:-1], "trainer=cpu", "trainer.max_epochs=1"]
    arguments = asked_for("4", "--seeds", "2", "--runs", f"{tmp_path}", "--out", f"{tmp_path}/out", "--", *small)
    with pytest.raises(LabError, match=r"^2 runs failed, .*\+row=vit_heat_treatment"):
        table.main(arguments)
    assert begun[:2] == ["+row=vit seed=0", "+row=vit_heat_treatment seed=0"]
    assert [line.split("seed=")[1] for line in begun] == list("0011")
    page = (tmp_path / "out" / "published" / "eureka_table_4" / "README.md").read_text()
    assert "0/2 (0% to 66%)" in page and "| 7/10" in page and "Not run: ViT + HT" in page
    runs = table.runs_of_row(whole, rows[0], "published", 2, [*small, f"paths.runs={tmp_path}"])
    chosen = table.page(whole, "published", [(rows[0], runs)], {table.name_of(rows[0]): table.SCHEDULES[0]})
    assert "Eureka-ratio of seeds that did not choose" in chosen and common.FAVOURED in chosen
    begun.clear()
    status["+row=vit_heat_treatment"] = 130
    with pytest.raises(SystemExit) as left:
        table.main(arguments)
    assert left.value.code == 130 and begun == []  # stopped while its speed was measured
    assert (tmp_path / "out" / "published" / "eureka_table_4" / "README.md").read_text() == page
    # With the runs gone and no time to make others, the page stays.
    shutil.rmtree(tmp_path / "main_task")
    status["+row=vit"] = 130
    with pytest.raises(SystemExit):
        table.main(arguments)
    assert (tmp_path / "out" / "published" / "eureka_table_4" / "README.md").read_text() == page


def test_a_table_checks_its_overrides_first(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="did you mean"):
        table.main(asked_for("4", "optim.weight_dekay=1", f"paths.runs={tmp_path}"))
    with pytest.raises(LabError, match=r"seed=7 would be set by the script itself: leave it out \(--seeds 2, say\)"):
        table.main(asked_for("4", "seed=7", f"paths.runs={tmp_path}"))
    with pytest.raises(LabError, match="11 is no table"):
        table.table_of("11")


def test_a_table_with_a_command_of_its_own_is_given_no_options() -> None:
    with pytest.raises(LabError, match=r"^softmax:1 has a command of its own, which does not know --minutes 10: "):
        table.main(asked_for("softmax:1", "--minutes", "10"))


def test_a_schedule_is_chosen_by_its_ratio_then_by_accuracy(monkeypatch) -> None:
    moments = {"a": [1, None], "b": [9, 9], "c": [3, 3], "d": [None, None]}
    accuracies = {"a": 0.99, "b": 0.8, "c": 0.9, "d": 0.5}

    def summaries(run: plan.Run) -> list[Summary]:
        (seed,) = run.seeds
        moment = moments[run.name][seed]
        eureka = {"happened": moment is not None, **({"epoch": moment} if moment else {})}
        return [summary_with(eureka=eureka, metrics={"val/accuracy": accuracies[run.name]})]

    monkeypatch.setattr(plan.Run, "summaries", summaries)
    trials = {
        name: [plan.Run(family="main_task", name=name, label=name, typed=(), seeds=(seed,)) for seed in (0, 1)]
        for name in moments
    }
    assert table.choose(trials) == "c"
    monkeypatch.setattr(
        plan.Run, "summaries", lambda run: [summary_with(metrics={"val/accuracy": ord(run.name) / 100})]
    )
    assert table.choose(trials) == "d"  # of none with a moment, the most accurate
    runs = table.runs_of_row(table.table_of("2"), table.table_of("2").rows[0], "published", None, [])
    assert len(runs) == 36 and len({run.overrides for run in runs}) == 9


def test_a_row_in_small_is_of_the_main_task_alone() -> None:
    of = {
        (row.group, row.label): table.row_overrides(table.table_of("1"), row, "small")
        for row in table.table_of("1").rows
    }
    found = {group for (group, _), overrides in of.items() if overrides}
    assert found == {"Main dataset"} and any(group == "No-position task" for group, _ in of)


@pytest.mark.parametrize("words", [("2",), ("section_5_3",), ("4", "--size", "small")])
def test_schedules_are_chosen_only_where_rows_have_one(words: tuple[str, ...]) -> None:
    with pytest.raises(LabError, match="leave --schedules out"):
        table.main(asked_for(*words, "--schedules"))


def test_how_long_it_takes_is_measured_as_it_will_be_trained(monkeypatch, capsys) -> None:
    asked: list[list[str]] = []

    def speed_of(overrides: list[str], steps: int) -> common.Speed:
        asked.append(overrides)
        return common.Speed(1.0, 1.0)

    monkeypatch.setattr(plan, "speed_of", speed_of)
    speeds = plan.Speeds()
    for number, typed in (("2", ()), ("5", ()), ("6", ())):
        speeds.seconds_left(figure.runs_at(plan.load(f"softmax:{number}"), "published", list(typed)))
    # One seed of Figures 2 and 6, ten together of Figure 5.
    assert [[one for one in own if one.startswith("seeds")] for own in asked] == [[], ["seeds=[0,1,2,3,4,5,6,7,8,9]"]]
    alone = [replace(run, seeds=(0,)) for run in figure.runs_at(plan.load("softmax:5"), "published", [])]
    plan.Speeds().seconds_left(alone)
    assert ", 10 seeds)" in (told := capsys.readouterr().err) and ", 1 seed)" in told
    asked.clear()
    curves = [run for run in figure.runs_at(plan.load("1b"), "published", ["data/source=drawn"])]
    speeds.seconds_left(curves)
    assert [any("resnet9" in one for one in own) for own in asked] == [False, True]
    assert all("data.batch_size=16" in own for own in asked)
    asked.clear()
    on_gpu = figure.runs_at(plan.load("6"), "published", ["data/source=drawn", "trainer=gpu"])
    monkeypatch.setattr(plan, "git_state", lambda: {"commit": "one", "modified": False})
    plan.Speeds().seconds_left(on_gpu)
    assert "data.batch_size=16" not in asked[0]
    asked.clear()
    plan.Speeds().seconds_left(on_gpu)  # another command, at the same commit
    assert not asked
    for state in ({"commit": "another", "modified": False}, {"commit": "one", "modified": True}, {"commit": None}):
        monkeypatch.setattr(plan, "git_state", lambda state=state: state)
        plan.Speeds().seconds_left(on_gpu)
        assert asked
        asked.clear()


def test_a_figure_that_cannot_be_trained_here_keeps_no_other_from_its_turn(tmp_path: Path, monkeypatch) -> None:
    trained: list[str] = []
    monkeypatch.setattr(plan, "speed_of", lambda *_, **__: common.Speed(1.0, 1.0))
    monkeypatch.setattr(plan.Run, "train", lambda run: trained.append(run.name))
    words = ["17", "6", "data.root=nowhere", "data/source=drawn"]
    arguments = argparse.Namespace(
        words=["17", "6"], runs=tmp_path / "runs", out=tmp_path / "out", list=False, size="published", minutes=None,
        typed=words,
    )  # fmt: skip
    with pytest.raises(LabError, match=r"eureka:17: no images in .*; eureka:6: a run has failed"):
        figure.main(arguments)
    assert trained == ["vit", "vit_tau_1_over_3", "vit_heat_treatment", "norm_softmax"]


def test_all_figures_name_the_one_that_has_a_command_of_its_own(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(figure, "names", lambda: ["eureka:8"])
    arguments = {"words": ["all"], "runs": tmp_path / "runs", "out": tmp_path / "out", "list": False, "minutes": None}
    figure.main(argparse.Namespace(**arguments, size="published", typed=["all"]))
    assert "left out, since it has a command of its own: python -m scripts.reproduce.figure eureka:8" in (
        capsys.readouterr().err
    )


def test_attention_is_drawn_over_all_sets(monkeypatch) -> None:
    """Those of the largest size come in pieces."""
    monkeypatch.setattr(max_retrieval_figures, "SIZES", (16, 64))
    monkeypatch.setattr(max_retrieval_evaluation, "ITEMS_AT_ONCE", 64 * 5)
    model = SetAttention(width=8)
    drawn = max_retrieval_figures.attention_figure({"softmax": model}, sets=12)
    assert [axes.images[0].get_array().shape for axes in drawn.axes[:2]] == [(12, 16), (12, 16)]


def test_every_figure_says_what_it_is_drawn_of() -> None:
    # Those of the papers with training behind them, in the papers' order; others may be added.
    eureka = ["1b", *map(str, range(2, 7)), "8", *map(str, range(10, 16)), *map(str, range(17, 24))]
    of_papers = [*(f"eureka:{number}" for number in eureka), *(f"softmax:{n}" for n in range(2, 7))]
    assert [name for name in plan.names() if name in of_papers] == of_papers
    every = set()
    for name in plan.names():
        spec = plan.load(name)
        if spec.draw is None:
            assert (ROOT / str(spec.page)).exists()
            continue
        for size in plan.SIZES:
            if spec.at(size) is not None:
                runs = figure.runs_at(spec, size, [])
                every |= {run.overrides for run in runs}
                assert plan.families()[spec.at(size).family].size == size
    for overrides in every:
        assert problem_with(overrides) is None, overrides
    with pytest.raises(LabError, match=r"9 is not among the figures of this command; .*eureka:1b"):
        plan.load("9")


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("training.gradient_norms", "training.gradient_norm", "draw: .* did you mean 'training.gradient_norms'"),
        (
            "training.gradient_norms",
            "numbers.gradient_shares",
            "draw: numbers.gradient_shares does not exist; .*valid: maps",
        ),
        ("numbers.gradient_shares", "numbers.gradients_share", "numbers: .* did you mean 'numbers.gradient_shares'"),
        ("layers: ", "layer: ", "options: training.gradient_norms takes others .*'layer'"),
    ],
)
def test_a_drawing_that_does_not_exist_is_refused_before_training(
    right: str, wrong: str, words: str, tmp_path: Path
) -> None:
    text = (plan.HERE / "figures" / "eureka_4.yaml").read_text()
    (path := tmp_path / "eureka_4.yaml").write_text(text.replace(right, wrong))
    with pytest.raises(LabError, match=rf"eureka_4\.yaml: {words}"):
        read_typed(path, plan.FigureSpec, name="eureka_4")


@pytest.mark.slow
def test_figures_in_small(tmp_path: Path, script, monkeypatch) -> None:
    monkeypatch.setattr(max_retrieval_evaluation, "SIZES", (16, 64))
    where = ["--size", "small", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    tiny = [
        "data.numbers=4",
        "trainer.max_epochs=20",
        "diagnostics.every_n_epochs=10",
        "callbacks.code_length.portions=[0.1,0.5]",
        "callbacks.gradient_norms.every_n_steps=5",
    ]
    told = script("figure", "2", "19", *where, *tiny)
    assert re.search(r"2 settings: about \d+ (s|min) on", told) and told.count("$ python") == 2
    script("figure", "softmax:3", "softmax:4", *where, "trainer.max_epochs=1", "data.epoch_steps=20")
    made = sorted(path.parent.name for path in (tmp_path / "out" / "small").glob("*/figure.png"))
    assert made == ["eureka_19", "eureka_2", "softmax_3", "softmax_4"]
    page = (tmp_path / "out" / "small" / "eureka_2" / "README.md").read_text()
    assert page.count("| none ") == 2 and "softmax=norm_softmax data.numbers=4 trainer.max_epochs=20" in page
    assert len(re.findall(r"\| (?:before|after) residual, (?:answer's token|all tokens) *\| \d+\.\d%", page)) == 8
    index = (tmp_path / "out" / "README.md").read_text()
    assert index.count("](small/") == 4 and "not made: `python -m scripts.reproduce.figure eureka:3" in index
    # The other layouts of the same runs.
    folders = [run.parent for run in sorted((tmp_path / "runs" / "reasoning").rglob("config.yaml"))]
    runs = [Shown("norm_softmax", f"run {number}", (folder,)) for number, folder in enumerate(folders)]
    for layout in ("accuracies", "accuracy_and_loss", "gradient_norms", "derivatives_by_region", "attention_scores"):
        assert len(plan.drawings(plan.DRAWN["draw"])[f"training.{layout}"](runs).axes) >= 1
    assert len(probes.code_length(runs).axes) == 4 * 2
    # And their numbers, from the first run's tables.
    first = runs[0].folder / "diagnostics"
    _, shares = numbers.score_shares(runs)
    counts = pd.read_csv(first / "attention_scores.csv").filter(like="count_").sum()
    assert shares["below 0.04"][0] == f"{counts['count_00'] / counts.sum():.1%}"
    _, ratios = numbers.derivative_ratios(runs)
    of_k = pd.read_csv(first / "attention_gradients.csv").query("of == 'k'").set_index("region")["derivative"]
    looks = of_k["indicator"].to_numpy() / of_k["target"].to_numpy()
    assert len(looks) > 1 and ratios["dZ/dK"][0] == f"{np.median(looks):.2f}"
    _, lengths = numbers.code_lengths(runs)
    late = pd.read_csv(first / "code_length.csv").query("step == step.max() and tokens == 'full'")
    last = late.query("target == 'indicator_1' and quantity == 'attended'").iloc[0]
    assert lengths["indicator_1"][2] == f"{last['bits'] / last['uniform']:.2f}"
    _, gradients = numbers.gradient_shares(runs)
    assert [float(one) > 0 for one in gradients["W_Q"]] == [True, True]
    with pytest.raises(LabError, match="norm_softmax has had no Eureka-moment"):
        maps.derivatives(runs, ["k"], "moment of norm_softmax")


def test_the_list_tells_how_long_figures_take_and_why_one_cannot_be_made(tmp_path: Path, script, monkeypatch) -> None:
    monkeypatch.setenv("EUREKA_DATA", str(tmp_path / "no_data"))
    monkeypatch.setattr(plan, "speed_of", lambda *_, **__: common.Speed(0.01, 1e-4))
    told = script("figure", "--list", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    stands, left = (
        {tuple(line.split()[:2]): line for line in part.splitlines() if ":" in line.split(" ")[0]}
        for part in told.split("To train the missing runs")
    )
    assert {name for name, _ in stands} == set(figure.names())
    assert "no page" in stands["eureka:17", "published"]
    assert "cannot be trained here: no images in" in left["eureka:17", "published"]
    assert "0 of 1 runs" in stands["softmax:2", "small"] and "about" in left["softmax:2", "small"]
    assert "a formula" in stands["softmax:4", "small"] and ("softmax:4", "small") not in left
    of_one = script("figure", "--list", "softmax:2", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    assert {line.split()[0] for line in of_one.splitlines() if re.match(r"\w+:\d", line)} == {"softmax:2"}


def test_the_list_of_tables_says_what_stands_before_it_measures(monkeypatch) -> None:
    monkeypatch.setattr(table, "names", lambda: ["eureka:1", "softmax:1"])
    monkeypatch.setattr(plan, "speed_of", lambda *_, **__: common.Speed(0.01, 1e-4))
    further = ["data/source=drawn", "trainer.max_epochs=1"]
    rows = [*table.rows_of_list(1, further)]
    assert [(row.name, row.size) for row in rows] == [
        ("eureka:1", "published"),
        ("eureka:1", "small"),
        ("softmax:1", "published"),
    ]
    lines = iter(plan.listed(rows))
    assert [next(lines).split()[:2] for _ in rows] == [[row.name, row.size] for row in rows]
    assert next(lines).startswith("\nTo train the missing runs")
    assert [re.search("about|cannot", line) is not None for line in lines] == [True, True]


def test_set_ups_keep_the_folders_of_runs_that_exist() -> None:
    cells = reasoning_setups.plan(Path("runs"), Kept(Path("none")), ("compile=true", "threads=1"))
    assert [cell.setup for cell in cells[:9]] == ["layer_norm"] * 9 and len(set(cells)) == len(cells)
    first = cells[0]
    assert (first.name, first.rate) == ("Softmax", "2e-3")
    name = "softmax,callbacks.eureka.stop_after=0,compile=true,model.layer_norm=true,optim.lr=0.002"
    assert first.seeds.folder(3) == Path("runs") / "reasoning" / name / "seed=3"
    for overrides in [cell.seeds.overrides for cell in cells if (cell.name, cell.rate) == ("Softmax + HT", "2e-3")]:
        assert problem_with(overrides) is None, overrides


def test_factors_are_compared_seed_by_seed_and_set_ups_with_the_paper() -> None:
    def cell(setup: str, name: str, moments: int) -> tuple[reasoning_setups.Cell, list[Any]]:
        had = [100 if seed < moments else None for seed in range(10)]
        runs = [
            SimpleNamespace(seed=n, moment=one, summary=summary_with(eureka={"happened": bool(one), "epoch": one}))
            for n, one in enumerate(had)
        ]
        return reasoning_setups.Cell(setup, name, "2e-3", Path("runs"), Kept(Path("none")), ()), runs

    whole = dict(
        [cell("layer_norm", "Softmax", 8), cell("no_layer_norm", "Softmax", 1), cell("no_layer_norm", "NormSoftmax", 2)]
    )
    (row,) = reasoning_setups.factors(whole).to_dict("records")
    assert row["factor"] == "layer_norm (against no_layer_norm)" and row["pairs that gain, lose a moment"] == "7, 0"
    assert (row["with it"], row["without"], row["p (McNemar, Holm over this table)"]) == ("8/10", "1/10", "0.016")
    rows = reasoning_setups.agreement(whole).set_index("set-up")
    assert rows.loc["layer_norm", "Softmax (paper 3/5)"].endswith("at 2e-3 alone: in")
    assert rows.loc["no_layer_norm", "NormSoftmax (paper 5/5)"].endswith(": out")
    assert set(rows["all three in"]) == {"not known"}
    (one, runs), *_ = whole.items()
    chosen = reasoning_setups.agreement({**whole, replace(one, rate="5e-3"): runs}).set_index("set-up")
    assert " at 2e-3 of 2e-3, 5e-3 (without seed 0 7/9 (" in chosen.loc["layer_norm", "Softmax (paper 3/5)"]


def test_seeds_that_chose_are_left_out_of_a_ratio_of_their_own() -> None:
    runs = [
        summary_with(seed=n, eureka={"happened": had, "epoch": 1 if had else None})
        for n, had in enumerate([True, True, False, True])
    ]
    assert common.ratio_of_others(runs, {0}).startswith("2/3 (")
    assert common.ratio_of_others(runs, range(4)) == "-"


def _baseline(shift: float) -> pd.DataFrame:
    """Accuracies of three seeds, so many percent points above the paper's."""
    paper = {size: max_retrieval.PAPER["Baseline"][f"size_{size}"].mean for size in max_retrieval.SIZES}
    return pd.DataFrame(
        [
            {
                "seed": seed,
                "measure": "baseline",
                "size": size,
                "sets": sets_of(size, 1000),
                "accuracy": (value + shift + seed - 1) / 100,
            }
            for size, value in paper.items()
            for seed in range(3)
        ]
    )


def test_the_penalty_closest_to_the_paper_is_chosen() -> None:
    found = {"gradient": _baseline(-6), "decoupled": _baseline(2)}
    assert max_retrieval_penalties.closest(found) == "decoupled"
    shown = max_retrieval_penalties.table(found)
    assert shown.loc["gradient", "mean distance"] == "6.0" and shown.loc["decoupled", "512"] == "72.1 (70 to 75)"
    for penalty in max_retrieval.PENALTIES.values():
        assert problem_with(max_retrieval.seeds_of(penalty, Path("runs"), 1).overrides) is None


def test_a_reading_that_was_whole_stays_on_the_page_when_its_runs_are_gone(tmp_path, script) -> None:
    _baseline(2).assign(penalty="decoupled").to_csv(tmp_path / max_retrieval_penalties.ACCURACIES, index=False)
    sizes = {"penalty": "decoupled", "seed": range(3), "norm": [1, 2, 3], "spread_16": 4, "spread_1024": 5}
    pd.DataFrame(sizes).to_csv(tmp_path / max_retrieval_penalties.NORMS, index=False)
    before = (tmp_path / max_retrieval_penalties.ACCURACIES).read_bytes()
    script("max_retrieval_penalties", "--runs", str(tmp_path / "gone"), "--out", str(tmp_path), "--page")
    page = (tmp_path / "README.md").read_text()
    assert "72.1 (70 to 75)" in page and "2.0 (1.0 to 3.0)" in page
    assert "Not run: gradient, twice, decoupled_matrices, gradient_matrices, twice_matrices." in page
    with pytest.raises(SystemExit):
        script(
            "max_retrieval_penalties",
            "--runs",
            str(tmp_path / "gone"),
            "--out",
            str(tmp_path),
            "--page",
            "--sets",
            "50",
        )
    assert (tmp_path / "README.md").read_text() == page, "of other test sets than are asked for nothing is told"
    assert (tmp_path / max_retrieval_penalties.ACCURACIES).read_bytes() == before


def test_the_reading_that_is_told_as_the_closest_is_the_closest_and_has_its_page(tmp_path: Path, script) -> None:
    shifts = {name: 2 + place for place, name in enumerate(reversed(max_retrieval.PENALTIES))}
    scores = pd.concat([_baseline(shift).assign(penalty=name) for name, shift in shifts.items()])
    scores.to_csv(tmp_path / max_retrieval_penalties.ACCURACIES, index=False)
    sizes = [{"penalty": name, "seed": 0, "norm": 1, "spread_16": 4, "spread_1024": 5} for name in shifts]
    pd.DataFrame(sizes).to_csv(tmp_path / max_retrieval_penalties.NORMS, index=False)
    other, closest = next(iter(max_retrieval.PENALTIES)), list(max_retrieval.PENALTIES)[-1]
    for folder in (other, closest):  # of an earlier choice, and of an evaluation that was cut short
        (tmp_path / folder).mkdir()
    where = ("--runs", str(tmp_path / "gone"), "--out", str(tmp_path), "--page")
    script("max_retrieval_penalties", *where)
    assert "Ten seeds of the closest" not in (tmp_path / "README.md").read_text()
    (tmp_path / closest / "README.md").write_text("its page")
    script("max_retrieval_penalties", *where)
    assert f"Ten seeds of the closest: {closest}" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("fluke", "--draws", "1"), "--draws 1 has no deviation over draws: give at least 2"),
        (("fluke", "--seed", "9" * 20), f"--seed {'9' * 20} is wrong: give a whole number from 0"),
        (("figure_8", "--grid", "5e-3", "0.005"), "--grid has 5e-3 twice, the second time as 0.005"),
        (
            ("study", "in_context", "--minutes", "inf"),
            "--minutes must be positive and at most 527,040, a year",
        ),
        (("table", "1", "--size", "small", "--minutes", "0"), "--minutes must be positive"),
        (("figure_8", "--grid", "high"), "--grid takes learning rates, such as 5e-3: could not convert"),
    ],
)
def test_numbers_that_say_nothing_are_refused(words: list[str], told: str, tmp_path: Path, script, capsys) -> None:
    with pytest.raises(SystemExit):
        script(*words, "--out", str(tmp_path / "out"))
    assert capsys.readouterr().err.startswith(f"error: {told}") and not (tmp_path / "out").exists()


def test_the_flattening_of_softmax_in_small(tmp_path: Path, script) -> None:
    script("fluke", "--draws", "20", "--out", str(tmp_path))
    rows = [line for line in (tmp_path / "README.md").read_text().splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(fluke.rules())
    # Each rule is made for 25 items: only log n is another softmax there.
    of_25 = {row.split("|")[1].strip(): row.split("|")[4].strip() for row in rows[2:]}
    assert {name for name, told in of_25.items() if told != of_25["softmax"]} == {"log_length form=log_n"}


def test_time_that_is_up_ends_as_ctrl_c_and_is_told(capsys) -> None:
    with common.within(0.05 / 60):
        signal.pause()
    assert "minutes are over: the same command goes on" in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt), common.within(5):
        raise KeyboardInterrupt  # somebody else's
    with pytest.raises(LabError, match="--minutes must be positive"), common.within(-1):
        pass


def test_two_evaluations_of_one_model_keep_each_other_s_rows(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(max_retrieval_evaluation, "SIZES", (16,))
    monkeypatch.setattr(max_retrieval_evaluation, "accuracies", lambda models, *_: dict.fromkeys(models, 0.5))
    trained: Any = SimpleNamespace(step=1, model=lambda rule: rule)
    both = [max_retrieval_evaluation.Evaluation(tmp_path, trained, 0) for _ in range(2)]
    rules = [OmegaConf.create({"tau": tau}) for tau in (1, 2)]
    for one, rule in zip(both, rules, strict=True):
        one.accuracies({"softmax": rule}, 10)
    kept = pd.read_csv(tmp_path / "evaluation" / "accuracies_step1.csv")
    assert list(kept["softmax"]) == ["tau=1", "tau=2"]


def test_a_study_leaves_out_what_is_kept_of_another_configuration(tmp_path: Path, script) -> None:
    out, kept = tmp_path / "out", "runs/in_context_small"
    shutil.copytree(ROOT / "results" / "in_context" / kept, out / kept)
    config = next((out / kept).rglob("norm_softmax,*=3,trainer*/seed=0/config.yaml"))
    changed = OmegaConf.load(config)
    changed.optim.weight_decay = 0.123
    config.write_text(OmegaConf.to_yaml(changed))
    script("study", "in_context", "--page", "--runs", str(tmp_path / "nothing"), "--out", str(out))
    page = (out / "README.md").read_text()
    assert "0.123" not in page and page.count("Not run: in_context_small norm_softmax seed 0.") == 1


def test_sizes_at_which_the_paper_lies_outside_are_told(monkeypatch) -> None:
    monkeypatch.setattr(max_retrieval, "SIZES", (16, 512))
    right = {("Baseline", 16): 0.986, ("Baseline", 512): 0.589, ("Adaptive θ", 16): 0.986, ("Adaptive θ", 512): 0.725}
    rows = [
        {"seed": seed, "measure": measure, "size": size, "accuracy": right[row, size] + spread}
        for measure, row in max_retrieval.ROWS.items()
        for size in (16, 512)
        for seed, spread in enumerate((-0.01, 0.0, 0.01))
    ]
    assert max_retrieval.beside_the_paper(pd.DataFrame(rows)) == [
        "Baseline: the paper's mean lies outside at 1 of 2 sizes: 512 (70.1 there, 58.9 here).",
        "Adaptive: the paper's mean lies in it at every size.",
    ]
    # Without any spread there is no interval at that size; the others are told.
    rows = [{**row, "accuracy": 0.986} if row["size"] == 16 else row for row in rows]
    assert max_retrieval.beside_the_paper(pd.DataFrame(rows)) == [
        "Baseline: the paper's mean lies outside at 1 of 1 sizes: 512 (70.1 there, 58.9 here).",
        "Adaptive: the paper's mean lies in it at 1 of 2 sizes, the others have no interval.",
    ]


def test_test_sets_differ_by_seed_and_are_fewer_when_large() -> None:
    assert max_retrieval.sets_of(16, 1000) == 1000
    assert max_retrieval.sets_of(16_384, 1000) == 128
    batches = max_retrieval_evaluation.batches
    one, other = (next(batches(32, 4, seed))["x"][0] for seed in (0, 1))
    assert not torch.equal(one, other)
    assert sum(len(batch["y"]) for batch in batches(2**17, 5, 0)) == 5


def test_temperatures_are_not_fitted_on_test_sets() -> None:
    test, fit = (next(max_retrieval_evaluation.batches(32, 4, 0, what))["x"][0] for what in ("test", "fit"))
    assert not (test[:, :, None, 0] == fit[:, None, :, 0]).any()


@pytest.mark.parametrize("labels", [["NormSoftmax"], ["ViT", "ViT τ = 1", "ViT + HT", "NormSoftmax"]])
@pytest.mark.pictures
def test_names_of_rows_are_not_cut_off(labels: list[str], tmp_path: Path) -> None:
    runs = []
    for label in labels:
        folder = tmp_path / label / "diagnostics" / "attention_gradients"
        folder.mkdir(parents=True)
        maps_LN = np.linspace(0.001, 0.1987, 10).reshape(2, 5)
        np.savez(folder / "epoch_00020.npz", q=maps_LN, k=3 * maps_LN, v=9 * maps_LN)
        runs.append(Shown("norm_softmax", label, (tmp_path / label,)))
    assert is_whole(maps.derivatives(runs, ["q", "k", "v"], 20))


def test_maps_of_attention_have_one_scale_and_their_shares_below(tmp_path: Path) -> None:
    runs = []
    for label, most in (("even", 0.2), ("sharp", 0.8)):
        folder = tmp_path / label / "diagnostics"
        (folder / "attention_maps").mkdir(parents=True)
        received_LBHM = np.full((1, 2, 1, 5), 0.05)
        received_LBHM[..., 1] = most
        np.savez(folder / "attention_maps" / "epoch_00040.npz", received=received_LBHM)
        rows = [(step, 0, 0, kind, mass, 2) for step, kind, mass in (
            (1, "indicator", 0.1), (2, "indicator", most), (2, "target", 0.15), (2, "sink", 0.9)
        )]  # fmt: skip
        columns = ["step", "layer", "head", "region", "mass", "tokens"]
        pd.DataFrame(rows, columns=columns).to_csv(folder / "attention_mass.csv", index=False)
        runs.append(Shown(label, label, (tmp_path / label,)))
    images = [axes.images[0] for axes in maps.attention(runs).axes[:2]]
    assert [image.get_clim() for image in images] == [(0, 0.8)] * 2
    about, shares = numbers.attention_shares(runs)
    assert "(even attention: 40.0% and 40.0%)" in about
    assert shares.to_dict("list") == {
        "run": ["even", "sharp"], "layer": ["0", "0"], "indicators": ["20.0%", "80.0%"], "targets": ["15.0%"] * 2
    }  # fmt: skip


def is_whole(drawn: Figure) -> bool:
    """Tells whether nothing of a figure lies outside of it."""
    lay_out(drawn)
    with styled():
        drawn.canvas.draw()
        box = drawn.get_tightbbox()  # in inches
    width, height = drawn.get_size_inches()
    return box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height

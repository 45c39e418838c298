"""Ratios, times and comparisons count each seed once, and say nothing that the runs do not support."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_runs import EPOCHS, changed_at, figure_8_beside

from lab.console import LabError
from lab.observation.change_point import change_point
from lab.report.against import set_beside
from lab.report.assemble import assemble
from lab.report.charts import curves_chart
from lab.report.figures import (
    curves,
    gradient_shares,
    gradients,
    line_styles_of,
    rate_grid,
)
from lab.report.gather import gather
from lab.report.make import report
from lab.report.middle import middle
from lab.report.notes import notes_of
from lab.report.outcomes import baseline_of, change_times, compare, outcome, times
from lab.report.published import Cell, Column, load
from lab.report.rows import run_row, setting_row
from lab.report.settings import settings


@pytest.mark.parametrize("ended", ["stopped", "failed"])  # after a full disk, say, the same command goes on
def test_while_seeds_wait_for_a_moment_that_ends_a_run_a_ratio_has_no_verdict(write, tmp_path: Path, ended) -> None:
    for softmax in ("softmax", "norm_softmax"):
        for seed in range(4):
            waits = softmax == "softmax" and seed > 1
            status = ended if waits else "finished"
            write(seed, None if waits else 12, "callbacks.eureka.stop_after=3", softmax=softmax, status=status)
    found = gather(tmp_path)
    (section,) = assemble([found]).sections
    (against,) = section.comparisons.values()
    assert (against.ratio, against.watched) == (None, None) and against.time is not None
    beside = set_beside(load("eureka/figure_8"), settings(found.runs))
    cells = {row.settings[0].softmax: row.cells["eureka_ratio"] for row in beside if row.settings}
    assert cells["softmax"].text == f"2 with a moment; not counted: 2 without one by epoch {EPOCHS}"
    assert cells["softmax"].inside is None and cells["norm_softmax"].text.startswith("4/4")


def test_settings_of_other_lengths_have_neither_ratios_nor_accuracies_compared(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, 12 + seed)
        write(seed, None, "trainer.max_epochs=5000")
        write(seed, 14 + seed, "callbacks.eureka.stop_after=9", softmax="norm_softmax")
    (section,) = assemble([gather(tmp_path)]).sections
    of = {against.setting.name: against for against in section.comparisons.values()}
    assert section.baseline.name == "softmax"  # type: ignore[union-attr]
    longer, early = of["softmax, trainer.max_epochs=5000"], of["norm_softmax, callbacks.eureka.stop_after=9"]
    assert (longer.ratio, longer.watched) == (None, None) and longer.time is not None
    assert early.ratio is not None and early.watched is None


def test_runs_that_a_clock_has_ended_are_not_taken_for_whole_ones(write, tmp_path: Path) -> None:
    for seed in range(5):
        write(seed, None, epochs=EPOCHS - (4 if seed else 0))
        write(seed, EPOCHS - 1, softmax="norm_softmax")
    (section,) = assemble([gather(tmp_path)]).sections
    (own,) = section.comparisons.values()
    # Watched as long as the others, nobody had a moment by then either. One seed alone has two whole runs.
    assert (own.ratio, own.watched, own.seeds) == (None, None, 0) and own.time is not None
    for seed in range(1, 3):
        write(seed, None)
    (section,) = assemble([gather(tmp_path)]).sections
    (own,) = section.comparisons.values()
    assert own.ratio is None and own.seeds == 3


def test_seeds_that_came_to_a_moment_before_the_clock_ended_the_others_are_not_paired(write, tmp_path: Path) -> None:
    """Of seeds that stop after their moment, only those with one came to their end."""
    early = "callbacks.eureka.stop_after=9"
    for seed in range(6):
        write(seed, 12 if seed % 2 else None, early, epochs=21 if seed % 2 else EPOCHS)
        write(seed, 12 if seed < 3 else None, early, softmax="norm_softmax", epochs=21 if seed < 3 else EPOCHS - 2)
    (section,) = assemble([gather(tmp_path)]).sections
    (own,) = section.comparisons.values()
    assert (own.ratio, own.watched, own.watched_p) == (None, None, None) and own.time is not None


def test_a_run_that_ends_between_its_moment_and_stop_after_is_cut_short(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, 12, "callbacks.eureka.stop_after=9", epochs=13)
        write(seed, 12, "callbacks.eureka.stop_after=9", softmax="norm_softmax", epochs=21)
    cut, whole = settings(gather(tmp_path).runs)
    assert all(run.cut_short for run in cut.runs) and not any(run.cut_short for run in whole.runs)
    (own,) = compare([outcome(cut), outcome(whole)], cut)
    assert (own.watched, own.seeds) == (None, 0) and outcome(cut).told_ratio().startswith("3/3")


def test_steps_are_counted_against_a_baseline_that_ends_alike(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, 12)
        write(seed, 12, "callbacks.eureka.stop_after=0")
        write(seed, 6, softmax="norm_softmax")
    found = {setting.name: setting for setting in settings(gather(tmp_path).runs)}
    ours = found["norm_softmax"]
    reached = outcome(ours, found["softmax"]).reach
    assert reached is not None and reached.percent_of_steps == pytest.approx(50)
    assert outcome(ours, found["softmax, callbacks.eureka.stop_after=0"]).reach is None


def test_a_seed_that_diverged_counts_as_one_without_a_moment(write, tmp_path: Path) -> None:
    for seed in range(10):
        write(seed, 20 if seed < 5 else None, softmax="norm_softmax")
        folder = write(seed, 20 if seed < 5 else None, **{} if seed < 5 else {"status": "failed", "epochs": 10})
        if seed >= 5:
            told = json.loads((folder / "summary.json").read_text()) | {"diverged": True}
            if seed > 7:  # before its first validation
                (folder / "metrics.csv").write_text("step,epoch,train/loss\n9,0,0.5\n")
            (folder / "summary.json").write_text(json.dumps(told))
    own = settings(gather(tmp_path).runs)
    outcomes = [outcome(one) for one in own]
    assert [str(one.ratio) for one in outcomes] == ["5/10 (24% to 76%)"] * 2
    assert [one.accuracy.seeds for one in outcomes if one.accuracy] == [5, 5]
    (against,) = compare(outcomes, own[0])
    assert (against.ratio, against.time) == (1.0, 1.0)


def test_the_runs_that_count_are_those_of_the_ratio(write, tmp_path: Path) -> None:
    ends = ({}, {}, {"status": "failed"}, {"status": "failed", "diverged": True}, {"status": "stopped"})
    for seed, end in enumerate(ends):
        path = write(seed, 12 if seed in (0, 4) else None) / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | end))
    write(0, None, root=tmp_path / "twice")
    write(5, None, epochs=EPOCHS - 1, softmax="norm_softmax")  # ended by a clock
    plain, cut = settings(gather(tmp_path).runs)
    rows = [run_row(plain, run, tmp_path) for run in (*plain.runs, *plain.doubles)]
    counted = [row for row in rows if row["counted"]]
    assert [(row["seed"], row["diverged"]) for row in counted] == [(0, False), (1, False), (3, True)]
    assert outcome(plain).told_ratio().startswith("1/3 ")
    assert not run_row(cut, cut.first, tmp_path)["counted"]


def test_the_interval_of_the_moments_ends_with_the_training(write, tmp_path: Path) -> None:
    after = "callbacks.eureka.stop_after=0"
    for seed, moment in enumerate((1, EPOCHS - 2, EPOCHS - 2)):
        write(seed, moment)
        write(seed, moment, after, epochs=moment)  # one might have waited until max_epochs
    found = [outcome(one).eureka_epoch for one in settings(gather(tmp_path).runs)]
    assert [one and (one.low, one.high) for one in found] == [(0, EPOCHS)] * 2
    (folder,) = (run.folder for run in settings(gather(tmp_path).runs)[0].runs if run.seed == 0)
    told = json.loads((folder / "summary.json").read_text()) | {"max_epochs": -1}
    (folder / "summary.json").write_text(json.dumps(told))
    mean = outcome(settings(gather(tmp_path).runs)[0]).eureka_epoch
    assert mean is not None and mean.high is not None and mean.high > EPOCHS  # the end of the training is not known


def test_a_seed_that_failed_at_once_does_not_speak_for_its_setting(write, tmp_path: Path) -> None:
    for seed in range(3):
        path = write(seed, 12) / "summary.json"
        told = json.loads(path.read_text())
        failed = {"status": "failed", "epochs": 0, "metrics": {}, "eureka": {}}
        told |= failed if seed == 0 else {"eureka": told["eureka"] | {"metric": "val/loss", "threshold": 0.3}}
        path.write_text(json.dumps(told))
        if seed == 0:
            (path.parent / "metrics.csv").write_text("step,epoch\n")
    (setting,) = settings(gather(tmp_path).runs)
    assert setting.metric == "loss"
    assert gradients([setting]) is not None and gradient_shares([setting])


def test_a_finished_seed_stands_for_its_setting_and_another_says_how_it_ended(write, tmp_path: Path) -> None:
    write(0, None, status="failed", epochs=20)
    write(1, 12)
    write(0, None, softmax="norm_softmax", status="failed", epochs=20)
    own = settings(gather(tmp_path).runs)
    figure = gradients(own)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["softmax, seed 1", "norm_softmax, seed 0 (failed)"]
    assert gradient_shares(own).endswith("softmax W_Q 0.067, W_K 0.033; norm_softmax (failed) W_Q 0.067, W_K 0.033.")


def test_ratios_count_finished_runs_and_survival_counts_all(write, tmp_path: Path) -> None:
    for seed, moment in enumerate([10, 20, None, None]):
        write(seed, moment)
    write(4, None, status="stopped", epochs=15, watched=25)  # its last validation was in epoch 15
    (setting,) = settings(gather(tmp_path).runs)
    found = outcome(setting, setting)
    assert sorted(times(setting.runs).ends) == [15, 40, 40]  # type: ignore[union-attr]
    assert (found.ratio.count, found.ratio.seeds) == (2, 4)  # type: ignore[union-attr]
    assert found.eureka_epoch.value == 15 and found.accuracy.value == pytest.approx(90)  # type: ignore[union-attr]
    assert found.plateau.value == pytest.approx(50)  # type: ignore[union-attr]
    # Kaplan-Meier by hand: 4/5 after 10; the stopped run leaves at 15; then 4/5 * 2/3.
    assert found.median.epoch == np.inf and str(found.median) == "later than 40"
    assert (found.reach.reached, found.reach.runs, found.reach.percent_of_steps) == (2, 4, 100)  # type: ignore[union-attr]


def test_comparisons_are_with_the_baseline_and_corrected(write, tmp_path: Path) -> None:
    for seed in range(5):
        write(seed, None)
        write(seed, 5 + seed, softmax="norm_softmax")
        write(seed, 5 + seed, softmax="heat_treatment")
    found = settings(gather(tmp_path).runs)
    base = baseline_of(found)
    assert base is not None and base.softmax == "softmax"
    compared = compare([outcome(setting, base) for setting in found], base)
    # Fisher's exact test of 5/5 against 0/5 is 1/126; two comparisons double it.
    assert [against.ratio for against in compared] == pytest.approx([2 / 126, 2 / 126])
    assert all(against.time < 0.02 and against.seeds == 5 for against in compared)  # type: ignore[operator]
    assert compared[0].watched == pytest.approx((40, 40, 40))
    other = replace(found[-1], config={**found[-1].config, "data._target_": "my_tasks.Other"})
    vocabulary = replace(found[-1], config={**found[-1].config, "data.vocabulary": 512})
    for one in (other, vocabulary):
        (apart,) = compare([outcome(base, base), outcome(one, base)], base)
        assert (apart.ratio, apart.time, apart.watched, apart.watched_p, apart.seeds) == (None, None, None, None, 0)
    heat, norm = (next(one for one in found if one.softmax == name) for name in ("heat_treatment", "norm_softmax"))
    elsewhere = replace(norm, config={**norm.config, "data._target_": "my_tasks.Other"})
    assert outcome(heat, norm).reach is not None and outcome(heat, elsewhere).reach is None
    with pytest.raises(LabError, match="no setting is called 'sotfmax'"):
        baseline_of(found, "sotfmax")


def test_a_loss_that_is_watched_is_told_and_compared_in_place_of_the_accuracy(write, tmp_path: Path) -> None:
    for seed in range(3):
        for softmax, loss in (("softmax", 4.5 + seed / 10), ("norm_softmax", 4.25 + seed / 10)):
            folder = write(seed, 5, softmax=softmax)
            summary = json.loads((folder / "summary.json").read_text())
            summary["eureka"] |= {"metric": "val/loss", "falls": True, "threshold": 5.0}
            summary["metrics"]["val/loss"] = loss
            (folder / "summary.json").write_text(json.dumps(summary))
    report([tmp_path], out=tmp_path / "out")
    rows = {row["setting"]: row for row in csv.DictReader((tmp_path / "out/settings.csv").open())}
    assert rows["softmax"]["loss at the end"].startswith("4.600 ± 0.082 (")
    assert rows["norm_softmax"]["loss, difference"] == "-0.250 (all 3 seeds)"
    assert not {"accuracy, difference", "accuracy at the end"} & rows["softmax"].keys()
    runs = [row["watched_value"] for row in csv.DictReader((tmp_path / "out/runs.csv").open())]
    assert sorted(runs) == ["4.25", "4.35", "4.45", "4.5", "4.6", "4.7"]


def test_a_run_that_never_looked_out_says_nothing_of_moments(write, tmp_path: Path) -> None:
    for seed in range(2):
        path = write(seed, None, accuracy=0.9) / "summary.json"
        summary = json.loads(path.read_text())
        summary["eureka"]["threshold"] = None
        path.write_text(json.dumps(summary))
    (setting,) = settings(gather(tmp_path).runs)
    found = outcome(setting)
    assert (found.ratio, found.exact, found.median, found.plateau) == (None, None, None, None)
    assert compare([found], setting) == []


def test_another_accuracy_that_was_watched_is_told_and_drawn_in_its_place(write, tmp_path: Path) -> None:
    for seed in range(2):
        folder = write(seed, 12)
        summary = json.loads((folder / "summary.json").read_text())
        summary["eureka"] |= {"metric": "val/accuracy_closed", "value": 0.8}
        summary["metrics"]["val/accuracy_closed"] = 0.85
        (folder / "summary.json").write_text(json.dumps(summary))
        table = pd.read_csv(folder / "metrics.csv")
        table["val/accuracy_closed"] = 0.6
        table.to_csv(folder / "metrics.csv", index=False)
    write(0, 12, softmax="norm_softmax")
    setting, other = settings(gather(tmp_path).runs)
    assert np.nanmax(setting.runs[0].curve("val/accuracy")) == pytest.approx(0.6)
    title = curves([setting, other], "accuracy", aligned=False).axes[1].get_title()
    assert " ".join(title.split()).endswith("validation accuracy in %")
    chart = curves_chart([setting, other], "accuracy", line_styles_of([setting, other]))
    names = [group["name"] for group in chart["groups"]] if chart else []
    assert names == ["softmax", "norm_softmax, validation accuracy in %"]
    picture = curves([setting], "accuracy", aligned=False)
    (axes, *_) = picture.axes
    assert axes.get_ylabel() == "accuracy_closed in %"
    stars = [line for line in axes.lines if line.get_marker() == "*" and len(line.get_xdata())]
    assert [list(line.get_ydata()) for line in stars] == [[80.0, 80.0]]
    out = report([tmp_path], out=tmp_path / "out")[1]
    row, _ = csv.DictReader((out / "settings.csv").open())
    assert row["accuracy_closed at the end, %"].startswith("85.00")


def test_runs_that_were_cut_short_before_a_moment_have_no_ratio(write, tmp_path: Path) -> None:
    for seed in range(4):
        write(seed, 12 if seed else None, epochs=EPOCHS if seed else 30)
        write(seed, 12, softmax="norm_softmax")
    plain, other = settings(gather(tmp_path).runs)
    found = [outcome(one, plain) for one in (plain, other)]
    assert [setting_row(one, None)["Eureka-ratio"][:3] for one in found] == ["3 w", "4/4"]
    assert rate_grid([plain]) == ({}, [])
    assert found[0].told_ratio() == "3 with a moment; not counted: 1 without one by epoch 30"
    assert compare(found, plain)[0].ratio is None
    write(4, None)  # trained to its end
    (plain, _) = settings(gather(tmp_path).runs)
    assert outcome(plain).told_ratio() == "3 with a moment, 1 without; not counted: 1 without one by epoch 30"


def test_a_setting_of_which_runs_were_pruned_has_counts_alone(write, tmp_path: Path) -> None:
    """Who did badly was ended: who is left is no fair sample, of accuracies and of times to the moment neither."""
    for seed in range(4):
        write(seed, 12, accuracy=0.9)
        write(seed, 12, softmax="norm_softmax", accuracy=0.9)
    for seed, moment in ((4, None), (5, 10)):
        folder = write(seed, moment, softmax="norm_softmax", epochs=20, status="stopped")
        file = folder / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"pruned": True}))
    plain, other = settings(gather(tmp_path).runs)
    found = [outcome(one, plain) for one in (plain, other)]
    assert found[1].told_ratio() == "4 with a moment; not counted: 1 with a moment, 1 without one by epoch 20"
    row = setting_row(found[1], None)
    assert not any(row[name] for name in row if name not in ("seeds finished", "Eureka-ratio"))
    (against,) = compare(found, plain)
    assert (against.ratio, against.time, against.change_time, against.watched) == (None, None, None, None)
    assert "in 2 of 6 cases ended by the pruner of a search" in notes_of(other)[0] and not notes_of(plain)
    assert not any(run_row(other, run, tmp_path)[name] for run in other.runs for name in ("counted", "looked"))
    for aligned in (False, True):
        assert middle(plain.runs, "val/accuracy", aligned) is not None
        assert middle(other.runs, "val/accuracy", aligned) is None
    beside = figure_8_beside(tmp_path)["NormSoftmax"].cells["eureka_ratio"]
    assert beside.text == found[1].told_ratio()
    # Where a search gave up all there is, nothing is left to be told of.
    only = replace(other, runs=[run for run in other.runs if run.pruned])
    assert outcome(only).told_ratio() == "" and not notes_of(only)
    # Trained to their end after all, they count.
    for seed, moment in ((4, None), (5, 10)):
        write(seed, moment, softmax="norm_softmax")
    (_, other) = settings(gather(tmp_path).runs)
    assert outcome(other).told_ratio().startswith("5/6")


def test_seeds_that_still_wait_have_no_share_of_steps(write, tmp_path: Path) -> None:
    for softmax in ("softmax", "norm_softmax"):
        for seed in range(3):
            write(seed, 12, "callbacks.eureka.stop_after=3", softmax=softmax, epochs=15)
    plain, other = settings(gather(tmp_path).runs)
    assert outcome(other, plain).reach is not None
    write(3, None, "callbacks.eureka.stop_after=3", softmax="norm_softmax", epochs=15, status="stopped")
    plain, other = settings(gather(tmp_path).runs)
    assert outcome(other, plain).reach is None
    assert outcome(other).told_ratio() == "3 with a moment; not counted: 1 without one by epoch 15"


def test_runs_that_end_too_soon_for_a_change_point_are_not_counted_as_without(write, tmp_path: Path) -> None:
    for seed in range(3):
        changed_at(write(seed, 12), 12)
        changed_at(write(seed, 12, "callbacks.eureka.stop_after=3", epochs=15), None)  # a plateau has six values
        changed_at(write(seed, 12, "callbacks.eureka.stop_after=80", epochs=20), 12)
        changed_at(write(seed, None, "trainer.max_epochs=8", epochs=8), None)
    found = {setting.name.partition(", ")[2]: outcome(setting) for setting in settings(gather(tmp_path).runs)}
    ratios = {
        name: one.change_ratio and (one.change_ratio.count, one.change_ratio.seeds) for name, one in found.items()
    }
    assert ratios == {
        "": (3, 3), "callbacks.eureka.stop_after=3": None, "callbacks.eureka.stop_after=80": (3, 3),
        "trainer.max_epochs=8": None,
    }  # fmt: skip
    assert found["callbacks.eureka.stop_after=3"].change_median is None
    assert str(found[""].change_median).startswith("12")


def test_runs_that_may_still_change_have_no_ratio_and_are_watched_to_where_a_change_shows(
    write, tmp_path: Path
) -> None:
    for seed in range(3):
        changed_at(write(seed, EPOCHS - 3), None)  # a plateau of three values is none
    (setting,) = settings(gather(tmp_path).runs)
    assert outcome(setting).change_ratio.count == 0  # type: ignore[union-attr]
    assert change_times(setting.runs).ends == (EPOCHS - 5.0,) * 3  # type: ignore[union-attr]
    values = [0.0] * (EPOCHS - 6) + [1.0] * 6  # the latest change that shows: its first value is that of this epoch
    assert change_point(values, rises=True).index + 1 == EPOCHS - 5  # type: ignore[union-attr]
    changed_at(write(3, None, epochs=EPOCHS - 10), None)
    (setting,) = settings(gather(tmp_path).runs)
    assert setting.runs[3].cut_short and outcome(setting).change_ratio is None


def test_times_of_settings_that_are_validated_more_or_less_often_are_not_compared(write, tmp_path: Path) -> None:
    rare = "trainer.check_val_every_n_epoch=20"
    for seed in range(4):
        write(seed, 12, watched=10_000)
        write(seed, 20, rare, watched=10_000)
        write(seed, 20, rare, softmax="norm_softmax", watched=10_000)
    plain, rarely, ours = settings(gather(tmp_path).runs)
    found = [outcome(one) for one in (plain, rarely, ours)]
    assert [one.time is None for one in compare(found, plain)] == [True, True]
    assert [one.time is None for one in compare(found, rarely)] == [True, False]
    assert all(one.ratio is not None for one in compare(found, plain))
    cells = figure_8_beside(tmp_path)["NormSoftmax"].cells
    assert cells["eureka_ratio"].inside is not None
    # A column of epochs: Figure 8 has none.
    table = load("eureka/figure_8")
    rows = tuple(replace(row, cells={**row.cells, "eureka_epoch": Cell(mean=100.0, std=1.0)}) for row in table.rows)
    timed = replace(table, rows=rows, columns={**table.columns, "eureka_epoch": Column("epoch", "epochs")})
    (cell,) = [row.cells["eureka_epoch"] for row in set_beside(timed, [ours]) if row.settings]
    assert (cell.inside, cell.unlike) == (None, "trainer.check_val_every_n_epoch is 20 instead of 10")


def test_short_runs_without_a_moment_count_as_neither(write, tmp_path: Path) -> None:
    for seed in range(4):
        write(seed, None if seed else 12, watched=200 + seed)  # ended by a clock, say
    cell = figure_8_beside(tmp_path)["Softmax"].cells["eureka_ratio"]
    assert cell.text == "1 with a moment; not counted: 3 without one by epoch 203"
    assert (cell.inside, cell.p, cell.unlike) == (None, None, "3 without one by epoch 203")


def test_runs_that_never_validated_are_told(write, tmp_path: Path) -> None:
    for seed in range(2):
        folder = write(seed, None, "trainer.max_epochs=2", epochs=2)
        (folder / "metrics.csv").write_text("step,epoch,train/loss,val/accuracy\n0,0,2.0,\n1,1,1.0,\n")
        summary = json.loads((folder / "summary.json").read_text())
        summary |= {"eureka": {"happened": False}, "metrics": {}}
        (folder / "summary.json").write_text(json.dumps(summary))
    cell = figure_8_beside(tmp_path)["Softmax"].cells["eureka_ratio"]
    assert (cell.text, cell.unlike) == ("not counted: 2 never validated", "2 of 10,000 epochs")

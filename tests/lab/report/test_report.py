"""A report counts each seed once, hides nothing that it left out, and finds the paper's rows among the runs."""

from __future__ import annotations

import base64
import csv
import json
import os
import shutil
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from filelock import FileLock
from omegaconf import OmegaConf

from lab.bench.gathering import write_runs
from lab.config.compose import compose_config
from lab.console import LabError
from lab.observation.change_point import change_point
from lab.report import against
from lab.report import gather as gathering
from lab.report import write as writing
from lab.report.__main__ import main, report
from lab.report.against import MatchedRow, set_beside
from lab.report.assemble import assemble, file_name, setting_row
from lab.report.charts import curves_chart, survival_chart
from lab.report.figures import (
    _rate,
    curves,
    gradient_shares,
    gradients,
    guides,
    line_styles_of,
    panel_title,
    rate_grid,
    survival,
    told_apart,
)
from lab.report.gather import INDEX, gather
from lab.report.outcomes import baseline_of, change_times, compare, outcome, times
from lab.report.published import Cell, Column, load
from lab.report.records import what_is_run
from lab.report.settings import Setting, planned, settings
from lab.report.write import _interval
from lab.runs.files import DamagedFile
from lab.runs.spec import run_name
from lab.runs.summary import Eureka
from scripts import curves as curves_script
from scripts.curves import drawn as drawn_curves

EPOCHS = 40


def folder_of(root: Path, seed: int, *overrides: str, experiment: str = "reasoning", softmax: str = "softmax") -> Path:
    return root / run_name(experiment, softmax, seed, overrides)


@pytest.fixture(scope="module")
def configs() -> dict[tuple[str, ...], dict]:
    return {}


@pytest.fixture
def write(tmp_path: Path, configs):
    """Writes a run folder: ``write(seed, moment, "optim.lr=1e-3", softmax="norm_softmax", status="finished")``.

    Metrics of ``epochs`` epochs; the summary tells of ``watched`` ones, where that is given.
    """

    def make(
        seed: int,
        moment: int | None,
        *overrides: str,
        experiment: str = "reasoning",
        softmax: str = "softmax",
        status: str = "finished",
        accuracy: float | None = None,
        epochs: int = EPOCHS,
        watched: int | None = None,
        root: Path = tmp_path,
    ) -> Path:
        typed = (f"experiment={experiment}", f"softmax={softmax}", *overrides, f"seed={seed}")
        if typed not in configs:
            config = compose_config(typed)
            config.paths.run = "somewhere"
            configs[typed] = OmegaConf.to_container(config, resolve=True)
        own = accuracy if accuracy is not None else (0.9 if moment else 0.5)
        summary = {
            "status": status,
            "experiment": experiment,
            "softmax": softmax,
            "seed": seed,
            "overrides": list(typed),
            "epochs": watched or epochs,
            "steps": 10 * (watched or epochs),
            "max_epochs": EPOCHS,
            "wall_seconds": 60.0,
            "eureka": {"happened": moment is not None, "threshold": 0.7},
            "metrics": {"val/accuracy": own},
        }
        if moment:
            summary["eureka"] |= {"epoch": moment, "step": 10 * moment, "accuracy": 0.75}
        folder = folder_of(root, seed, *typed, experiment=experiment, softmax=softmax)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "config.yaml").write_text(yaml.safe_dump(configs[typed]))
        rows = ["step,epoch,gradient/k/layer_0,gradient/q/layer_0,gradient/v/layer_0,train/loss,val/accuracy,val/loss"]
        for epoch in range(epochs):
            rows.append(f"{10 * epoch},{epoch}.0,1e-3,2e-3,3e-2,,,")
            value = own if moment and epoch + 1 >= moment else 0.5
            rows.append(f"{10 * epoch + 9},{epoch}.0,,,,{1 - value},{value},{1 - value}")
        (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
        return folder

    return make


def test_curves_and_the_rest_are_what_the_folder_says(write, tmp_path: Path) -> None:
    write(3, 12, accuracy=0.8)
    (run,) = gather(tmp_path).runs
    assert (run.seed, run.moment, run.accuracy, run.epochs, run.status) == (3, 12, 0.8, EPOCHS, "finished")
    assert list(run.curve("epoch")) == list(range(1, EPOCHS + 1))
    assert np.allclose(run.curve("val/accuracy"), [0.5] * 11 + [0.8] * 29)
    assert np.isnan(run.curve("train/accuracy")).all()
    assert "seed" not in run.config and "data.seed" not in run.config and run.config["optim.lr"] == 0.005


def test_panels_of_curves_share_their_axis_of_epochs(write, tmp_path: Path) -> None:
    write(0, 3, softmax="norm_softmax", epochs=5)
    write(0, None, epochs=EPOCHS)
    for quantity in ("accuracy", "loss"):
        picture = curves(settings(gather(tmp_path).runs), quantity, aligned=False)
        assert picture is not None and len(picture.axes) == 2
        assert len({panel.get_xlim() for panel in picture.axes}) == 1 and picture.axes[0].get_xlim()[1] >= EPOCHS


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


def test_many_runs_are_read_side_by_side_and_the_same(tmp_path: Path, monkeypatch) -> None:
    write_runs(tmp_path, 30, epochs=3)
    alone = gather(tmp_path, processes=1)
    (tmp_path / INDEX).unlink()
    monkeypatch.setattr(gathering, "_WORTH_PROCESSES", 10)
    together = gather(tmp_path, processes=2)
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


HOSTILE = "../../out | `a` <script>alert(1)</script> ![b](http://c/d.png) $\\frac{ \x1b[31m\n# e \ud800"


def test_what_a_stranger_wrote_is_text_and_stays_in_the_report(write, tmp_path: Path, capsys) -> None:
    folder = write(0, 12, root=tmp_path / "runs")
    summary = json.loads((folder / "summary.json").read_text())
    named = {"experiment": HOSTILE[:-1], "softmax": HOSTILE[:-1], "machine": {"gpu": HOSTILE}, "error": HOSTILE[:-1]}
    (folder / "summary.json").write_text(json.dumps(summary | named))
    (folder / "pictures").mkdir()
    (tmp_path / "secret.png").write_bytes(b"secret")
    (folder / "pictures" / "a.png").symlink_to(tmp_path / "secret.png")
    (folder / "pictures" / "b.png").write_bytes(b"mine")
    os.mkfifo(folder / "pictures" / "c.png")
    _, out = report([tmp_path / "runs"])
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "secret.png"}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"reasoning", "report", ".report"}
    page, text = (out / "index.html").read_text(), (out / "report.md").read_text()
    assert base64.b64encode(b"mine").decode() in page and base64.b64encode(b"secret").decode() not in page
    assert "alert(1)" in page and "<script>alert" not in page + text
    for wrong in ("\x1b", "\n# e", "![b](", " | `a`", "http://c"):
        assert wrong not in text
    assert "out \\| \\`a\\` &lt;script>" in text


@pytest.mark.parametrize("listed", ['["../mine.png", "figures/old.png", 5, "figures/away/mine.png"]', "{}", "[" * 9999])
def test_a_list_of_files_that_came_with_a_report_deletes_nothing_elsewhere(write, tmp_path: Path, listed: str) -> None:
    write(0, 12, root=tmp_path / "runs")
    _, out = report([tmp_path / "runs"], out=tmp_path / "out")
    mine = tmp_path / "mine.png"
    mine.touch()
    (out / "figures" / "away").symlink_to(tmp_path)
    (out / ".made.json").write_text(listed)
    report([tmp_path / "runs"], out=out)
    assert mine.exists()
    shutil.rmtree(out / "figures")
    (out / "figures").symlink_to(tmp_path)
    with pytest.raises(LabError, match="figures is a link"):
        report([tmp_path / "runs"], out=out)


def test_an_index_that_came_with_a_folder_is_not_believed(write, tmp_path: Path) -> None:
    write(0, 12)
    gather(tmp_path)
    with np.load(tmp_path / INDEX) as stored:
        told, curves = json.loads(stored["text"].tobytes()), stored["curves"]
    for wrong in ({"configs": [5]}, {"runs": [{**told["runs"][0], "length": -1}]}, {"runs": 5}):
        text = json.dumps(told | wrong).encode()
        np.savez(tmp_path / INDEX, text=np.frombuffer(text, np.uint8), curves=curves)
        assert gather(tmp_path).read == 1


def test_a_learning_rate_that_is_no_number_is_in_no_grid(write, tmp_path: Path) -> None:
    for seed, rate in enumerate(("high", [1], 0.1)):
        path = write(0, 12, f"optim.lr={seed + 1}") / "config.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"optim": {"lr": rate}}))
    assert rate_grid(settings(gather(tmp_path).runs))[1] == [(0.1, None)]


def test_a_run_in_which_nobody_looked_for_a_moment_is_in_no_grid(write, tmp_path: Path) -> None:
    for seed, rate in enumerate(("1e-3", "2e-3", "1e-3")):
        path = write(seed, 12, f"optim.lr={rate}") / "summary.json"
        if seed == 2:
            path.write_text(json.dumps(json.loads(path.read_text()) | {"eureka": {"happened": None}}))
    grid, _ = rate_grid(settings(gather(tmp_path).runs))
    assert [cell for cells in grid.values() for cell in cells.values()] == [(1, 1), (1, 1)]


def test_settings_at_one_rate_are_rows_of_their_own(write, tmp_path: Path) -> None:
    for after in (3, 5):
        for seed in range(2):
            moment = 12 if after == 3 else None
            write(seed, moment, f"callbacks.eureka.stop_after={after}", "optim.lr=1e-3")
            write(seed, moment, f"callbacks.eureka.stop_after={after}", "optim.lr=2e-3")
    grid, rates = rate_grid(settings(gather(tmp_path).runs))
    assert len(rates) == 2 and sorted(cell for cells in grid.values() for cell in cells.values()) == [
        (0, 2), (0, 2), (2, 2), (2, 2),
    ]  # fmt: skip


def test_values_that_read_alike_are_settings_of_their_own_names(write, tmp_path: Path) -> None:
    for seed, value in enumerate((True, 1, "1")):
        path = write(seed, 12, "model.layer_norm=true") / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config["model"]["layer_norm"] = value
        path.write_text(yaml.safe_dump(config))
    named = [setting.name for setting in settings(gather(tmp_path).runs)]
    assert sorted(named) == [
        "softmax, model.layer_norm=1 (1)",
        "softmax, model.layer_norm=1 (2)",
        "softmax, model.layer_norm=True",
    ]


def test_moments_of_other_metrics_or_thresholds_are_not_compared(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, 12)
        write(seed, None, "callbacks.eureka.threshold=0.8", softmax="norm_softmax")
        write(seed, None, softmax="sigmoid")
    (section,) = assemble([gather(tmp_path)]).sections
    compared = {against.setting.softmax: (against.ratio, against.time) for against in section.comparisons.values()}
    assert compared["norm_softmax"] == (None, None)
    assert compared["sigmoid"] == (pytest.approx(0.1), pytest.approx(0.1))


def test_a_title_keeps_its_end_where_it_is_shortened() -> None:
    text = "norm_softmax, data.train_share=0.4, model.hidden=256, optim.lr=0.002, softmax.tau=1.5 (3 seeds)"
    shown = panel_title(text).split("\n")
    assert len(shown) == 3 and shown[0].startswith("norm_softmax") and shown[1].startswith("… ")
    assert shown[-1].endswith("softmax.tau=1.5 (3 seeds)")
    assert panel_title("softmax (3 seeds)") == "softmax (3 seeds)"


def test_curves_of_runs_tell_in_a_legend_that_fits_what_was_looked_for(write, tmp_path: Path) -> None:
    folders = [write(0, 12, "optim.lr=1e-3"), write(0, None, "optim.lr=2e-3", status="stopped", epochs=20)]
    folders += [write(0, None, "optim.lr=3e-3"), write(0, None, "optim.lr=4e-3", "callbacks.eureka.stop_after=3")]
    (unwatched := folders[2] / "summary.json").write_text(
        json.dumps(json.loads(unwatched.read_text()) | {"eureka": {"happened": None}})
    )
    folders.append(write(0, None, "+row=resnet9", experiment="main_task"))
    figure = drawn_curves(folders, gradients=False)
    labels = [text.get_text().replace("-\n", "-").replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert [label for label in labels if "optim.lr" in label] == [
        "reasoning: softmax, seed 0, optim.lr=1e-3: Eureka-moment at epoch 12",
        "reasoning: softmax, seed 0, optim.lr=2e-3: no Eureka-moment by epoch 20",
        "reasoning: softmax, seed 0, optim.lr=3e-3",
        "reasoning: softmax, seed 0, optim.lr=4e-3, callbacks.eureka.stop_after=3: no Eureka-moment",
    ]
    assert sum(label.startswith("main_task: resnet9, seed 0") for label in labels) == 1  # its row: it has no softmax
    seeds = [write(seed, 12, "optim.lr=1e-3", root=tmp_path / "seeds") for seed in (0, 1)]
    pair = ("softmax", "norm_softmax")
    others = [write(0, 12, "optim.lr=2e-3", root=tmp_path / "seeds", softmax=one) for one in pair]
    told = drawn_curves([*seeds, *others], gradients=False)
    legend = [text.get_text().replace("\n", "") for text in told.legends[0].get_texts()]
    # A run that no other shares its softmax with says what it was given of that, too.
    for name in ("softmax, seed 1, optim.lr=1e-3", "norm_softmax, seed 0, optim.lr=2e-3"):
        assert f"{name}: Eureka-moment at epoch 12" in legend
    twins = drawn_curves([write(0, 12), write(0, 12, root=tmp_path / "again")], gradients=False)
    paths = [text.get_text().replace("\n", "") for text in twins.legends[0].get_texts()[:2]]
    assert paths[0] != paths[1] and not any(str(tmp_path) in label for label in (*labels, *paths))
    figure.draw_without_rendering()
    box, room = figure.legends[0].get_window_extent(), figure.bbox
    assert room.x0 <= box.x0 and box.x1 <= room.x1


def test_titles_keep_what_tells_their_settings_apart() -> None:
    long = "callbacks.eureka.stop_after=200, optim.lr={}, optim.warmup_epochs=5, optim.weight_decay=0.5, softmax.tau={}"
    names = ["softmax", *(f"softmax, {long.format(rate, tau)}" for rate in (0.1, 0.2) for tau in (1, 2))]
    grid = [f"softmax, optim.lr={rate}, softmax.tau={tau}" for rate in (0.1, 0.2) for tau in (1, 2)]
    assert told_apart(names) == ["softmax", *grid]
    assert told_apart(grid) == grid, "nothing is left out of names that fit"


def test_runs_with_some_gradients_alone_are_not_drawn(write, tmp_path: Path) -> None:
    path = write(0, 12) / "metrics.csv"
    path.write_text(path.read_text().replace("gradient/k/layer_0", "gradient/x/layer_0"))
    own = settings(gather(tmp_path).runs)
    assert gradients(own) is None and gradient_shares(own) == ""


def test_a_run_of_one_validation_is_a_dot_and_has_no_median_gradient(write, tmp_path: Path) -> None:
    write(0, None, epochs=1)
    own = settings(gather(tmp_path).runs)
    figure = curves(own, "accuracy", aligned=False)
    assert figure is not None
    assert [line.get_xydata().tolist() for line in figure.axes[0].lines if len(line.get_xydata()) == 1] == [[[1, 50]]]
    assert gradients(own) is not None and gradient_shares(own) == ""


def test_an_experiment_of_long_foreign_letters_names_a_file(tmp_path: Path) -> None:
    (tmp_path / f"{file_name('実' * 79)}_accuracy.png").touch()


def test_curves_say_in_one_sentence_what_they_cannot_draw(write, tmp_path: Path, monkeypatch, capsys) -> None:
    folder, out = write(0, 12), tmp_path / "curves.png"
    monkeypatch.setattr("sys.argv", ["curves", str(folder), "--out", str(out)])
    curves_script.main()
    assert out.exists()
    monkeypatch.setattr("sys.argv", ["curves", str(tmp_path), "--out", str(out)])
    with pytest.raises(SystemExit, match="1"):
        curves_script.main()
    assert f"{tmp_path} holds no run: name one below it, such as {folder}" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["curves", str(folder), "--out", str(out)])
    (folder / "metrics.csv").write_text("step,epoch,val/accuracy\n1,0\n")
    with pytest.raises(SystemExit, match="1"):
        curves_script.main()
    assert "a line has 2 fields" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["curves", str(folder), str(folder), "--out", str(out), "--gradients"])
    with pytest.raises(SystemExit, match="2"):
        curves_script.main()
    assert "--gradients draws one run" in capsys.readouterr().err


def test_a_run_that_nobody_holds_is_not_running(write, tmp_path: Path) -> None:
    folder = write(0, None, status="running", epochs=5)
    assert gather(tmp_path).runs[0].status == "stopped"
    with FileLock(folder / ".lock"):
        assert gather(tmp_path).runs[0].status == "running"


def test_settings_differ_in_more_than_the_seed(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, 12, "optim.lr=1e-3")
    write(0, 12, "optim.lr=2e-3")
    write(0, 12, "optim.lr=1e-3", "callbacks=[reasoning,attention_entropy]")  # only looks: the same setting
    write(0, 12, "+row=norm_softmax", softmax="norm_softmax", experiment="main_task")
    write(0, 12, "data.seed=0")  # drawn alike on purpose, which is not the seed's own data
    write(1, 12, "data.seed=0")
    found = settings(gather(tmp_path).runs)
    seeds = {setting.name: [run.seed for run in setting.runs] for setting in found}
    assert seeds == {
        "softmax, data.seed=0": [0, 1],
        "softmax, optim.lr=1e-3": [0, 1, 2],
        "softmax, optim.lr=2e-3": [0],
        "norm_softmax": [0],
    }
    (twice,) = [setting for setting in found if setting.name == "softmax, optim.lr=1e-3"]
    assert len(twice.doubles) == 1


def test_which_run_of_a_seed_counts_does_not_hang_on_its_moment(write, tmp_path: Path) -> None:
    first = [write(seed, 12 if seed else None, root=tmp_path / "a", epochs=15 if seed else EPOCHS) for seed in range(2)]
    for seed in range(2):
        write(seed, None if seed else 12, root=tmp_path / "b", epochs=EPOCHS if seed else 15)
    (setting,) = settings(gather(tmp_path).runs)
    assert [run.folder for run in setting.runs] == first and len(setting.doubles) == 2


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("3/4 (30 to 95)", '<span class="value">3/4</span> <small>30 to 95</small>'),
        ("3/4 (any epoch), 2/4 (last epoch)", "3/4 (any epoch), 2/4 (last epoch)"),
        ("3/4", "3/4"),
    ],
)
def test_an_interval_stands_on_a_line_of_its_own(text: str, shown: str) -> None:
    assert str(_interval(text)) == shown


def test_an_experiment_that_is_no_name_is_an_unknown_one(write, tmp_path: Path) -> None:
    for seed in range(2):
        for more in ((), ("optim.lr=1e-2",)):
            path = write(seed, 12, *more) / "summary.json"
            name = ("null", "[a,b]")[seed]
            path.write_text(path.read_text().replace('"experiment": "reasoning"', f'"experiment": "{name}"'))
    assert [section.experiment for section in assemble([gather(tmp_path)]).sections] == ["[a,b]", "null"]


def test_a_seed_that_diverged_counts_as_one_without_a_moment(write, tmp_path: Path) -> None:
    for seed in range(10):
        write(seed, 20 if seed < 5 else None, softmax="norm_softmax")
        folder = write(seed, 20 if seed < 5 else None, **{} if seed < 5 else {"status": "failed", "epochs": 10})
        if seed >= 5:
            told = json.loads((folder / "summary.json").read_text()) | {"diverged": True}
            (folder / "summary.json").write_text(json.dumps(told))
    own = settings(gather(tmp_path).runs)
    outcomes = [outcome(one) for one in own]
    assert [str(one.ratio) for one in outcomes] == ["5/10 (24% to 76%)"] * 2
    assert [one.accuracy.seeds for one in outcomes if one.accuracy] == [5, 5]
    (against,) = compare(outcomes, own[0])
    assert (against.ratio, against.time) == (1.0, 1.0)


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


def test_the_most_advanced_run_of_a_seed_counts(write, tmp_path: Path) -> None:
    write(0, None, status="stopped", epochs=30, root=tmp_path / "a")
    done = write(0, 12, root=tmp_path / "b")
    (setting,) = settings(gather(tmp_path).runs)
    assert [run.folder for run in setting.runs] == [done] and len(setting.doubles) == 1
    assert outcome(setting).ratio.seeds == 1  # type: ignore[union-attr]


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
    (apart,) = compare([outcome(base, base), outcome(other, base)], base)
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


def test_the_baseline_is_the_experiment_as_it_comes(write, tmp_path: Path) -> None:
    """A ResNet and an intervention leave the softmax alone, too, and may have more seeds."""
    for seed in range(3):
        write(seed, 5, "model=resnet9", experiment="main_task")
        write(seed, None, "intervention=grad_scaling", experiment="main_task")
        write(seed, 9, experiment="main_task", softmax="norm_softmax")
    write(0, None, experiment="main_task")
    (section,) = assemble([gather(tmp_path)], draw=False).sections
    assert section.baseline is not None and section.baseline.name == "softmax"
    assert len(section.baseline.runs) == 1


def test_softmax_under_another_normaliser_is_no_baseline(write, tmp_path: Path) -> None:
    for seed in range(2):
        write(seed, 5, "softmax/normaliser=sigmoid")
        write(seed, 9, softmax="norm_softmax")
    (section,) = assemble([gather(tmp_path)], draw=False).sections
    assert section.baseline is None
    write(0, None)
    (section,) = assemble([gather(tmp_path)], draw=False).sections
    assert section.baseline is not None and section.baseline.name == "softmax"


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


def test_corpora_of_two_folders_are_two_settings() -> None:
    plain = {"data": {"corpus": {"folder": "/a"}, "root": "/data"}, "seed": 0}
    other = {"data": {"corpus": {"folder": "/b"}, "root": "/elsewhere"}, "seed": 0}
    typed = {"data.corpus.folder": "/a", "data.root": "/data"}
    assert what_is_run(plain, 0, typed) != what_is_run(other, 0, typed)
    assert what_is_run(plain, 0) == what_is_run(other, 0)  # of a default, where it lies says nothing


def test_images_of_two_folders_are_two_settings() -> None:
    typed = {"data.alphabets.root": "/a"}
    one, other = ({"data": {"alphabets": {"root": root}}, "seed": 0} for root in ("/a", "/b"))
    assert what_is_run(one, 0, typed) != what_is_run(other, 0, typed)


def test_the_seed_of_a_source_is_no_seed_of_the_run() -> None:
    plain = {"data": {"seed": 0, "source": {"digits": {"seed": 0}}}, "seed": 0}
    other = {"data": {"seed": 1, "source": {"digits": {"seed": 0}}}, "seed": 1}
    assert what_is_run(plain, 0) == what_is_run(other, 1) == {"data.source.digits.seed": 0}


def test_one_number_in_two_notations_is_one_setting(write, tmp_path: Path) -> None:
    for seed, value in enumerate((5, 5.0)):
        path = write(seed, 12, "optim.weight_decay=5") / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config["optim"]["weight_decay"] = value
        path.write_text(yaml.safe_dump(config))
    (setting,) = settings(gather(tmp_path).runs)
    assert len(setting.runs) == 2


def test_folders_that_lie_in_each_other_count_once(write, tmp_path: Path) -> None:
    write(0, 12)
    found = assemble([gather(tmp_path), gather(tmp_path / "reasoning")], draw=False)
    assert len(found.runs) == 1 and not found.settings[0].doubles


def test_one_folder_may_be_given_as_it_is(write, tmp_path: Path) -> None:
    left, out = write(0, 12), write(1, 12)
    found, _ = report(str(tmp_path), without=str(out))
    assert [run.folder for run in found.runs] == [left]


def test_a_report_that_is_broken_off_is_written_anew(write, tmp_path: Path, monkeypatch) -> None:
    write(0, 12)
    with monkeypatch.context() as patched:
        patched.setattr(writing, "page_values", interrupted)
        with pytest.raises(KeyboardInterrupt):
            report([tmp_path], pictures_mib=0)
    _, out = report([tmp_path], pictures_mib=0)
    assert "reasoning_survival" in (out / "index.html").read_text()
    assert (out / "figures" / "reasoning_survival.png").exists()


def test_what_a_report_no_longer_has_is_removed_and_nothing_else(write, tmp_path: Path) -> None:
    write(0, 12)
    write(0, 12, experiment="main_task")
    _, out = report([tmp_path], pictures_mib=0)
    theirs = out / "figures" / "my_notes.png"
    theirs.write_bytes(b"mine")
    old = out / "figures" / "main_task_survival.png"
    assert old.exists()
    shutil.rmtree(tmp_path / "main_task")
    report([tmp_path], pictures_mib=0)
    assert not old.exists() and theirs.read_bytes() == b"mine"
    assert (out / "figures" / "reasoning_survival.png").exists()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_survival_curves_that_coincide_are_all_seen(write, tmp_path: Path) -> None:
    for softmax in ("softmax", "norm_softmax"):
        write(0, None, softmax=softmax)
    figure = survival(settings(gather(tmp_path).runs))
    assert figure is not None
    below, above = (line for line in figure.axes[0].lines if line.get_drawstyle() == "steps-post")
    assert np.array_equal(below.get_xydata(), above.get_xydata())
    assert below.get_linewidth() > above.get_linewidth() + 1


def test_the_survival_bands_are_of_the_confidence_asked_for(write, tmp_path: Path) -> None:
    for seed in range(5):
        write(seed, 10 + seed if seed else None)
    found = settings(gather(tmp_path).runs)

    def width(confidence: float) -> float:
        figure = survival(found, confidence)
        assert figure is not None
        band, *_ = figure.axes[0].collections
        corners = band.get_paths()[0].vertices
        return float(np.ptp(corners[:, 1]))

    assert width(0.5) < width(0.95)


def test_rates_are_written_with_the_digits_they_have() -> None:
    assert [_rate((value, None)) for value in (1.5e-3, 2e-3, 2.4e-3, 1.0)] == ["1.5e-3", "2e-3", "2.4e-3", "1e0"]
    assert _rate((1e-3, 1e-6)) == "1e-3 to 1e-6"


def figure_8_beside(folder: Path) -> dict:
    """Rows of Figure 8 by label, beside the runs below a folder."""
    return {row.row.label: row for row in set_beside(load("eureka/figure_8"), settings(gather(folder).runs))}


def test_rows_of_a_table_find_their_runs(write, tmp_path: Path) -> None:
    for seed in range(5):
        write(seed, None if seed else 12, "optim.lr=2e-3", watched=10_000)
        write(seed, 12, softmax="norm_softmax")
    write(0, 12, "optim.lr=1e-3", softmax="norm_softmax")
    rows = figure_8_beside(tmp_path)
    plain, heated, ours = rows["Softmax"], rows["Softmax + HT"], rows["NormSoftmax"]
    assert plain.cells["eureka_ratio"].text.startswith("1/5") and plain.cells["eureka_ratio"].inside
    assert plain.differences == {} and not plain.cells["eureka_ratio"].unlike  # the learning rate is free
    assert heated.settings == () and heated.cells["eureka_ratio"].text == ""
    assert ours.cells["eureka_ratio"].text.startswith("5/5") and len(ours.others) == 1
    # Fisher 1/5 against 3/5 is 0.52, doubled for two ratios and at most 1.
    assert plain.cells["eureka_ratio"].p == 1.0


def test_what_is_not_comparable_has_no_verdict(write, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(against, "planned", cache(planned))
    for seed in range(3):
        write(seed, 12)
    (whole,) = settings(gather(tmp_path).runs)
    fewer = replace(whole, name="fewer", runs=whole.runs[:1])

    def beside(*found: Setting) -> MatchedRow:
        return set_beside(load("eureka/figure_8"), found)[0]

    for key, value, told in (
        ("trainer.max_epochs", 300, "300 of 10,000 epochs"),
        ("trainer.max_epochs", 20_000, "20,000 epochs instead of 10,000"),
        ("model.layer_norm", False, "model.layer_norm is False instead of True"),
        ("data.train_share", 0.5, "data.train_share is 0.5 instead of 0.3"),
        ("optim.weight_decay", 0, "optim.weight_decay is 0 instead of 1.0"),
        ("callbacks.eureka.threshold", 0.8, "callbacks.eureka.threshold is 0.8 instead of 0.7"),
    ):
        other = replace(whole, config={**whole.config, key: value})
        row = beside(other)
        cell = row.cells["eureka_ratio"]
        assert (cell.text[:3], cell.inside, cell.p, cell.unlike) == ("3/3", None, None, told)
        assert list(row.differences) == [key]
        # One that is comparable takes its place, though it has fewer seeds.
        assert beside(other, fewer).settings == (fewer,)
    # How it is run is no difference that counts, nor an option that is younger than the run.
    config = {**whole.config, "compile": True, "trainer.precision": "bf16-mixed"}
    del config["model.layer_norm"]
    cell = beside(replace(whole, config=config)).cells["eureka_ratio"]
    assert cell.text.startswith("3/3") and cell.inside and not cell.unlike


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


def changed_at(folder: Path, epoch: int | None) -> None:
    """Notes in a run's summary that it was watched for a change point, and where that is."""
    summary = json.loads((folder / "summary.json").read_text())
    change = {"epoch": epoch, "step": 10 * epoch, "before": 0.5, "after": 0.9, "strength": 1.0} if epoch else None
    summary["eureka"] |= {"changed": epoch is not None, "change": change}
    (folder / "summary.json").write_text(json.dumps(summary))


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


def test_a_chart_says_nothing_of_an_interval_before_the_first_moment(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, None)
        write(seed, 12 + seed, softmax="norm_softmax")
    found = settings(gather(tmp_path).runs)
    chart = survival_chart(found, 0.95, "Eureka-moment", line_styles_of(found))
    assert chart is not None
    never, soon = (
        {name: unpacked(group["middle"][name]) for name in ("y", "low", "high")} for group in chart["groups"]
    )
    assert never["y"].tolist() == [1, 1] and np.isnan(never["low"]).all() and np.isnan(never["high"]).all()
    assert soon["y"] == pytest.approx([1, 2 / 3, 1 / 3, 0, 0], abs=1e-3)
    assert np.isnan(soon["low"]).tolist() == [True, False, False, False, False]


def unpacked(values: dict) -> np.ndarray:
    """Numbers of a chart, as its page reads them."""
    numbers = np.frombuffer(base64.b64decode(values["data"]), "<u2").astype(float)
    return np.where(numbers == 65535, np.nan, values["low"] + (values["high"] - values["low"]) * numbers / 65534)


def test_the_plateau_is_drawn_in_curves_of_the_accuracy_that_it_is_of() -> None:
    def drawn(*priors: float | None, metric: str = "val/accuracy") -> list[tuple[float, str, str]]:
        told = [Eureka(metric=metric, threshold=0.7, prior_accuracy=prior, prior_loss=1.2) for prior in priors]
        runs: Any = [SimpleNamespace(summary=SimpleNamespace(eureka=one)) for one in told]
        return [guide for guide in guides(runs, "accuracy") if guide[1] == "--"]

    assert drawn(0.55, 0.55, None) == [(0.55, "--", "plateau: the prior p(z) alone")]
    assert drawn(0.55, 0.65) == [(pytest.approx(0.6), "--", "plateau: the prior p(z) alone, mean over seeds")]
    assert not drawn(None) and not drawn(0.55, metric="val/accuracy_top_right")


def test_curves_of_runs_of_one_task_have_its_plateau(write, tmp_path: Path) -> None:
    folders = [write(0, 12, softmax="norm_softmax"), write(1, 12), write(1, 12, "data.numbers=5")]
    for folder, prior in zip(folders, (0.55, 0.65, 0.3), strict=True):
        told = json.loads((folder / "summary.json").read_text())
        told["eureka"]["prior_accuracy"] = prior
        (folder / "summary.json").write_text(json.dumps(told))

    def plateaus(folders: list[Path]) -> list[str]:
        legend = drawn_curves(folders, gradients=False).legends[0].get_texts()
        return [label for text in legend if (label := text.get_text()).startswith("plateau")]

    assert plateaus(folders[:1]) == ["plateau: the prior p(z) alone (55.0%)"]
    assert plateaus(folders[:2]) == ["plateau: the prior p(z) alone, mean over seeds (60.0%)"]
    assert plateaus(folders) == []


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


def test_the_accuracy_of_runs_that_stop_after_their_moment_is_not_the_papers(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, 12, "+row=vit", "callbacks.eureka.stop_after=5", experiment="same_color")
    found = set_beside(load("eureka/table_8"), settings(gather(tmp_path).runs))
    (row,) = [row for row in found if row.settings]
    assert row.cells["accuracy"].unlike == "stopped 5 epochs after the moment"
    assert not row.cells["eureka_ratio"].unlike and row.cells["eureka_ratio"].inside is not None


def test_the_accuracy_of_runs_that_ended_early_is_not_the_papers(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, 12, "+row=vit", experiment="same_color", epochs=EPOCHS - seed)
    (row,) = [r for r in set_beside(load("eureka/table_8"), settings(gather(tmp_path).runs)) if r.settings]
    assert row.cells["accuracy"].unlike == f"a run ended early, at epoch {EPOCHS - 2}"
    assert row.cells["accuracy"].inside is None and row.cells["eureka_ratio"].inside is not None


def test_a_caption_says_in_numbers_what_its_runs_have_logged(write, tmp_path: Path) -> None:
    write(0, 12)
    swapped = write(0, None, softmax="norm_softmax") / "metrics.csv"  # W_K above W_V
    swapped.write_text(swapped.read_text().replace(",1e-3,2e-3,3e-2,", ",6e-2,2e-3,3e-2,"))
    (section,) = assemble([gather(tmp_path)]).sections
    drawn = {drawing.name: drawing for drawing in section.drawings}
    gradients = drawn["reasoning_gradients"]
    assert gradients.says.endswith("of W_V's: softmax W_Q 0.067, W_K 0.033; norm_softmax W_Q 0.067, W_K 2.")
    assert "much less" not in gradients.reading
    _, out = report([tmp_path], pictures_mib=0)
    for page in ("index.html", "report.md"):
        assert "W_Q 0.067" in (out / page).read_text()


def test_another_task_or_softmax_is_no_row(write, tmp_path: Path) -> None:
    write(0, 12, "+row=vit", experiment="main_task")
    write(0, 12, "+row=vit", "data/task=same_color", "trainer.max_epochs=40", experiment="main_task")
    write(0, 12, "+row=vit", "softmax.tau=0.5", "trainer.max_epochs=3000", experiment="main_task")
    found = settings(gather(tmp_path).runs)
    (plain, *others) = set_beside(load("eureka/table_8"), found)
    assert [setting.config["data.task._target_"] for setting in plain.settings] == [
        "lab.datasets.tasks.same_color.SameColor"
    ]
    assert not plain.others and not any(row.settings for row in others)
    with pytest.raises(LabError, match="no run has the settings of a row of eureka/section_5_3"):
        set_beside(load("eureka/section_5_3"), [setting for setting in found if "tau" in setting.name])


def test_a_table_over_all_schedules_pools_them(write, tmp_path: Path) -> None:
    main = {"experiment": "main_task", "softmax": "softmax"}
    for seed in range(4):
        write(seed, 12, "+row=vit", "optim/lr=max_1e-3_min_1e-5", **main)
        write(seed, None, "+row=vit", "optim/lr=max_1e-4_min_1e-6", watched=300, **main)
    found = settings(gather(tmp_path).runs)
    assert len(found) == 2
    table = load("eureka/table_2")
    (plain, *_) = set_beside(replace(table, pool=2), found)
    cell = plain.cells["eureka_ratio"]
    assert cell.text.startswith("4/8") and cell.inside is False and not cell.unlike
    (plain, *_) = set_beside(table, found)
    cell = plain.cells["eureka_ratio"]
    assert (cell.text[:3], cell.inside, cell.p, cell.unlike) == ("4/8", None, None, "2 of 9 pooled settings")
    grid, rates = rate_grid(found)
    assert grid == {"vit": {(1e-3, 1e-5): (4, 4), (1e-4, 1e-6): (0, 4)}} and rates == [(1e-3, 1e-5), (1e-4, 1e-6)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "nowhere is no folder"),
        (["{runs}", "--against", "eureka/table_99"], "no published table is called 'eureka/table_99'"),
        (["{runs}", "--against", "eureka/table_11"], "no rows that the lab can run"),
        (["{runs}", "--against", "eureka/table_1"], "there are runs of: reasoning"),
        (["{runs}", "--confidence", "95"], "--confidence must be"),
        (["{runs}", "--pictures", "-1"], "--pictures must be"),
        (["{runs}", "--baseline", "sotfmax"], "no setting is called 'sotfmax'"),
        (["{runs}", "--out", "{runs}/reasoning"], "holds something other than a report"),
        (["{empty}"], "no runs below"),
        (["{empty}/of"], "empty/of/a_run has lost its summary.json"),
    ],
)
def test_bad_input_is_one_sentence(write, tmp_path: Path, arguments, told: str, monkeypatch, capsys) -> None:
    write(0, 12)
    (tmp_path / "empty" / "of" / "a_run").mkdir(parents=True)
    (tmp_path / "empty" / "of" / "a_run" / "provenance.json").touch()
    filled = [a.format(runs=tmp_path, empty=tmp_path / "empty") for a in arguments]
    monkeypatch.setattr(sys, "argv", ["lab.report", *filled])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err.strip()
    assert ended.value.code == 1 and told in said and len(said.splitlines()) == 1
    assert not (tmp_path / "report").exists()


@pytest.mark.pictures
def test_the_files_trace_every_number_and_come_out_the_same_again(write, tmp_path: Path) -> None:
    folders = [write(seed, 12 if seed else None, watched=10_000) for seed in range(3)]
    found, out = report([tmp_path], "eureka/figure_8", pictures_mib=1)
    assert out == tmp_path / "report-eureka-figure_8"
    runs = list(csv.DictReader((out / "runs.csv").open()))
    assert [(out / row["folder"]).resolve() for row in runs] == folders
    assert [row["moment_epoch"] for row in runs] == ["", "12", "12"]
    (ratio, *_) = csv.DictReader((out / "against.csv").open())
    assert ratio["paper"] == "3/5" and ratio["measured"].startswith("2/3")
    assert [(out / folder).resolve() for folder in ratio["folders"].split("; ")] == folders
    (setting,) = csv.DictReader((out / "settings.csv").open())
    assert setting["Eureka-ratio"].startswith("2/3 (21% to 94%; exact 9% to 99%)")
    names = {path.stem for path in (out / "figures").iterdir()}
    assert {"reasoning_accuracy_by_epoch", "reasoning_loss_by_moment", "reasoning_survival"} < names
    assert {path.suffix for path in (out / "figures").iterdir()} == {".png", ".pdf"}
    before = {path: path.read_bytes() for path in (out / "figures").iterdir()}
    again, _ = report([tmp_path], "eureka/figure_8", pictures_mib=1)  # over its own folder
    assert {path: path.read_bytes() for path in (out / "figures").iterdir()} == before
    assert len(again.runs) == len(found.runs) == 3  # a report is no run
    (out / "index.html").unlink()  # as in a repository that keeps the rest
    report([tmp_path], "eureka/figure_8", pictures_mib=1)
    assert (out / "index.html").exists()


def test_two_configs_of_ones_own_are_two_settings_though_only_their_folders_differ() -> None:
    one, other = ({"data": {"corpus": {"folder": folder}}, "seed": 0} for folder in ("/a", "/b"))
    assert what_is_run(one, 0, {"data/corpus": "news"}) != what_is_run(other, 0, {"data/corpus": "poems"})
    # One of the lab's, typed or not, is the same.
    assert what_is_run(one, 0, {"data/corpus": "folder"}) == what_is_run(one, 0)


def test_an_option_of_a_rule_called_root_is_part_of_the_setting() -> None:
    one, other = ({"softmax": {"root": root}, "seed": 0} for root in (2.0, 3.0))
    assert what_is_run(one, 0) != what_is_run(other, 0)


def test_a_wider_interval_is_asked_for_by_its_confidence(write, tmp_path: Path) -> None:
    for seed in range(10):
        moment = 8 + seed if seed < 6 else None
        accuracy = 0.8 + 0.02 * seed if moment else 0.5 + 0.01 * seed
        changed_at(write(seed, moment, accuracy=accuracy), moment)
        write(seed, 12 if seed < 8 else None, softmax="norm_softmax", accuracy=0.7 + 0.01 * seed**1.5)
    one, other = settings(gather(tmp_path).runs)
    base = baseline_of([one, other])
    assert base is not None
    inner, outer = (compare([outcome(one), outcome(other)], base, level)[0].watched for level in (0.5, 0.95))
    assert inner is not None and outer is not None
    assert outer[1] < inner[1] < inner[2] < outer[2]
    narrow, wide = outcome(one, confidence=0.5), outcome(one, confidence=0.95)
    for name in ("ratio", "exact", "accuracy", "plateau", "eureka_epoch", "median", "change_ratio", "change_median"):
        within, around = getattr(narrow, name), getattr(wide, name)
        assert around.low <= within.low and within.high <= around.high, name
        assert (around.low, around.high) != (within.low, within.high), name


def test_a_class_of_ones_own_called_softmax_is_not_plain_softmax() -> None:
    def setting(target: str) -> Setting:
        return Setting("softmax", "reasoning", "softmax", {"softmax._target_": target}, ())

    assert setting("lab.attention.rules.fixed.Fixed").plain and not setting("my_rules.softmax").plain

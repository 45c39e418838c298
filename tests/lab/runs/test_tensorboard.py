"""What TensorBoard's own code reads back: the layout, the rows of the HParams tab, the names of runs."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import summary_of
from omegaconf import OmegaConf
from tensorboard import plugin_util
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

from lab.runs.metrics import read_metrics
from lab.runs.spec import RunSpec
from lab.runs.tensorboard import TensorBoard, hyperparameters, layout
from lab.train import run as train_with

SMALL = (
    "experiment=reasoning",
    "data.numbers=4",
    "trainer.max_epochs=30",
    "diagnostics.every_n_epochs=10",
    "callbacks=[reasoning,attention_entropy]",
    "checkpoints.every_n_steps=10",
    "optim.lr=1e-2",
    "threads=1",
)


def patterns(chart: dict) -> list[str]:
    """Tags of a chart; margins have no width, for they are there to keep TensorBoard from smoothing the line."""
    if "multiline" in chart:
        return chart["multiline"]["tag"]
    for series in chart["margin"]["series"]:
        assert series["value"] == series["lower"] == series["upper"]
    return [series["value"] for series in chart["margin"]["series"]]


def by_title(found: dict) -> dict[str, dict[str, list[str]]]:
    """Category -> title -> patterns."""
    return {
        category["title"]: {chart["title"]: patterns(chart) for chart in category["chart"]}
        for category in found["category"]
    }


class Seen:
    """A folder as TensorBoard sees it."""

    def __init__(self, folder: Path) -> None:
        multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
        self.context = TBContext(
            logdir=str(folder),
            multiplexer=multiplexer,
            data_provider=MultiplexerDataProvider(multiplexer, str(folder)),
            plugin_name_to_instance={},
        )
        self.scalars = self.context.data_provider.read_scalars(
            RequestContext(), experiment_id="", plugin_name="scalars", downsample=1000
        )
        self.tags = {run: set(tags) for run, tags in self.scalars.items()}

    def charts(self) -> dict[str, dict[str, list[str]]]:
        """Category -> title -> patterns, all runs' layouts merged."""
        return by_title(json.loads(CustomScalarsPlugin(self.context).layout_impl(RequestContext(), "")))

    def rows(self) -> dict[str, dict[str, object]]:
        """Run -> hyperparameters and measurements, as the HParams tab lists them; status among them."""
        asked = api_pb2.ListSessionGroupsRequest(
            allowed_statuses=[api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_SUCCESS, api_pb2.STATUS_RUNNING], slice_size=100
        )
        handler = list_session_groups.Handler(RequestContext(), backend_context.Context(self.context), "", asked)
        rows: dict[str, dict[str, object]] = {}
        for group in handler.run().session_groups:
            (session,) = group.sessions
            rows[session.name] = {name: getattr(v, v.WhichOneof("kind")) for name, v in group.hparams.items()}
            rows[session.name] |= {metric.name.tag: metric.value for metric in session.metric_values}
            rows[session.name]["status"] = api_pb2.Status.Name(session.status)
        return rows


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two seeds trained together, under a threshold that the first validation passes, and a single run above it."""
    folder = tmp_path_factory.mktemp("tensorboard") / "runs"
    common = (*SMALL, f"paths.runs={folder}", "callbacks.eureka.threshold=0.01")
    train_with([*common, "softmax=learnable_temperature", "seeds=2"])
    train_with([*SMALL, f"paths.runs={folder}", "callbacks.eureka.threshold=0.999", "seed=3"])
    return folder


def test_runs_are_named_by_what_was_run(runs: Path) -> None:
    folders = {str(path.parent.relative_to(runs)) for path in runs.rglob("summary.json")}
    assert set(Seen(runs).tags) == folders and len(folders) == 3
    assert not list(runs.rglob("hparams.yaml"))


def test_the_layout_names_what_is_logged(runs: Path) -> None:
    seen = Seen(runs)
    charts = seen.charts()
    assert list(charts)[:3] == ["Eureka-moment", "accuracy", "loss"]
    assert {"temperature", "attention entropy", "speed"} <= set(charts)
    every = set.union(*seen.tags.values())
    for title, patterns in (item for category in charts.values() for item in category.items()):
        for pattern in patterns:
            assert any(re.match(pattern, tag) for tag in every), (title, pattern)

    def matched(category: str, title: str) -> set[str]:
        return {tag for tag in every for pattern in charts[category][title] if re.match(pattern, tag)}

    title, tags = next(iter(charts["Eureka-moment"].items()))
    assert title == "validation accuracy, threshold, plateau, chance, moment (1 once it happened)"
    assert tags == ["val/accuracy", *(f"eureka/{one}" for one in ("threshold", "prior_accuracy", "chance", "happened"))]
    # A margin chart takes the lines of a series for as long as each other.
    run = next(iter(seen.scalars.values()))
    steps = [[point.step for point in run[tag]] for tag in tags]
    assert all(own == steps[0] for own in steps) and len(steps[0]) == 3
    gradients = {f"gradient/{name}/layer_0" for name in "qkv"}
    assert matched("gradients", "mean |gradient| of W_Q, W_K and W_V, layer 0") == gradients
    assert matched("attention entropy", "share") == {"attention_entropy/share/layer_0"}
    # Each scalar but the moment's epoch, which is a column of the HParams tab, is in some chart.
    shown = {tag for category in charts for title in charts[category] for tag in matched(category, title)}
    assert every - shown == {"eureka/epoch"}


def test_scalars_keep_their_names_and_the_epoch_is_no_chart(runs: Path) -> None:
    for run, tags in Seen(runs).tags.items():
        logged = {name for row in read_metrics(runs / run / "metrics.csv") for name in row}
        eureka = {f"eureka/{line}" for line in ("threshold", "chance", "prior_accuracy", "happened", "epoch")}
        extra = {"accuracy/best", *eureka}
        assert logged - {"step", "epoch"} == tags - extra
        assert ("eureka/epoch" in tags) == summary_of(runs / run)["eureka"]["happened"]


def test_the_lines_beside_accuracy(runs: Path) -> None:
    seen = Seen(runs)
    for run in seen.tags:
        moment = summary_of(runs / run)["eureka"]["happened"]
        points = {tag: seen.scalars[run][tag] for tag in seen.tags[run] if tag.startswith(("eureka", "val/"))}
        assert {point.value for point in points["eureka/happened"]} == {float(moment)}
        assert points["eureka/threshold"][0].value == pytest.approx(0.01 if moment else 0.999)
        assert points["eureka/chance"][0].value == pytest.approx(1 / 4)
        steps = [[point.step for point in points[tag]] for tag in ("val/accuracy", "eureka/happened")]
        assert steps[0] == steps[1] == [9, 19, 29]


def test_every_run_is_a_row_of_the_hparams_tab(runs: Path) -> None:
    rows = Seen(runs).rows()
    assert len(rows) == 3
    for run, row in rows.items():
        summary = summary_of(runs / run)
        assert {name: row[name] for name in ("experiment", "softmax", "seed")} == {
            name: summary[name] for name in ("experiment", "softmax", "seed")
        }
        assert (row["optim.lr"], row["data.numbers"], row["trainer.max_epochs"]) == (0.01, 4, 30)
        assert "data.numbers=4" in str(row["overrides"]) and "seed" not in str(row["overrides"])
        assert row["val/accuracy"] == pytest.approx(summary["metrics"]["val/accuracy"])
        assert row["accuracy/best"] == pytest.approx(summary["best"]["accuracy"])
        assert row.get("eureka/epoch") == summary["eureka"].get("epoch")
        assert row["status"] == "STATUS_SUCCESS"


def test_a_resumed_run_is_one_row_and_one_layout(tmp_path: Path) -> None:
    command = [*SMALL, f"paths.runs={tmp_path}"]
    train_with(command)
    (run,) = [path.parent for path in tmp_path.rglob("summary.json")]
    before = Seen(tmp_path)
    (run / "checkpoints" / "last-000000030.ckpt").unlink()
    (run / "summary.json").write_text(json.dumps({**summary_of(run), "status": "stopped"}))
    train_with(command)
    assert summary_of(run)["status"] == "finished" and len(list(run.glob("events.*"))) == 2
    after = Seen(tmp_path)
    assert after.tags == before.tags and after.charts() == before.charts()
    (row,) = after.rows().values()
    assert row == next(iter(before.rows().values()))
    name = next(iter(after.tags))
    for tag in ("val/accuracy", "gradient/q/layer_0", "accuracy/best"):
        steps = [[point.step for point in seen.scalars[name][tag]] for seen in (before, after)]
        assert steps[0] == steps[1], tag


def test_a_run_that_goes_on_under_an_earlier_clock_keeps_its_order(tmp_path: Path, monkeypatch) -> None:
    for step, clock in enumerate([3e9, 1e9, 2e9, 2e9]):
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        board = TensorBoard(str(tmp_path / "run"), purge_step=step)
        # The step after is of a checkpoint that was never written.
        for logged in (step, step + 1):
            board.log_metrics({"loss": step}, logged)
        board.finalize("failed")
    assert [(point.step, point.value) for point in Seen(tmp_path).scalars["run"]["loss"]] == [
        (0, 0), (1, 1), (2, 2), (3, 3), (4, 3),
    ]  # fmt: skip


def test_a_resumed_run_keeps_the_pictures_of_its_checkpoint(tmp_path: Path) -> None:
    command = [*SMALL, f"paths.runs={tmp_path}", "callbacks=[default,attention_entropy,attention_scores]"]
    command += ["diagnostics.every_n_epochs=10", "diagnostics.pictures_every_n_epochs=10", "checkpoints.keep=9"]
    command += ["checkpoints.every_n_steps=10"]
    train_with(command)
    (run,) = [path.parent for path in tmp_path.rglob("summary.json")]
    before = shown(run)
    assert {len(steps) for tag, steps in before.items() if tag.endswith("layers")} == {4}
    (run / "checkpoints" / "last-000000030.ckpt").unlink()
    (run / "summary.json").write_text(json.dumps({**summary_of(run), "status": "stopped"}))
    train_with(command)
    assert shown(run) == before
    # They are the files of the run folder.
    for tag, images in seen_in(run).items():
        *_, newest = sorted((run / "pictures").glob(f"{tag}*.png"))
        assert images[-1].encoded_image_string == newest.read_bytes()
        assert images[-1].width > images[-1].height > 10


def shown(run: Path) -> dict[str, list[int]]:
    """Tag of a picture or histogram -> its steps."""
    events = EventAccumulator(str(run), size_guidance={"histograms": 0, "tensors": 0}).Reload()
    steps = {tag: [one.step for one in images] for tag, images in seen_in(run).items()}
    return steps | {tag: [one.step for one in events.Histograms(tag)] for tag in events.Tags()["histograms"]}


def seen_in(run: Path) -> dict[str, list[Any]]:
    """Tag of a picture -> what TensorBoard has of it, look by look."""
    events = EventAccumulator(str(run), size_guidance={"images": 0}).Reload()
    return {tag: events.Images(tag) for tag in events.Tags()["images"]}


def test_a_run_that_fails_is_not_called_a_success(tmp_path: Path) -> None:
    board = TensorBoard(str(tmp_path / "run"))
    board.log_hyperparams({"experiment": "a", "force": True, "seed": 1, "softmax.tau": None, "overrides": ""})
    board.log_metrics({"val/accuracy": 0.5, "epoch": 0}, 1)
    board.finalize("failed")
    row = Seen(tmp_path).rows()["run"]
    assert row == {
        "experiment": "a",
        "force": True,
        "seed": 1,
        "overrides": "",
        "val/accuracy": 0.5,
        "status": row["status"],
    }
    assert row["status"] != "STATUS_SUCCESS"


def test_typed_values_are_columns_of_their_own() -> None:
    config = OmegaConf.create(
        {
            "optim": {"lr": 0.001},
            "softmax": {"tau": None},
            "data": {"numbers": 4},
            "compile": True,
            "seed": 0,
            "paths": {"runs": "/x", "data": "/y"},
        }
    )
    overrides = [
        "+row=vit", "data.numbers=4", "optim/lr=max", "compile=true", "paths.runs=/x", "seed=0", "~data.gone",
    ]  # fmt: skip
    told = hyperparameters(RunSpec.of(config, overrides, {"softmax": "softmax"}))
    assert {key: told[key] for key in ("row", "data.numbers", "optim/lr", "compile", "optim.lr", "softmax.tau")} == {
        "row": "vit", "data.numbers": 4, "optim/lr": "max", "compile": True, "optim.lr": 0.001, "softmax.tau": None,
    }  # fmt: skip
    assert "paths.runs" not in told and "paths.runs" not in told["overrides"]


def test_event_files_lie_in_the_run_folder_whatever_its_name(tmp_path: Path) -> None:
    """Lightning's logger would write to another folder, that of the variable's value."""
    folder = tmp_path / "$HOME"
    folder.mkdir()
    board = TensorBoard(str(folder))
    board.log_metrics({"val/accuracy": 0.5}, step=0)
    board.finalize("success")
    assert list(folder.glob("events.*")) and Path(board.log_dir) == folder


def test_charts_of_layers_heads_and_own_diagnostics() -> None:
    tags = ["gradient/q/layer_10", "gradient/v/layer_2", "temperature/factor/layer_0/head_3", "temperature/tau/layer_0"]
    tags += ["temperature/factor/layer_0/mean", "temperature/factor/layer_0/spread", "attention_mass/target/layer_1"]
    charts = charts_of(*tags, "sharpest/largest", "samples_per_second")
    assert list(charts) == ["gradients", "temperature", "attention mass", "speed", "sharpest"]
    assert [title.rsplit(" ", 1)[1] for title in charts["gradients"]] == ["2", "10"]
    assert list(charts["temperature"]) == ["factor", "tau", "factor, spread over heads", "factor, every head"]
    assert charts["sharpest"] == {"largest": ["sharpest/largest$"]}
    # A chart names the lines that are there, and the threshold of a loss does not lie on the scale of accuracies.
    assert charts_of("val/accuracy")["Eureka-moment"] == {"validation accuracy": ["val/accuracy"]}
    falling = {"validation loss, threshold": ["val/loss", "eureka/loss_threshold"]}
    assert charts_of("val/loss", "eureka/loss_threshold")["Eureka-moment"] == falling
    # As in context, where the accuracy of all labels is not the one that is watched.
    watched = ("val/accuracy", "val/accuracy_closed", "eureka/threshold_of/val/accuracy_closed", "eureka/happened")
    assert next(iter(charts_of(*watched)["Eureka-moment"].items())) == (
        "val/accuracy_closed, threshold, moment (1 once it happened)",
        [*watched[1:]],
    )


def charts_of(*tags: str) -> dict[str, dict[str, list[str]]]:
    """Category -> title -> patterns, of the layout of these scalars."""
    return by_title(json.loads(plugin_util.proto_to_json(layout(tags))))


def test_layers_share_one_chart() -> None:
    found = layout(f"temperature/tau/layer_{layer}" for layer in range(7))
    assert [chart.title for category in found.category for chart in category.chart] == ["tau"]

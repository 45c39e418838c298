"""TensorBoard as this lab needs it: a page of the charts that matter, a filled HParams tab, plain names of runs."""

from __future__ import annotations

import io
import re
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import OmegaConf
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from torch import Tensor

from lab.config.overrides import read_override
from lab.runs.boards import THRESHOLD_OF, Board
from lab.runs.spec import RunSpec

# Columns of the HParams tab besides what was typed; the five shown at first; the measured ones with their titles.
_ALWAYS = ("optim.lr", "optim.weight_decay", "softmax.tau", "trainer.max_epochs")
_SHOWN = ("experiment", "softmax", "seed", "overrides", "optim.lr")
_MEASURED = {"val/accuracy": "accuracy at the end", "eureka/epoch": "Eureka epoch", "accuracy/best": "best accuracy"}
# Groups whose charts of layers come before those of all other groups.
_FIRST = ("temperature", "temperature_in_use", "attention_entropy")
# Ending of a layer's tag -> title of the chart that shows it, and pattern of the tags in that chart.
_PARTS = {
    "": ("{}", "(/mean)?"),
    "/spread": ("{}, spread over heads", "/spread"),
    "/head": ("{}, every head", r"/head_\d+"),
}
# Beginning of the name of a file that TensorBoard's writer makes; the seconds since 1970 follow, and a dot.
_EVENTS = "events.out.tfevents."
_HAPPENED = "moment (1 once it happened)"
# Two charts that show a moment: scalars, and their names in the title. A chart needs at least its first scalar.
_MOMENT = (
    {
        "val/accuracy": "validation accuracy", "eureka/threshold": "threshold", "eureka/prior_accuracy": "plateau",
        "eureka/chance": "chance", "eureka/happened": _HAPPENED,
    },
    {"val/loss": "validation loss", "eureka/loss_threshold": "threshold", "eureka/prior_loss": "plateau"},
)  # fmt: skip


class TensorBoard(TensorBoardLogger, Board):
    """Lightning's TensorBoard logger, with charts of what is really logged in the tab "Custom Scalars".

    Event files lie in the run folder itself, because TensorBoard names a run by its folder.

    Args:
        folder: the run folder.
        purge_step: what was logged from this step on is dropped; the optimiser steps of the checkpoint that training
            goes on from, or 0 for a new run.
    """

    def __init__(self, folder: str, purge_step: int = 0) -> None:
        _read_first(Path(folder))
        # A new run passes 0, not None, to log its start: TensorBoard drops nothing at the first start that it reads.
        super().__init__(folder, name="", version="", default_hp_metric=False, purge_step=purge_step)
        self._tags: set[str] = set()

    @property
    def log_dir(self) -> str:
        """The run folder as it is: Lightning's replaces ``$HOME`` in the name of a folder."""
        return str(self.root_dir)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        # Without the epoch: its chart against the step would come first of all, and says nothing.
        shown = {name: value for name, value in metrics.items() if name != "epoch"}
        super().log_metrics(shown, step)
        if not shown.keys() <= self._tags:
            self._tags |= shown.keys()
            # TensorBoard uses the newest layout.
            self._show(layout(self._tags))

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, metrics: dict[str, Any] | None = None, step: int | None = None
    ) -> None:
        """Writes a row of the HParams tab, from :func:`hyperparameters`; measured values come from the scalars."""
        values = vars(params) if isinstance(params, Namespace) else dict(params)
        columns = [
            # Columns said to differ come first, and five are shown. A single run cannot know which do: _SHOWN decides.
            api_pb2.HParamInfo(name=name, type=_type(value), differs=name in _SHOWN)
            for name, value in values.items()
        ]
        measured = [
            api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=title) for tag, title in _MEASURED.items()
        ]
        start = plugin_data_pb2.SessionStartInfo()
        for name, value in values.items():
            if isinstance(value, bool):
                start.hparams[name].bool_value = value
            elif isinstance(value, str):
                start.hparams[name].string_value = value
            elif value is not None:
                start.hparams[name].number_value = value
        experiment = api_pb2.Experiment(hparam_infos=columns, metric_infos=measured)
        self._describe(metadata.EXPERIMENT_TAG, plugin_data_pb2.HParamsPluginData(experiment=experiment))
        self._describe(metadata.SESSION_START_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_start_info=start))

    @rank_zero_only
    def show_picture(self, tag: str, png: str | Path, step: int) -> None:
        content = Path(png).read_bytes()
        # As it is: the writer's own add_image would take it apart and pack it anew.
        with Image.open(io.BytesIO(content)) as opened:
            size = {"width": opened.width, "height": opened.height, "colorspace": len(opened.getbands())}
        image = Summary.Image(**size, encoded_image_string=content)
        self._add(Summary.Value(tag=tag, image=image), step)

    @rank_zero_only
    def show_histogram(self, tag: str, values: Tensor, step: int) -> None:
        self.experiment.add_histogram(tag, values, step)

    @rank_zero_only
    def save(self) -> None:
        # Lightning's save would add a hparams.yaml, all of which is in config.yaml.
        self.experiment.flush()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if status == "success" and self._experiment is not None:
            # TensorBoard uses the first end that it reads, so a failed run writes none: it may be resumed.
            end = plugin_data_pb2.SessionEndInfo(status=api_pb2.Status.Value("STATUS_SUCCESS"))
            self._describe(metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=end))
        super().finalize(status)

    def _show(self, charts: layout_pb2.Layout) -> None:
        # The writer's own add_custom_scalars cannot make a margin chart of several lines.
        tensor = TensorProto(dtype="DT_STRING", string_val=[charts.SerializeToString()])
        self._write(custom_scalar.CONFIG_SUMMARY_TAG, custom_scalar.create_summary_metadata(), tensor)

    def _describe(self, tag: str, data: Any) -> None:
        self._write(tag, metadata.create_summary_metadata(data), metadata.NULL_TENSOR)

    def _write(self, tag: str, what: SummaryMetadata, tensor: TensorProto) -> None:
        self._add(Summary.Value(tag=tag, metadata=what, tensor=tensor))

    def _add(self, value: Summary.Value, step: int | None = None) -> None:
        writer: Any = self.experiment
        writer.file_writer.add_summary(Summary(value=[value]), step)


@rank_zero_only
def _read_first(folder: Path) -> None:
    """Lets TensorBoard read what is in a folder before what is written from now on, whatever the clock of this machine.

    It reads event files by name, which is the time of their start, and drops what it has read when a later start says
    so. Where a name is later than now (a run that goes on under an earlier clock), the names become numbers, in order.
    """
    files = sorted(folder.glob(f"{_EVENTS}*.*"))
    if files and files[-1].name >= f"{_EVENTS}{int(time.time()):010d}":
        for number, file in enumerate(files):
            rest = file.name.removeprefix(_EVENTS).partition(".")[2]
            file.rename(file.with_name(f"{_EVENTS}{number:010d}.{rest}"))


def hyperparameters(spec: RunSpec) -> dict[str, Any]:
    """Returns the hyper-parameters of a run for the HParams tab: names -> number, text, bool or None."""
    typed = {one.key: one.value for one in map(read_override, spec.overrides) if one.is_what}
    told: dict[str, Any] = {"experiment": spec.experiment, "softmax": spec.softmax, "seed": spec.seed}
    rest = {key: value for key, value in typed.items() if key not in told}
    told["overrides"] = " ".join(f"{key}={value}" for key, value in sorted(rest.items()))
    for key in dict.fromkeys([*_ALWAYS, *rest]):
        value = OmegaConf.select(spec.config, key) if re.fullmatch(r"\w+(\.\w+)*", key) else None
        # Of a chosen config (row=vit), which is no single value, the name is shown.
        told[key] = value if isinstance(value, bool | int | float | str) else rest.get(key)
    return told


def layout(tags: Iterable[str]) -> layout_pb2.Layout:
    """Charts of these scalars for the tab "Custom Scalars".

    Tags that end in ``layer_<i>`` share a chart with a line for each layer; the gradients of W_Q, W_K and W_V share a
    chart for each layer. Accuracy and loss are margin charts whose margins have no width: by default TensorBoard
    smooths lines, which turns an abrupt rise into a slope, but never the line of a margin chart.
    """
    tags = sorted(tags)
    charts: dict[str, list[layout_pb2.Chart]] = {}
    shown: set[str] = set()

    def chart(category: str, title: str, pattern: str) -> None:
        # The pattern, not the tags that match it: TensorBoard merges the charts of two runs only where they are equal.
        found = {tag for tag in tags if re.match(pattern, tag)}
        if found:
            lines = layout_pb2.MultilineChartContent(tag=[pattern])
            charts.setdefault(category.replace("_", " "), []).append(layout_pb2.Chart(title=title, multiline=lines))
            shown.update(found)

    def exact(category: str, title: str, lines: Sequence[str]) -> None:
        if lines:
            series = [layout_pb2.MarginChartContent.Series(value=line, lower=line, upper=line) for line in lines]
            margin = layout_pb2.MarginChartContent(series=series)
            charts.setdefault(category, []).append(layout_pb2.Chart(title=title, margin=margin))
            shown.update(lines)

    # A metric that is watched instead of the accuracy or the loss has a chart of its own.
    watched = [tag.removeprefix(THRESHOLD_OF) for tag in tags if tag.startswith(THRESHOLD_OF)]
    own = [{one: one, THRESHOLD_OF + one: "threshold", "eureka/happened": _HAPPENED} for one in watched]
    for lines in (*own, *_MOMENT):
        there = [line for line in lines if line in tags]
        if next(iter(lines)) in there:
            exact("Eureka-moment", ", ".join(lines[line] for line in there), there)
    exact("accuracy", "training accuracy", [tag for tag in tags if tag == "train/accuracy"])
    exact("accuracy", "validation accuracy, part by part", [tag for tag in tags if tag.startswith("val/accuracy_")])
    exact("accuracy", "best validation accuracy so far", [tag for tag in tags if tag == "accuracy/best"])
    exact("loss", "training and validation loss", [tag for tag in tags if tag in ("train/loss", "val/loss")])
    layers = [found for tag in tags if (found := re.match(r"(\w+)/(.+)/layer_(\d+)(/mean|/spread|/head_\d+)?$", tag))]
    for layer in sorted({int(found[3]) for found in layers if found[1] == "gradient"}):
        chart("gradients", f"mean |gradient| of W_Q, W_K and W_V, layer {layer}", rf"gradient/[^/]+/layer_{layer}$")
    # One chart for all layers, with a line for each.
    others = dict.fromkeys((found[1], found[2], re.sub(r"_\d+$|^/mean$", "", found[4] or "")) for found in layers)
    for group, what, part in sorted(others, key=lambda one: (_place(one[0]), list(_PARTS).index(one[2]))):
        if group != "gradient":
            title, ending = _PARTS[part]
            chart(
                group, title.format(what.replace("_", " ")), rf"{re.escape(group)}/{re.escape(what)}/layer_\d+{ending}$"
            )
    chart("speed", "learning rate", r"train/learning_rate$")
    chart("speed", "samples per second", r"samples_per_second$")
    for tag in tags:
        group, _, name = tag.partition("/")
        if tag not in shown and name and group != "eureka":
            chart(group, name.replace("_", " "), f"{re.escape(tag)}$")
    return layout_pb2.Layout(category=[layout_pb2.Category(title=title, chart=own) for title, own in charts.items()])


def _place(group: str) -> int:
    return _FIRST.index(group) if group in _FIRST else len(_FIRST)


def _type(value: Any) -> Any:
    name = "BOOL" if isinstance(value, bool) else "STRING" if isinstance(value, str) else "FLOAT64"
    return api_pb2.DataType.Value(f"DATA_TYPE_{name}")

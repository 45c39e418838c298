"""A picture of a few training scenes with their labels, at the start of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback
from matplotlib.figure import Figure
from pydantic import PositiveInt
from torch import Tensor

from lab.datasets.loading import Batch, DataModule, data_of
from lab.plotting.figures import literal, new_figure, save_figure
from lab.plotting.style import styled
from lab.runs.boards import boards

# Letters of a title that fit above a scene.
_FITS = 21


class SampleScenes(Callback):
    """Writes ``pictures/scenes.png`` into the run folder, and shows it on the boards.

    Args:
        folder: where the picture goes.
        count: number of scenes.
    """

    def __init__(self, folder: str, count: PositiveInt = 8) -> None:
        self.folder = Path(folder)
        self.count = count

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        data = data_of(trainer)
        # Batches are a function of (seed, epoch, step), so that drawing one here does not use up training data.
        batch = data.composed(data.draw_train(0, 0), normalise=False)
        if batch is None:
            return
        count = min(self.count, len(batch["y"]))
        titles = titles_of(data, batch)[:count]
        (png,) = save_figure(scenes_figure(batch["x"][:count], titles), self.folder / "scenes.png")
        for board in boards(trainer):
            board.show_picture("scenes", png, trainer.global_step)


def titles_of(data: DataModule, batch: Batch) -> list[str]:
    """One title per scene: its label and, in brackets, the location that z chose if the data names locations."""
    chosen = batch["latents"].get("target_location")
    titles = [data.class_names[label] if data.class_names else str(label) for label in batch["y"].tolist()]
    if chosen is None or not data.locations:
        return titles
    return [f"{title}\n({data.locations[place]})" for title, place in zip(titles, chosen.tolist(), strict=True)]


@styled()
def scenes_figure(pictures_BCHW: Tensor, titles: Sequence[str], columns: int = 4) -> Figure:
    """A grid of pictures, colours in [0, 1], each under its title."""
    columns = min(columns, len(titles))
    rows = -(-len(titles) // columns)
    wrapped = [_wrapped(title) for title in titles]
    lines = max(title.count("\n") + 1 for title in wrapped)
    figure, axes = new_figure(1.2 * columns, (1.25 + 0.15 * lines) * rows, rows, columns)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, picture, title in zip(axes.flat, pictures_BCHW, wrapped, strict=False):
        axis.imshow(picture.clamp(0, 1).permute(1, 2, 0).cpu().numpy(), interpolation="nearest")
        axis.set_title(title, fontsize=6.5)
    return figure


def _wrapped(title: str) -> str:
    """Breaks a title after blanks, "/" and "_", so that its lines fit where they can."""
    lines: list[str] = []
    for whole in title.splitlines():
        lines.append("")
        for part in re.split(r"(?<=[\s/_])", whole):
            if lines[-1] and len((lines[-1] + part).rstrip()) > _FITS:
                lines.append("")
            lines[-1] += part
    return "\n".join(literal(line.rstrip()) for line in lines)

"""Pictures of six scenes of each task, as the docs show them.

    python scripts/scenes.py --out docs/pictures/tasks
    python scripts/scenes.py imagenet100 --set data.root=<folder> 'data.dogs=[<class>,<class>]' --out pictures

Without a folder of one's own, CIFAR-10's automobiles and birds stand in for ImageNet-100.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from lab.callbacks.diagnostics.sample_scenes import scenes_figure, titles_of
from lab.config.arguments import Parser
from lab.config.check import check
from lab.config.command_line import composed
from lab.config.overrides import last_of_each
from lab.console import LabError, import_from_here, refusals
from lab.datasets.imagenet import FolderScenes
from lab.datasets.loading import DataModule
from lab.datasets.max_retrieval import RANKS
from lab.datasets.scenes import unnormalised
from lab.datasets.seeding import generator_of
from lab.plotting.figures import DPI, new_figure, save_figure
from lab.plotting.style import styled
from lab.runs.outcome import Ending

# The pictures of the docs: without arguments these are drawn again; a new task is named.
PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "tasks"
# Experiment -> overrides that it needs on a machine with the test data alone; --set overrides them.
NEEDS: dict[str, list[str]] = {
    "cifar_task_1": ["data/source=folder_cifar"],
    "imagenet100": ["data.root=${paths.data}/cifar10", "data.dogs=[automobile,bird]", "data.workers=0"],
    "in_context": ["data/alphabets=folder", "data.rare=null"],
}

# Colours: of even and odd numbers; of the answer; of everything else.
PARITY, ANSWER, OTHER = ("#228833", "#4477AA"), "#EE6677", "0.75"


def picture(experiment: str, overrides: list[str], out: Path, count: int) -> Path:
    """Writes <out>/<experiment>.png: training scenes, each with its label and where it is found.

    Raises:
        LabError: if the overrides do not compose, an option is wrong or the data has no pictures.
    """
    # Of each key the last alone: Hydra takes a group only once.
    wanted = last_of_each([f"experiment={experiment}", *NEEDS.get(experiment, []), *overrides])
    config = composed([one.text for one in wanted.values()]).config
    if "batch_size" in config.data:
        config.data.batch_size = count
    config.paths.run = str(out)
    check(config)
    data = instantiate(config.data)
    draw = DRAWN.get(experiment, scenes)
    if draw is scenes and type(data).composed is DataModule.composed:
        raise LabError(f"{type(data).__name__} does not compose pictures: add a drawing of {experiment} to {__file__}")
    path = out / f"{experiment}.png"
    # Photographs are saved at a lower resolution: PNG hardly compresses them.
    save_figure(draw(data, count), path, dpi=110 if draw is photographs else DPI)
    return path


def scenes(data: Any, count: int) -> Figure:
    """Scenes that are pictures, side by side."""
    batch = data.composed(data.draw_train(0, 0), normalise=False)
    return scenes_figure(batch["x"], titles_of(data, batch), columns=count)


def photographs(data: Any, count: int) -> Figure:
    """Scenes of an image folder with the transforms of validation, and beneath the same ones with those of training."""
    walk = torch.randperm(len(data.scenes("train")), generator=generator_of("scenes"))[:count]
    plain = FolderScenes(data.root / "train", data.dogs, data.transforms["val"], data.tile_size)
    shown, trained = (unnormalised(own.batch(walk, seed=0)["x"]) for own in (plain, data.scenes("train")))
    titles = titles_of(data, data.scenes("train").batch(walk, seed=0))
    return scenes_figure(torch.cat([shown, trained]), [*titles, *["in training"] * count], columns=count)


@styled()
def sequences(data: Any, count: int) -> Figure:
    """Inputs "a b c d =" of the reasoning task: even and odd a and b in two colours, the answer in a frame."""
    batch = data.draw_train(0, 0)
    figure, axes = new_figure(1.6 * count, 0.75, 1, count)
    places = batch["latents"]["target_location"].tolist()
    for axis, title, tokens, place in zip(axes[0], titles_of(data, batch), batch["x"].tolist(), places, strict=False):
        axis.set(xlim=(-0.6, 4.6), ylim=(-0.6, 0.6), xticks=[], yticks=[])
        axis.spines[:].set_color("0.85")
        axis.set_title(title)
        colors = [PARITY[token % 2] for token in tokens[:2]] + ["black"] * 3
        words = [*map(str, tokens[:4]), "="]
        for index, (word, color) in enumerate(zip(words, colors, strict=True)):
            axis.text(index, 0, word, fontsize=11, color=color, ha="center", va="center_baseline")
        frame = FancyBboxPatch((1.58 + place, -0.4), 0.84, 0.8, "round,pad=0,rounding_size=0.1", mutation_aspect=0.5)
        frame.set(facecolor="none", edgecolor=ANSWER, linewidth=2)
        axis.add_patch(frame)
    return figure


@styled()
def sets(data: Any, count: int) -> Figure:
    """Sets of max retrieval, one per step: a bar per item, as high as its priority, with its class."""
    batches = [data.draw_train(0, step) for step in range(count)]
    figure, axes = new_figure(1.6 * count, 1.9, 1, count, sharey=True)
    # Bars have the same width in all panels, however many items a set has.
    axes[0, 0].get_gridspec().set_width_ratios([batch["x"][0].shape[1] for batch in batches])
    for axis, batch in zip(axes[0], batches, strict=True):
        features, asked = batch["x"][0][0], int(batch["latents"][RANKS[data.asked]][0])
        names = [data.class_names[kind] for kind in features[:, 1:].argmax(1).tolist()]
        colors = [ANSWER if item == asked else OTHER for item in range(len(names))]
        axis.bar(range(len(names)), features[:, 0].tolist(), color=colors)
        axis.set(xlim=(-0.6, len(names) - 0.4), ylim=(0, 1), yticks=[0, 0.5, 1])
        axis.grid(visible=False, axis="x")
        axis.set_xticks(range(len(names)), names)
        axis.set_title(f"{data.class_names[int(batch['y'][0])]}\n(item {asked + 1} of {len(names)})")
    axes[0, 0].set_ylabel("priority")
    figure.supxlabel("class of each item")
    return figure


def rows_of_characters(data: Any, count: int) -> Figure:
    """Sequences of in-context learning, one per row: training, then few-shot; labels below, the answer in colour."""
    trained = data.on_after_batch_transfer(data.draw_train(0, 0), 0)
    few_shot = data.on_after_batch_transfer(data.draw_validation(0), 0)
    shown = [(trained, index) for index in range(count - count // 2)] + [
        (few_shot, index) for index in range(count // 2)
    ]
    images = data.pairs + 1
    figure, axes = new_figure(1.05 * images, 1.35 * count, count, images)
    for row, (batch, index) in zip(axes, shown, strict=True):
        labels = [*batch["x"][1][index].tolist(), int(batch["y"][index])]
        for place, (axis, label) in enumerate(zip(row, labels, strict=True)):
            asked = place == data.pairs
            axis.imshow(batch["x"][0][index, place, 0].numpy(), cmap="gray", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set(color=ANSWER if asked else OTHER, linewidth=2 if asked else 1)
            axis.set_xlabel(str(label), fontsize=9, color=ANSWER if asked else "black")
        row[0].set_ylabel("few-shot" if batch is few_shot else "training", fontsize=9)
    return figure


DRAWN: dict[str, Callable[[Any, int], Figure]] = {
    "imagenet100": photographs,
    "reasoning": sequences,
    "max_retrieval": sets,
    "in_context": rows_of_characters,
}


def main() -> None:
    """The command line."""
    parser = Parser(description=__doc__)
    there = sorted(path.stem for path in PICTURES.glob("*.png"))
    parser.add_argument("experiments", nargs="*", default=there, help="default: all with a picture in the docs")
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--count", type=int, default=6, help="scenes of each task")
    parser.add_argument("--set", nargs="*", default=[], help="overrides, as data/source=drawn or paths.data=<folder>")
    arguments = parser.parse_args()
    import_from_here()
    with refusals(), Ending().told():
        if arguments.count < 1:
            raise LabError(f"--count must be at least 1, got {arguments.count}")
        for experiment in arguments.experiments:
            print(picture(experiment, arguments.set, arguments.out, arguments.count))


if __name__ == "__main__":
    main()

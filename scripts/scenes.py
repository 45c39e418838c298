"""Pictures of six scenes of each vision task, as the docs show them.

python scripts/scenes.py --out docs/pictures/tasks
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hydra.utils import instantiate

from callbacks.sample_scenes import scenes_figure
from lab.config import compose_config
from lab.pictures import save_figure

EXPERIMENTS = (
    "main_task",
    "no_position",
    "cifar_task_1",
    "top_if_above",
    "same_color",
    "color_or_fashion",
    "digit_grouping",
)


def picture(experiment: str, overrides: list[str], out: Path, count: int) -> Path:
    """Writes <out>/<experiment>.png: training scenes, each with its label and where it is found."""
    config = compose_config([f"experiment={experiment}", *overrides, f"data.batch_size={count}"])
    data: Any = instantiate(config.data)
    batch = data.composed(data.draw_train(0, 0), normalise=False)
    places = batch["latents"]["target_location"].tolist()
    titles = [
        f"{data.class_names[label]}\n({data.locations[place]})"
        for label, place in zip(batch["y"].tolist(), places, strict=True)
    ]
    figure = scenes_figure(batch["x"], titles, columns=count)
    path = out / f"{experiment}.png"
    save_figure(figure, path, dpi=110)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", default=EXPERIMENTS, help="all vision tasks by default")
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--count", type=int, default=6, help="scenes of each task")
    parser.add_argument("--set", nargs="*", default=[], help="overrides, as data/source=drawn or paths.data=<folder>")
    arguments = parser.parse_args()
    chosen = any(override.startswith("data/source=") for override in arguments.set)
    for experiment in arguments.experiments:
        own = ["data/source=folder_cifar"] if experiment == "cifar_task_1" and not chosen else []
        print(picture(experiment, [*own, *arguments.set], arguments.out, arguments.count))

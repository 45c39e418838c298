"""Checks of a task: each mistake in a new one is told in one sentence.

Shapes: B scenes of T = 4 tiles.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from lab.console import blamed
from lab.datasets.contract import CLASSES, same
from lab.datasets.scenes import TILES, ImageBank, Scenes
from lab.datasets.seeding import generator_of
from lab.datasets.sources import Source, Split
from lab.datasets.tasks.task import Task, sources_of

SPLITS: tuple[Split, ...] = ("train", "test")

# In as many scenes, a location that z chooses in one of a hundred is not missed (0.99 ** 1,000 is 0.00004). Before
# training fewer are drawn, so that a prior of 1 can still be trained with.
_ENOUGH = 1000


def check_task(task: Task, source: Mapping[str, Source], scenes: int = 4096, tile_size: int = 28) -> None:
    """Checks a task from end to end, in the test of a new one: its parts, and scenes of both splits.

    Whether the rule is the intended one, only its author knows: a test should also work the label out from the images
    of some scenes, as ``tests/datasets/test_tasks.py`` does.

    Args:
        task: to be checked.
        source: name -> source of images, as the task names them.
        scenes: how many to draw of each split.
        tile_size: side of a tile in pixels.

    Raises:
        ValueError: at the first thing that is wrong; see :func:`check_definition` and :func:`check_scenes`.
    """
    check_definition(task, source)
    for split in SPLITS:
        images = {name: one.load(split) for name, one in sources_of(task, source).items()}
        check_scenes(task, ImageBank(images, tile_size), scenes)


def check_definition(task: Task, sources: Collection[str]) -> None:
    """Checks methods, sources and locations, which need no image.

    Args:
        task: to be checked.
        sources: names of the data's images.

    Raises:
        ValueError: if something is missing or not what it has to be.
    """
    name = type(task).__name__
    if not isinstance(task, Task):
        raise ValueError(f"data.task has to be a lab.datasets.tasks.task.Task, which {name} is not")
    for method, what in (("sample", "draws its scenes"), ("label", "labels scenes by their latents")):
        if getattr(type(task), method) is getattr(Task, method):
            raise ValueError(f"{name} lacks the method {method}, which {what}")
    known = ", ".join(sorted(sources))
    own: Any = getattr(task, "label_source", None)
    if own is None:
        raise ValueError(
            f"{name} lacks label_source, the images whose classes are the labels: write label_source = ... in the "
            f"class, one of {known}"
        )
    if not isinstance(own, str):
        what = "a method without @property" if callable(own) else repr(own)
        raise ValueError(f"{name}.label_source has to be the name of images, one of {known}, and is {what}")
    if own not in sources:
        raise ValueError(f"{name}.label_source={own!r} is none of the data's images: {known}")
    shown: Any = task.sources
    names = isinstance(shown, Collection) and not isinstance(shown, str)
    if shown is not None and not (names and set(shown) <= set(sources)):
        raise ValueError(
            f'{name}.sources has to hold names of images, such as ("{own}",), out of {known}, or be None for all, and '
            f"is {shown!r}"
        )
    if shown is not None and own not in shown:
        raise ValueError(f"{name}.sources has to name label_source, {own!r}, too, and is {shown!r}")
    places: Any = task.locations
    if isinstance(places, str) or len(set(places)) < max(2, len(places)) or not all(isinstance(p, str) for p in places):
        raise ValueError(
            f"{name}.locations has to name two places or more, all different, for target_location to choose "
            f"between, and is {places!r}"
        )
    try:
        inspect.signature(task.label_names).bind({})
    except TypeError as error:
        raise ValueError(
            f"{name}.label_names has to be a method that returns the names of the labels: "
            "def label_names(self, class_names)"
        ) from error


def check_scenes(task: Task, bank: ImageBank, scenes: int = 256) -> None:
    """Checks drawn scenes: shapes, latents, labels, and that draws follow from walk and generator alone.

    Args:
        task: one that has passed :func:`check_definition`.
        bank: the images of a split.
        scenes: how many to draw; from 1,000 on, z has to choose each location in one of them, latents have to belong to
            the image on their tile, and another walk has to show other images.

    Raises:
        ValueError: if something is missing or not what it has to be.
    """
    name = type(task).__name__
    walk = torch.arange(scenes)
    for size in (scenes, 1):
        with blamed(f"{name}.sample fails"):
            drawn = task.sample(bank, torch.arange(size), generator_of("check", 0))
        _check_draws(name, drawn, size, len(bank.labels))
        _check_latents(name, task, drawn.latents)
        _check_labels(name, task, drawn.latents, len(task.label_names(bank.class_names)))
    first, again, other = (task.sample(bank, walk, generator_of("check", n)) for n in (0, 0, 1))
    if not same(vars(first), vars(again)):
        raise ValueError(
            f"{name}.sample draws other scenes from a generator of the same seed: draw every random number from the "
            "generator that it is given"
        )
    if same(vars(first), vars(other)):
        raise ValueError(
            f"{name}.sample draws the same scenes whatever the seed of its generator: all epochs would be the same"
        )
    if scenes < _ENOUGH:
        return
    if torch.equal(first.images, task.sample(bank, walk + 1, generator_of("check", 0)).images):
        raise ValueError(
            f"{name}.sample shows the same images whatever its walk: show bank.walk(self.label_source, walk), so that "
            "an epoch uses each image once"
        )
    _check_places(name, task, bank, first, walk)
    chosen = first.latents["target_location"].unique().tolist()
    idle = [location for place, location in enumerate(task.locations) if place not in chosen]
    if idle:
        raise ValueError(
            f"{name}.sample: target_location never says {', '.join(idle)} in {scenes} scenes: z has to choose each "
            "location at times"
        )


def _check_draws(name: str, drawn: Any, size: int, images: int) -> None:
    """Checks types and shapes of what ``sample`` returns."""
    if not isinstance(drawn, Scenes):
        raise ValueError(f"{name}.sample has to return lab.datasets.scenes.Scenes, and returns {type(drawn).__name__}")
    if not isinstance(drawn.latents, dict):
        raise ValueError(f"{name}.sample: latents have to be a dict by name, and are {type(drawn.latents).__name__}")
    _check_tensor(f"{name}.sample: images", drawn.images, (size, len(TILES)), torch.int64)
    _check_tensor(f"{name}.sample: colors", drawn.colors, (size, len(TILES), 3), torch.get_default_dtype())
    if not drawn.colors.isfinite().all():
        raise ValueError(f"{name}.sample: colors have to be finite, and some are nan or infinite")
    for latent, value in drawn.latents.items():
        _check_tensor(f"{name}.sample: latent {latent}", value, (size,), torch.int64)
    _check_range(f"{name}.sample: images", drawn.images, images, "as many images as there are")


def _check_tensor(what: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{what} has to be a tensor, and is {type(value).__name__}")
    if tuple(value.shape) != shape or value.dtype != dtype:
        raise ValueError(
            f"{what} has to be {dtype} of shape {list(shape)} for {shape[0]} scenes, and is {value.dtype} of shape "
            f"{list(value.shape)}"
        )


def _check_range(what: str, value: Tensor, size: int, why: str) -> None:
    low, high = int(value.min()), int(value.max())
    if low < 0 or high >= size:
        raise ValueError(f"{what} has to lie in 0 ... {size - 1} ({why}), and lies in {low} ... {high}")


def _check_latents(name: str, task: Task, latents: Mapping[str, Tensor]) -> None:
    """Checks that the latents that metrics and pictures read are there, and in their range."""
    targets = [f"target_{place + 1}" for place in range(len(task.locations))]
    missing = [latent for latent in ("target_location", *targets, "indicator_1") if latent not in latents]
    if missing:
        raise ValueError(
            f"{name}.sample gives no latent {', '.join(missing)}: metrics and pictures read target_location (which of "
            f"{', '.join(task.locations)} is right, from 0), {', '.join(targets)} (the class at each of them) and "
            "indicator_1, ... (which z is read from)"
        )
    _check_range(
        f"{name}.sample: latent target_location", latents["target_location"], len(targets), ", ".join(task.locations)
    )
    for latent, value in latents.items():
        if latent.endswith("_tile"):
            _check_range(f"{name}.sample: latent {latent}", value, len(TILES), ", ".join(TILES))
        if latent.startswith(CLASSES) and int(value.min()) < 0:
            raise ValueError(f"{name}.sample: latent {latent} has to be a class from 0 on, and is {int(value.min())}")
    parts = [latent for latent in latents if latent.startswith(("indicator_", "target_")) and latent[-1].isdigit()]
    adrift = [part for part in parts if f"{part}_tile" not in latents and part not in task.placeless]
    if adrift:
        raise ValueError(
            f"{name}.sample gives no latent {', '.join(f'{part}_tile' for part in adrift)}, the tile (0 to 3) that "
            "attention_mass and attention_gradients look at: add it, or name the parts that stand on no tile in the "
            "class attribute placeless"
        )


def _check_labels(name: str, task: Task, latents: dict[str, Tensor], classes: int) -> None:
    """Checks that labels are classes, follow from each scene's own latents, and agree with the target that counts."""
    size = len(latents["target_location"])
    given = {latent: value.clone() for latent, value in latents.items()}
    try:
        labels = task.label(given)
    except KeyError as error:
        if error.args[0] in latents:
            raise
        raise ValueError(
            f"{name}.label reads the latent {error.args[0]}, which sample does not give; it gives {', '.join(latents)}"
        ) from error
    _check_tensor(f"{name}.label: the label", labels, (size,), torch.int64)
    _check_range(f"{name}.label: the label", labels, classes, "one for each of label_names")
    if not all(torch.equal(given[latent], value) for latent, value in latents.items()):
        raise ValueError(f"{name}.label changes the latents that it is given: work on a copy")
    # Computed again with the scenes in another order, to which no label may respond.
    if not torch.equal(task.label({latent: value.flip(0) for latent, value in latents.items()}).flip(0), labels):
        raise ValueError(
            f"{name}.label gives a scene another label among other scenes, or when it is called again: the label has "
            "to follow from the scene's latents alone"
        )
    for place, location in enumerate(task.locations):
        told = latents["target_location"] == place
        _check_told(name, location, f"target_{place + 1}", latents[f"target_{place + 1}"][told], labels[told])


def _check_told(name: str, location: str, part: str, target: Tensor, labels: Tensor) -> None:
    """Checks, on the scenes [told] of one target location, that the class of this target alone decides the label."""
    for kind in target.unique().tolist():
        found = labels[target == kind].unique().tolist()
        if len(found) > 1:
            raise ValueError(
                f"{name}: where target_location says {location}, {part} has to decide the label, but {part}={kind} "
                f"comes with the labels {', '.join(map(str, found))}: target_location in sample and the rule in label "
                "do not agree"
            )


def _check_places(name: str, task: Task, bank: ImageBank, drawn: Scenes, walk: Tensor) -> None:
    """Checks that no latent is the class of another image than the one on its tile.

    A latent that no class decides is left alone, as it may be a colour or compare tiles, and so is one that its own
    tile tells in most scenes, as it may be noisy.
    """
    scene, latents = torch.arange(len(walk)), drawn.latents
    tiles = {latent: tile for latent, tile in latents.items() if latent.endswith("_tile")}
    images = {f"on {latent}": drawn.images[scene, tile] for latent, tile in tiles.items()}
    images |= {f"on the tile {tile}": drawn.images[:, place] for place, tile in enumerate(TILES)}
    images["that walk names"] = bank.walk(task.label_source, walk)
    sizes = torch.tensor([bank.size(source) for source in bank.class_names])
    # A digit 1 is of another kind than a garment 1.
    kinds = torch.stack([bank.labels, torch.arange(len(sizes)).repeat_interleave(sizes)], dim=1)
    for part in [latent for latent in latents if f"{latent}_tile" in tiles]:
        # Steps of 1/4, five times the noise of colours.
        color = (4 * drawn.colors[scene, tiles[f"{part}_tile"]]).round().long()
        if _share_told(torch.cat([kinds[images[f"on {part}_tile"]], color], dim=1), latents[part]) > 0.75:
            continue
        for where, image in images.items():
            # Classes that hardly occur twice would decide anything.
            often = 10 * len(kinds[image].unique(dim=0)) <= len(walk)
            if often and _share_told(kinds[image], latents[part]) == 1:
                raise ValueError(
                    f"{name}.sample: latent {part} follows from the class of the image {where}, not of the one on "
                    f"{part}_tile: images, latents and tiles have to fit, and a part of several tiles has no such "
                    "latent, but stands in placeless"
                )


def _share_told(seen: Tensor, latent: Tensor) -> float:
    """The share of scenes in which what is seen [B, n] tells the latent [B]: that it is the commonest one with it."""
    kind, value = seen.unique(dim=0, return_inverse=True)[1], latent.unique(return_inverse=True)[1]
    values = int(value.max()) + 1
    counts = torch.bincount(kind * values + value, minlength=values * (int(kind.max()) + 1))
    return int(counts.view(-1, values).amax(1).sum()) / len(latent)

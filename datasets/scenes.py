"""A scene is four tiles on a square canvas; scenes are composed in whole batches on the training device.

Shapes: B scenes, T = 4 tiles in row-major order (top-left, top-right, bottom-left, bottom-right),
C = 3 colour channels, S = tile side in pixels; the canvas is 2S x 2S.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

TILES = ("top_left", "top_right", "bottom_left", "bottom_right")
TOP_LEFT, TOP_RIGHT, BOTTOM_LEFT, BOTTOM_RIGHT = range(4)

WHITE = (1.0, 1.0, 1.0)
RED = (1.0, 0.0, 0.0)
BLUE = (0.0, 0.0, 1.0)

# One value per tile and RGB channel (docs/published_runs.md, "Main task"; Eureka-moments in Transformers, A.14).
COLOR_NOISE_STD = 0.05

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class LabelledImages(Protocol):
    """Images that fill a bank: uint8 ``pixels`` [n, C, H, W], int64 ``labels`` [n], ``class_names``, and how they
    shrink.
    """

    @property
    def pixels(self) -> Tensor: ...

    @property
    def labels(self) -> Tensor: ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def interpolation(self) -> str: ...


@dataclass
class Scenes:
    """Random draws that fully describe a batch of scenes; small to transfer, composed on the device.

    Attributes:
        images: [B, T] int64, index into the bank for each tile.
        colors: [B, T, 3] float32, the factor on each tile's grey values, noise included; 0 is a black tile.
        latents: name -> [B] int64. Two-step tasks have at least ``indicator_1``, ... (what z is read off), a class
            ``target_1``, ``target_2``, ... for each of the task's ``locations``, ``target_location`` (which of them
            is right), and ``<part>_tile``, the tile that each part stands on, if it stands on one.
    """

    images: Tensor
    colors: Tensor
    latents: dict[str, Tensor]

    def __len__(self) -> int:
        return self.images.shape[0]


class ImageBank:
    """All images of a split in one uint8 tensor, so that a whole batch of mixed tiles is one gather.

    Args:
        sources: name -> images; every image is resized once to ``tile_size`` (as their ``interpolation`` says).
        tile_size: side of a tile in pixels.

    Raises:
        ValueError: if no source is given.
    """

    def __init__(self, sources: Mapping[str, LabelledImages], tile_size: int) -> None:
        if not sources:
            raise ValueError("an image bank needs at least one source of images, got none")
        self.tile_size = tile_size
        channels = max(images.pixels.shape[1] for images in sources.values())
        resized = [
            _resize(images.pixels, tile_size, images.interpolation).expand(-1, channels, -1, -1)
            for images in sources.values()
        ]
        self.pixels = torch.cat(resized).contiguous()
        self.labels = torch.cat([images.labels for images in sources.values()])
        self.class_names = {name: images.class_names for name, images in sources.items()}
        sizes = [len(images.labels) for images in sources.values()]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._ranges = {n: (a, a + size) for n, a, size in zip(sources, starts, sizes, strict=True)}
        self._of_classes: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self._sorted: dict[str, bool] = {}

    def size(self, source: str) -> int:
        """Number of images of a source."""
        start, stop = self._range(source)
        return stop - start

    def is_sorted(self, source: str) -> bool:
        """Tells if the images of a source lie sorted by class."""
        if source not in self._sorted:
            start, stop = self._range(source)
            self._sorted[source] = bool((self.labels[start:stop].diff() >= 0).all())
        return self._sorted[source]

    def walk(self, source: str, order: Tensor) -> Tensor:
        """Bank indices of the images ``order`` [B] (taken modulo the size) of a source."""
        start, stop = self._range(source)
        return start + order % (stop - start)

    def draw(
        self,
        source: str,
        shape: Sequence[int],
        generator: torch.Generator,
        classes: Sequence[int] | None = None,
    ) -> Tensor:
        """Bank indices, shape ``shape``, drawn uniformly from the images of a source (or of some of its classes).

        Raises:
            ValueError: if there is no such source, or a class has no image.
        """
        start, stop = self._range(source)
        if classes is None:
            return torch.randint(start, stop, tuple(shape), generator=generator)
        key = (source, tuple(classes))
        if key not in self._of_classes:
            labels = self.labels[start:stop]
            if missing := sorted(set(classes) - set(labels.unique().tolist())):
                raise ValueError(
                    f"source {source!r} has no image of class {', '.join(map(str, missing))}; its classes are "
                    f"0 to {len(self.class_names[source]) - 1}"
                )
            self._of_classes[key] = torch.isin(labels, torch.tensor(classes)).nonzero().flatten() + start
        members = self._of_classes[key]
        return members[torch.randint(len(members), tuple(shape), generator=generator)]

    def _range(self, source: str) -> tuple[int, int]:
        if source not in self._ranges:
            raise ValueError(
                f"the task asks for images {source!r}, but the data holds {sorted(self._ranges)}: a task with the "
                "class attribute sources has to name there all that it shows"
            )
        return self._ranges[source]


def _resize(pixels: Tensor, side: int, interpolation: str) -> Tensor:
    if pixels.shape[-2:] == (side, side):
        return pixels
    by_area = interpolation == "area" and side < min(pixels.shape[-2:])
    how: dict[str, Any] = (
        {"mode": "area"} if by_area else {"mode": "bilinear", "antialias": interpolation == "bilinear"}
    )
    chunks = [
        F.interpolate(c.float(), (side, side), **how).round().clamp(0, 255).to(torch.uint8) for c in pixels.split(8192)
    ]
    return torch.cat(chunks)


def tile_regions(latents: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Places of the parts of each scene: name -> bool [B, 2, 2], True on its tile."""
    return {
        name.removesuffix("_tile"): F.one_hot(tile, 4).bool().view(-1, 2, 2)
        for name, tile in latents.items()
        if name.endswith("_tile")
    }


def tint(palette: Tensor, choice: Tensor, generator: torch.Generator) -> Tensor:
    """Tile colours with their noise: ``palette[choice] + N(0, 0.05)``, one value per tile and channel.

    Args:
        palette: [P, 3] colours.
        choice: [B, T] int64 index into the palette.

    Returns:
        [B, T, 3] float32, not clipped (docs/published_runs.md, "Main task").
    """
    colors = palette[choice]
    return colors + COLOR_NOISE_STD * torch.randn(colors.shape, generator=generator)


def compose(pixels: Tensor, images_BT: Tensor, colors_BT3: Tensor, normalise: bool = True) -> Tensor:
    """Pictures of scenes: every tile is grey value times colour, then ImageNet mean/std normalisation.

    One gather and one fused multiply-add per tile, written straight into the canvas: with a = colour / std
    and b = -mean / std, a pixel is grey * a + b.

    Args:
        pixels: [n, 1 or 3, S, S] uint8 bank on the device of the result.
        images_BT: [B, 4] int64 bank indices.
        colors_BT3: [B, 4, 3] float32.
        normalise: False gives the colours in [0, 1] (before noise), for pictures made for people.

    Returns:
        [B, 3, 2S, 2S], of the type of the colours (the trainer's precision decides it).
    """
    side = pixels.shape[-1]
    device = pixels.device
    dtype = colors_BT3.dtype
    numbers = (IMAGENET_MEAN, IMAGENET_STD) if normalise else ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    # Copied without blocking: to make them on a GPU directly, the CPU would wait for it.
    mean, std = (torch.tensor(values, dtype=dtype).to(device, non_blocking=True) for values in numbers)
    gain_BT3 = colors_BT3 / (255.0 * std)
    bias = (-mean / std).view(1, 3, 1, 1)
    canvas = torch.empty(len(images_BT), 3, 2 * side, 2 * side, device=device, dtype=dtype)
    for tile in range(4):
        grey = pixels.index_select(0, images_BT[:, tile]).to(dtype)
        torch.addcmul(bias, grey, gain_BT3[:, tile, :, None, None], out=place_of(tile, canvas))
    return canvas


def place_of(tile: int, canvas: Tensor) -> Tensor:
    """The part [..., S, S] of a canvas [..., 2S, 2S] that a tile stands on; a view."""
    side = canvas.shape[-1] // 2
    row, column = divmod(tile, 2)
    return canvas[..., row * side : (row + 1) * side, column * side : (column + 1) * side]


def unnormalised(
    pictures: Tensor, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD
) -> Tensor:
    """Pictures [..., 3, H, W] as before normalisation by mean and std: colours in [0, 1], up to noise."""
    centre, spread = (torch.tensor(value, device=pictures.device).view(-1, 1, 1) for value in (mean, std))
    return pictures * spread + centre

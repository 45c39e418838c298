"""Drawn digits and garments, for machines without data and without network.

Shapes: n images, P points, S segments, 784 = 28 x 28 pixels. A class is a few points joined by segments in the
square [-1, 1]^2 (y down). Each image moves the points (slant, size, rotation, place, a jitter of every point),
then draws by the distance of each pixel from the segments: digits as strokes, garments as filled outlines with
stripes and seams.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from lab.console import tell
from lab.datasets.cache import cache, read_arrays, write_arrays
from lab.datasets.seeding import generator_of
from lab.datasets.sources import Images, Split

SIDE = 28
_CHUNK = 256
# Fewer images than this are drawn in a second.
_WORTH_KEEPING = 2_000

Point = tuple[float, float]
Polyline = Sequence[Point]


def _arc(cx: float, cy: float, rx: float, ry: float, start: float, stop: float, points: int = 7) -> list[Point]:
    """Points on an ellipse between two angles in degrees; 0 is right, 90 is down."""
    angles = [math.radians(start + (stop - start) * i / (points - 1)) for i in range(points)]
    return [(cx + rx * math.cos(a), cy + ry * math.sin(a)) for a in angles]


DIGITS: dict[str, list[Polyline]] = {
    "0": [_arc(0, 0, 0.6, 0.9, 0, 360, 13)],
    "1": [[(-0.3, -0.5), (0.05, -0.9), (0.05, 0.9)]],
    "2": [[*_arc(0, -0.45, 0.55, 0.45, 190, 380), (-0.6, 0.9), (0.65, 0.9)]],
    "3": [[*_arc(-0.05, -0.45, 0.5, 0.45, 200, 440), *_arc(-0.05, 0.43, 0.58, 0.47, 280, 510)]],
    "4": [[(0.25, 0.9), (0.25, -0.9), (-0.65, 0.3), (0.65, 0.3)]],
    "5": [[(0.5, -0.9), (-0.4, -0.9), (-0.48, -0.1), *_arc(-0.05, 0.35, 0.58, 0.55, 230, 510)]],
    "6": [[(0.35, -0.9), (-0.25, -0.3), *_arc(0, 0.4, 0.52, 0.5, 180, 540, 10)]],
    "7": [[(-0.6, -0.9), (0.6, -0.9), (-0.1, 0.9)]],
    "8": [_arc(0, -0.45, 0.45, 0.45, 90, 450, 10), _arc(0, 0.45, 0.55, 0.47, -90, 270, 10)],
    "9": [[*_arc(0, -0.4, 0.52, 0.5, 0, 360, 10), (0.45, 0.2), (0.2, 0.9)]],
}

# Outline, then seams that are drawn dark on it.
GARMENTS: dict[str, tuple[list[Polyline], list[Polyline]]] = {
    "T-shirt": (
        [[(-0.3, -0.8), (0, -0.68), (0.3, -0.8), (0.9, -0.5), (0.72, -0.1), (0.48, -0.25), (0.48, 0.85),
          (-0.48, 0.85), (-0.48, -0.25), (-0.72, -0.1), (-0.9, -0.5)]],
        [],
    ),
    "trousers": (
        [[(-0.42, -0.9), (0.42, -0.9), (0.52, 0.9), (0.14, 0.9), (0, -0.25), (-0.14, 0.9), (-0.52, 0.9)]],
        [[(-0.4, -0.72), (0.4, -0.72)]],
    ),
    "pullover": (
        [[(-0.3, -0.8), (0.3, -0.8), (0.62, -0.68), (0.9, 0.72), (0.62, 0.8), (0.46, -0.1), (0.46, 0.8),
          (-0.46, 0.8), (-0.46, -0.1), (-0.62, 0.8), (-0.9, 0.72), (-0.62, -0.68)]],
        [],
    ),
    "dress": (
        [[(-0.22, -0.9), (-0.1, -0.65), (0.1, -0.65), (0.22, -0.9), (0.22, -0.1), (0.6, 0.9),
          (-0.6, 0.9), (-0.22, -0.1)]],
        [[(-0.2, -0.1), (0.2, -0.1)]],
    ),
    "coat": (
        [[(-0.35, -0.9), (0.35, -0.9), (0.66, -0.72), (0.88, 0.55), (0.64, 0.6), (0.5, -0.1), (0.58, 0.95),
          (-0.58, 0.95), (-0.5, -0.1), (-0.64, 0.6), (-0.88, 0.55), (-0.66, -0.72)]],
        [[(0, -0.5), (0, 0.95)], [(-0.35, -0.9), (0, -0.45), (0.35, -0.9)]],
    ),
    "sandal": (
        [[(-0.9, 0.62), (-0.88, 0.42), (0.2, 0.5), (0.9, 0.42), (0.92, 0.66)],
         [(-0.7, 0.46), (-0.42, -0.2), (-0.28, -0.16), (-0.5, 0.46)],
         [(0.1, 0.5), (0.42, 0.02), (0.56, 0.08), (0.34, 0.5)],
         [(-0.4, -0.18), (0.48, 0.02), (0.46, 0.16), (-0.36, -0.04)]],
        [],
    ),
    "shirt": (
        [[(-0.3, -0.85), (0, -0.6), (0.3, -0.85), (0.66, -0.68), (0.9, 0.3), (0.64, 0.4), (0.46, -0.2), (0.46, 0.88),
          (-0.46, 0.88), (-0.46, -0.2), (-0.64, 0.4), (-0.9, 0.3), (-0.66, -0.68)]],
        [[(0, -0.6), (0, -0.45)], [(0, -0.2), (0, -0.05)], [(0, 0.2), (0, 0.35)], [(0, 0.6), (0, 0.75)]],
    ),
    "sneaker": (
        [[(-0.9, 0.6), (-0.92, 0.0), (-0.5, -0.08), (-0.1, 0.0), (0.4, 0.22), (0.9, 0.32), (0.95, 0.6)]],
        [[(-0.9, 0.42), (0.93, 0.45)], [(-0.1, 0.02), (-0.2, 0.25)], [(0.12, 0.12), (0.02, 0.32)]],
    ),
    "bag": (
        [[(-0.75, -0.15), (0.75, -0.15), (0.85, 0.8), (-0.85, 0.8)],
         [*_arc(0, -0.15, 0.42, 0.6, 180, 360, 6), *_arc(0, -0.15, 0.3, 0.46, 360, 180, 6)]],
        [[(-0.76, 0.12), (0.77, 0.12)]],
    ),
    "ankle boot": (
        [[(-0.75, 0.8), (-0.7, -0.85), (0.05, -0.85), (0.1, -0.1), (0.85, 0.3), (0.92, 0.8), (-0.2, 0.8), (-0.25, 0.66),
          (-0.4, 0.66), (-0.42, 0.8)]],
        [[(-0.7, -0.62), (0.06, -0.62)]],
    ),
}  # fmt: skip


class DrawnDigits:
    """Ten drawn digit classes, 28 x 28 grey, the same for the same seed.

    Args:
        seed: of all that varies; train and test split differ.
        train_size: images in the train split, at least ten; classes are equally large, or differ by one image.
        test_size: images in the test split, likewise.
    """

    kind: Literal["digits", "garments"] = "digits"

    def __init__(
        self,
        seed: int = 0,
        train_size: Annotated[int, Field(ge=10, le=10_000_000)] = 20_000,
        test_size: Annotated[int, Field(ge=10, le=10_000_000)] = 4_000,
    ) -> None:
        self.seed = seed
        self.sizes: dict[Split, int] = {"train": train_size, "test": test_size}

    def load(self, split: Split) -> Images:
        """All images of a split; a large split is drawn once, and kept in the user's cache."""
        size = self.sizes[split]
        if size < _WORTH_KEEPING:
            return self._drawn(split)
        path = cache() / "drawn" / f"{self.kind}-{split}-{size}-{self._digest()}.npz"
        kept = read_arrays(path)
        if kept is not None:
            with suppress(KeyError, TypeError, ValueError):
                images = Images(torch.from_numpy(kept["pixels"]), torch.from_numpy(kept["labels"]), self._names())
                if len(images.labels) == size:
                    return images
        what = f"{size:,} {self.kind} to {split} on"
        if os.path.exists(path):  # False where it may not be looked at
            tell(f"{path} cannot be read: drawing {what} again")
        else:
            tell(f"drawing {what}, once: they are kept in {path.parent}")
        images = self._drawn(split)
        write_arrays(path, {"pixels": images.pixels.numpy(), "labels": images.labels.numpy()})
        return images

    def _digest(self) -> str:
        """Digest of all that the images follow from: the seed, this file, and how PyTorch rounds on this machine."""
        here = (self.seed, torch.__version__, torch.backends.cpu.get_cpu_capability())
        digest = hashlib.blake2b(Path(__file__).read_bytes(), digest_size=8)
        digest.update(repr(here).encode())
        return digest.hexdigest()

    def _drawn(self, split: Split) -> Images:
        generator = generator_of("drawn", self.kind, self.seed, split)
        size = self.sizes[split]
        labels = torch.arange(size) % 10
        labels = labels[torch.randperm(size, generator=generator)]
        pixels = torch.empty(size, 1, SIDE, SIDE, dtype=torch.uint8)
        # Class by class, since their numbers of segments differ; in small chunks, which fit into the processor's cache.
        for label in range(10):
            for rows in (labels == label).nonzero()[:, 0].split(_CHUNK):
                pixels[rows] = self._draw(label, len(rows), generator)
        return Images(pixels, labels, self._names())

    def _names(self) -> tuple[str, ...]:
        return tuple(DIGITS)

    def _draw(self, label: int, n: int, generator: torch.Generator) -> Tensor:
        points, strokes = _template(list(DIGITS.values())[label], closed=False)
        (moved,) = _moved([points], n, generator, turn=0.25, slant=0.3, shift=0.24, jitter=0.05)
        width = _uniform(n, generator, 0.05, 0.14)
        distance = _distance(moved, strokes)
        ink = ((width - distance) * SIDE / 2 + 0.5).clamp(0, 1)
        return _printed(ink * _uniform(n, generator, 0.65, 1.0), generator, noise=0.06)


class DrawnGarments(DrawnDigits):
    """Ten drawn garment classes, as :class:`DrawnDigits`; their names are close to Fashion-MNIST's."""

    kind: Literal["digits", "garments"] = "garments"

    def _names(self) -> tuple[str, ...]:
        return tuple(GARMENTS)

    def _draw(self, label: int, n: int, generator: torch.Generator) -> Tensor:
        paths, marks = list(GARMENTS.values())[label]
        cloth_points, outline = _template(paths, closed=True)
        seam_points, seams = _template(marks, closed=False)
        templates = [cloth_points, seam_points]
        cloth_at, seam_at = _moved(templates, n, generator, turn=0.2, slant=0.15, shift=0.18, jitter=0.05)
        flip = torch.where(torch.rand(n, 1, generator=generator) < 0.5, -1.0, 1.0)
        cloth_at[..., 0] *= flip
        seam_at[..., 0] *= flip
        inside = _inside(cloth_at, outline)
        edge = ((0.05 - _distance(cloth_at, outline)) * SIDE / 2 + 0.5).clamp(0, 1)
        dark = ((0.035 - _distance(seam_at, seams)) * SIDE / 2 + 0.5).clamp(0, 1)
        cloth = _uniform(n, generator, 0.3, 0.95) + _stripes(n, generator)
        picture = torch.maximum(inside * cloth, edge * _uniform(n, generator, 0.35, 1.0))
        return _printed(picture * (1 - 0.75 * dark), generator, noise=0.05)


def _template(paths: Sequence[Polyline], closed: bool) -> tuple[Tensor, list[tuple[int, int]]]:
    """Points [P, 2] of the paths and the segments between them, as pairs of indices; P may be 0."""
    table: list[Point] = []
    segments: list[tuple[int, int]] = []
    for path in paths:
        first = len(table)
        table.extend(path)
        segments += [(first + i, first + i + 1) for i in range(len(path) - 1)]
        if closed:
            segments.append((first + len(path) - 1, first))
    return torch.tensor(table).reshape(-1, 2), segments


def _uniform(n: int, generator: torch.Generator, low: float, high: float) -> Tensor:
    """One number an image, [n, 1]."""
    return low + (high - low) * torch.rand(n, 1, generator=generator)


def _moved(
    templates: Sequence[Tensor],
    n: int,
    generator: torch.Generator,
    turn: float,
    slant: float,
    shift: float,
    jitter: float,
) -> list[Tensor]:
    """Each template [P, 2] as [n, P, 2] under the image's one random affine map and a jitter of each point."""

    def between(low: float, high: float) -> Tensor:
        return _uniform(n, generator, low, high)[:, 0]

    angle, shear = between(-turn, turn), between(-slant, slant)
    across, down = between(0.5, 0.85), between(0.55, 0.85)
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    stretch = torch.stack([torch.stack([across, shear * down], -1), torch.stack([torch.zeros(n), down], -1)], -2)
    place = shift * (2 * torch.rand(n, 1, 2, generator=generator) - 1)
    linear = (rotation @ stretch).transpose(-2, -1)
    return [(t + jitter * torch.randn(n, *t.shape, generator=generator)) @ linear + place for t in templates]


def _grid() -> tuple[Tensor, Tensor]:
    """x and y of the pixel centres, each [784], in [-1, 1]."""
    line = (torch.arange(SIDE) + 0.5) / SIDE * 2 - 1
    y, x = torch.meshgrid(line, line, indexing="ij")
    return x.flatten(), y.flatten()


def _distance(points_nP2: Tensor, segments: Sequence[tuple[int, int]]) -> Tensor:
    """Distance of every pixel from the nearest segment, [n, 784]; far away where there is no segment."""
    x, y = _grid()
    nearest = torch.full((len(points_nP2), SIDE * SIDE), 1e4)
    for a, b in segments:
        start, way = points_nP2[:, a], points_nP2[:, b] - points_nP2[:, a]
        way = way / way.square().sum(-1, keepdim=True).clamp_min(1e-8).sqrt()
        length = ((points_nP2[:, b] - start) * way).sum(-1, keepdim=True)
        px, py = x - start[:, :1], y - start[:, 1:]
        # Along the segment, the overshoot beyond its ends; across it, the distance from its line.
        along = px * way[:, :1] + py * way[:, 1:]
        beyond = along.sub_(along.clamp(min=torch.zeros(1), max=length))
        across = px.mul_(way[:, 1:]).sub_(py.mul_(way[:, :1]))
        torch.minimum(nearest, across.square_().addcmul_(beyond, beyond), out=nearest)
    return nearest.sqrt_()


def _inside(points_nP2: Tensor, segments: Sequence[tuple[int, int]]) -> Tensor:
    """1 where a pixel lies inside the outlines by the even-odd rule, else 0, [n, 784]."""
    line = (torch.arange(SIDE) + 0.5) / SIDE * 2 - 1
    crossings = torch.zeros(len(points_nP2), SIDE, SIDE, dtype=torch.bool)
    for a, b in segments:
        ax, ay = points_nP2[:, a].split(1, dim=-1)
        bx, by = points_nP2[:, b].split(1, dim=-1)
        # One crossing per row of pixels: the x where the segment passes it, or one left of everything.
        rise = torch.where((by - ay).abs() < 1e-8, 1.0, by - ay)
        at = torch.where((ay > line) != (by > line), ax + (line - ay) / rise * (bx - ax), -1e4)
        crossings ^= line < at[:, :, None]
    return crossings.float().flatten(1)


def _stripes(n: int, generator: torch.Generator) -> Tensor:
    """A stripe pattern over the cloth, [n, 784]; about half of the images have hardly any."""
    x, y = _grid()
    angle = torch.where(_uniform(n, generator, 0, 1) < 0.5, 0.0, math.pi / 2)
    wave = (x * angle.cos() + y * angle.sin()) * _uniform(n, generator, 4, 16)
    strength = (_uniform(n, generator, -0.25, 0.25)).clamp_min(0)
    return strength * (wave + _uniform(n, generator, 0, 2 * math.pi)).sin()


def _printed(picture: Tensor, generator: torch.Generator, noise: float) -> Tensor:
    """uint8 pixels [n, 1, 28, 28] of grey values in [0, 1], with noise where there is ink and a little elsewhere."""
    grain = noise * torch.randn(picture.shape, generator=generator)
    grey = picture + grain * (0.3 + 0.7 * (picture > 0.05))
    return (grey.clamp(0, 1) * 255).round().to(torch.uint8).view(-1, 1, SIDE, SIDE)

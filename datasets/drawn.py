"""Drawn digits and garments, for machines without data and without network.

Shapes: n images, P points, S segments, 784 = 28 x 28 pixels. A class is a few points joined by segments in the
square [-1, 1]^2 (y down). Each image moves the points (slant, size, rotation, place, a jitter of every point),
then draws by the distance of each pixel from the segments: digits as strokes, garments as filled outlines with
stripes and seams.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from datasets.seeding import generator_of
from datasets.sources import Images, Split

SIDE = 28
_CHUNK = 4096

Point = tuple[float, float]
Path = Sequence[Point]


def _arc(cx: float, cy: float, rx: float, ry: float, start: float, stop: float, points: int = 7) -> list[Point]:
    """Points on an ellipse between two angles in degrees; 0 is right, 90 is down."""
    angles = [math.radians(start + (stop - start) * i / (points - 1)) for i in range(points)]
    return [(cx + rx * math.cos(a), cy + ry * math.sin(a)) for a in angles]


DIGITS: dict[str, list[Path]] = {
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
GARMENTS: dict[str, tuple[list[Path], list[Path]]] = {
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
        train_size: images in the train split, as many of each class as of another.
        test_size: images in the test split.

    Raises:
        ValueError: if a size is smaller than the ten classes.
    """

    kind: Literal["digits", "garments"] = "digits"

    def __init__(self, seed: int = 0, train_size: int = 20_000, test_size: int = 4_000) -> None:
        for name, value in (("train_size", train_size), ("test_size", test_size)):
            if value < 10:
                raise ValueError(f"data.source.{self.kind}.{name} must be at least 10, one image a class, got {value}")
        self.seed = seed
        self.sizes: dict[Split, int] = {"train": train_size, "test": test_size}

    def load(self, split: Split) -> Images:
        """All images of a split, drawn now."""
        generator = generator_of("drawn", self.kind, self.seed, split)
        size = self.sizes[split]
        labels = torch.arange(size) % 10
        labels = labels[torch.randperm(size, generator=generator)]
        pixels = torch.cat([self._draw(part, generator) for part in labels.split(_CHUNK)])
        return Images(pixels, labels, self._names())

    def _names(self) -> tuple[str, ...]:
        return tuple(DIGITS)

    def _draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        paths: list[tuple[list[Path], list[Path]]] = [(strokes, []) for strokes in DIGITS.values()]
        points, strokes, _ = _templates(paths, closed=False)
        moved = _moved(points[labels], generator, slant=0.3, shift=0.22, jitter=0.05)
        width = _uniform(labels, generator, 0.05, 0.14)
        distance = _distance(moved, strokes[labels])
        ink = ((width - distance) * SIDE / 2 + 0.5).clamp(0, 1)
        return _printed(ink * _uniform(labels, generator, 0.65, 1.0), generator, noise=0.06)


class DrawnGarments(DrawnDigits):
    """Ten drawn garment classes, as :class:`DrawnDigits`; their names are close to Fashion-MNIST's."""

    kind: Literal["digits", "garments"] = "garments"

    def _names(self) -> tuple[str, ...]:
        return tuple(GARMENTS)

    def _draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        points, outline, seams = _templates(list(GARMENTS.values()), closed=True)
        moved = _moved(points[labels], generator, slant=0.12, shift=0.14, jitter=0.05)
        flip = torch.where(torch.rand(len(labels), generator=generator) < 0.5, -1.0, 1.0)
        moved[..., 0] *= flip[:, None]
        inside = _inside(moved, outline[labels])
        edge = ((0.05 - _distance(moved, outline[labels])) * SIDE / 2 + 0.5).clamp(0, 1)
        dark = ((0.035 - _distance(moved, seams[labels])) * SIDE / 2 + 0.5).clamp(0, 1)
        cloth = _uniform(labels, generator, 0.3, 0.95) + _stripes(labels, generator)
        picture = torch.maximum(inside * cloth, edge * _uniform(labels, generator, 0.35, 1.0))
        return _printed(picture * (1 - 0.75 * dark), generator, noise=0.05)


def _templates(classes: Sequence[tuple[Sequence[Path], Sequence[Path]]], closed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Points [10, P, 2] and the point indices [10, S, 2] of outline and seams, padded with a point's own."""
    tables: list[list[Point]] = []
    outlines: list[list[tuple[int, int]]] = []
    details: list[list[tuple[int, int]]] = []
    for paths, seams in classes:
        table: list[Point] = []
        outlines.append(_joined(paths, table, closed))
        # A class without seams gets one far outside, which darkens nothing.
        details.append(_joined(seams or [[(9.0, 9.0), (9.0, 9.0)]], table, closed=False))
        tables.append(table)
    size = max(map(len, tables))
    points = torch.tensor([table + [table[0]] * (size - len(table)) for table in tables])
    return points, _padded(outlines), _padded(details)


def _joined(paths: Sequence[Path], table: list[Point], closed: bool) -> list[tuple[int, int]]:
    """Adds the points of paths to a table; the segments between them, as indices."""
    segments = []
    for path in paths:
        first = len(table)
        table.extend(path)
        segments += [(first + i, first + i + 1) for i in range(len(path) - 1)]
        if closed:
            segments.append((first + len(path) - 1, first))
    return segments


def _padded(segments: list[list[tuple[int, int]]]) -> Tensor:
    size = max(map(len, segments))
    return torch.tensor([rows + [(rows[0][0], rows[0][0])] * (size - len(rows)) for rows in segments])


def _uniform(labels: Tensor, generator: torch.Generator, low: float, high: float) -> Tensor:
    """One number an image, [n, 1]."""
    return low + (high - low) * torch.rand(len(labels), 1, generator=generator)


def _moved(points_nP2: Tensor, generator: torch.Generator, slant: float, shift: float, jitter: float) -> Tensor:
    """Points under a random affine map and a jitter of each point."""
    n = len(points_nP2)

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=generator)

    angle, shear = between(-0.2, 0.2), between(-slant, slant)
    across, down = between(0.5, 0.85), between(0.55, 0.85)
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    zero = torch.zeros(n)
    stretch = torch.stack([torch.stack([across, shear * down], -1), torch.stack([zero, down], -1)], -2)
    place = shift * (2 * torch.rand(n, 1, 2, generator=generator) - 1)
    wobble = jitter * torch.randn(points_nP2.shape, generator=generator)
    return (points_nP2 + wobble) @ (rotation @ stretch).transpose(-2, -1) + place


def _grid() -> tuple[Tensor, Tensor]:
    """x and y of the pixel centres, each [784], in [-1, 1]."""
    line = (torch.arange(SIDE) + 0.5) / SIDE * 2 - 1
    y, x = torch.meshgrid(line, line, indexing="ij")
    return x.flatten(), y.flatten()


def _ends(points_nP2: Tensor, segments_nS2: Tensor) -> tuple[Tensor, Tensor]:
    n, S = segments_nS2.shape[:2]
    ends = points_nP2.gather(1, segments_nS2.reshape(n, 2 * S, 1).expand(-1, -1, 2)).view(n, S, 2, 2)
    return ends[:, :, 0], ends[:, :, 1]


def _distance(points_nP2: Tensor, segments_nS2: Tensor) -> Tensor:
    """Distance of every pixel from the nearest segment, [n, 784]. A loop over segments keeps memory small."""
    x, y = _grid()
    start, stop = _ends(points_nP2, segments_nS2)
    way = stop - start
    length = way.square().sum(-1).clamp_min(1e-8)
    nearest = torch.full((len(points_nP2), SIDE * SIDE), math.inf)
    for s in range(segments_nS2.shape[1]):
        px, py = x - start[:, s, :1], y - start[:, s, 1:]
        dx, dy = way[:, s, :1], way[:, s, 1:]
        along = ((px * dx + py * dy) / length[:, s, None]).clamp_(0, 1)
        nearest = torch.minimum(nearest, (px - along * dx).square_().add_((py - along * dy).square_()))
    return nearest.sqrt_()


def _inside(points_nP2: Tensor, segments_nS2: Tensor) -> Tensor:
    """1 where a pixel lies inside the outlines by the even-odd rule, else 0, [n, 784]."""
    x, y = _grid()
    start, stop = _ends(points_nP2, segments_nS2)
    crossings = torch.zeros(len(points_nP2), SIDE * SIDE, dtype=torch.bool)
    for s in range(segments_nS2.shape[1]):
        ax, ay = start[:, s, :1], start[:, s, 1:]
        bx, by = stop[:, s, :1], stop[:, s, 1:]
        straddles = (ay > y) != (by > y)
        rise = torch.where((by - ay).abs() < 1e-8, 1.0, by - ay)
        crossings ^= straddles & (x < ax + (y - ay) / rise * (bx - ax))
    return crossings.float()


def _stripes(labels: Tensor, generator: torch.Generator) -> Tensor:
    """A stripe pattern over the cloth, [n, 784]; about half of the images have hardly any."""
    x, y = _grid()
    angle = torch.where(_uniform(labels, generator, 0, 1) < 0.5, 0.0, math.pi / 2)
    wave = (x * angle.cos() + y * angle.sin()) * _uniform(labels, generator, 4, 16)
    strength = (_uniform(labels, generator, -0.25, 0.25)).clamp_min(0)
    return strength * (wave + _uniform(labels, generator, 0, 2 * math.pi)).sin()


def _printed(picture: Tensor, generator: torch.Generator, noise: float) -> Tensor:
    """uint8 pixels [n, 1, 28, 28] of grey values in [0, 1], with noise where there is ink and a little elsewhere."""
    grain = noise * torch.randn(picture.shape, generator=generator)
    grey = picture + grain * (0.3 + 0.7 * (picture > 0.05))
    return (grey.clamp(0, 1) * 255).round().to(torch.uint8).view(-1, 1, SIDE, SIDE)

"""Images by name: MNIST, Fashion-MNIST and other data sets of torchvision with classes."""

from __future__ import annotations

import filecmp
import inspect
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torchvision
from filelock import FileLock
from torch import Tensor
from torchvision.datasets.mnist import read_sn3_pascalvincent_tensor

from lab.datasets.scenes import LabelledImages

Split = Literal["train", "test"]
Interpolation = Literal["area", "bilinear"]

# What torchvision raises over a missing, short or garbled file.
_UNREADABLE = (OSError, RuntimeError, ValueError, TypeError, AssertionError, IndexError, KeyError, EOFError)


@runtime_checkable
class Source(Protocol):
    """A named set of images with a train and a test split."""

    def load(self, split: Split) -> LabelledImages: ...


@dataclass(frozen=True)
class Images:
    """Images of one split.

    Attributes:
        pixels: [n, C, H, W] uint8, C = 1 or 3.
        labels: [n] int64.
        class_names: names by label.
        interpolation: how they shrink to a tile, "area" or "bilinear" (with antialiasing, as PIL does).
    """

    pixels: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    interpolation: Interpolation = "area"

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4 or self.pixels.shape[1] not in (1, 3):
            raise ValueError(
                f"pixels must be uint8 of shape [n, 1 or 3, H, W], got {self.pixels.dtype} {list(self.pixels.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise ValueError(
                f"labels must be int64 of shape [{len(self.pixels)}], got {self.labels.dtype} {list(self.labels.shape)}"
            )
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.class_names):
            raise ValueError(f"labels must lie in 0 ... {len(self.class_names) - 1}, one for each class name")
        if self.interpolation not in ("area", "bilinear"):
            raise ValueError(f"interpolation must be area or bilinear, got {self.interpolation!r}")


class TorchvisionSource:
    """A data set of torchvision with ``train`` and ``download`` arguments: MNIST, FashionMNIST, CIFAR10, ...

    Args:
        name: class in ``torchvision.datasets``.
        root: folder that holds, or will hold, the data in torchvision's layout.
        download: fetch what is missing; existing files are never written again.
        interpolation: how images shrink to a tile, "area" or "bilinear".
        way_out: advice for the error message where the images cannot be had.

    Raises:
        ValueError: if torchvision has no such data set.
    """

    def __init__(
        self,
        name: str,
        root: str,
        download: bool = False,
        interpolation: Interpolation = "area",
        way_out: str = "use drawn images with data/source=drawn",
    ) -> None:
        found = getattr(torchvision.datasets, name, None)
        if not (inspect.isclass(found) and issubclass(found, torchvision.datasets.VisionDataset)):
            raise ValueError(f"torchvision.datasets has no {name!r}; it has MNIST and FashionMNIST, for example")
        takes = inspect.signature(found).parameters.values()
        needs = {one.name for one in takes if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD}
        if needs != {"root"} or not {"train", "download"} <= {one.name for one in takes}:
            raise ValueError(
                f"torchvision.datasets.{name} does not load a train and a test split by root, train and download: "
                "MNIST, FashionMNIST and CIFAR10 do"
            )
        self.name = name
        self.root = Path(root).expanduser()
        self.download = download
        self.interpolation = interpolation
        self.way_out = way_out

    def load(self, split: Split) -> Images:
        """All images of a split.

        Raises:
            FileNotFoundError: if they are not there and may not, or could not, be downloaded.
            ValueError: if the split is neither train nor test, the files are damaged, or the classes have no names.
        """
        if split not in ("train", "test"):
            raise ValueError(f"split must be train or test, got {split!r}")
        make = getattr(torchvision.datasets, self.name)
        train = split == "train"
        try:
            data = make(str(self.root), train=train, download=False)
        except _UNREADABLE as missing:
            if "not found" not in str(missing).lower():
                raise self._damaged(split, _line(missing)) from missing
            if not self.download:
                folder = self.root / getattr(make, "base_folder", self.name)
                if packed := sorted(folder.glob("raw/*.gz")):
                    raise FileNotFoundError(
                        f"the files of {self.name} are packed: unpack them with gunzip {packed[0].parent}/*.gz"
                    ) from missing
                part = folder.is_dir()
                raise FileNotFoundError(
                    f"no {'whole ' * part}{self.name} in {self.root.absolute()}: name the folder with paths.data, let "
                    f"the lab download it with data.source.digits.download=true, or {self.way_out}"
                ) from missing
            data = self._fetched(make, train)
        if not hasattr(data, "classes"):
            raise ValueError(f"torchvision.datasets.{self.name} does not name its classes: MNIST and CIFAR10 do")
        try:
            images = replace(_as_images(data), interpolation=self.interpolation)
        except _UNREADABLE as error:
            raise self._damaged(split, _line(error)) from error
        if not images.pixels.any():
            raise self._damaged(split, "every pixel of its images is 0")
        return images

    def _damaged(self, split: Split, why: str) -> ValueError:
        """The error that names the unreadable files of a split; if all are readable, those that ``why`` is about."""
        raw = self.root.absolute() / self.name / "raw"
        files = sorted(raw.glob(f"{'train' if split == 'train' else 't10k'}-*-ubyte"))
        about = "labels" if why.startswith("labels") else "images"
        named = [file for file in files if not _reads(file)] or [file for file in files if about in file.name]
        where = " and ".join(map(str, named)) or f"{self.name} in {self.root.absolute()}"
        return ValueError(f"{where} is damaged ({why}): delete it and copy or download it again, or {self.way_out}")

    def _fetched(self, make: Callable[..., _TorchvisionData], train: bool) -> _TorchvisionData:
        found: list[_TorchvisionData] = []

        def is_there() -> bool:
            with suppress(RuntimeError):
                found.append(make(str(self.root), train=train, download=False))
            return bool(found)

        way_out = f"in torchvision's layout, or {self.way_out}"
        fetch_files(self.root, self.name, lambda to: make(to, train=True, download=True), is_there, "*", way_out)
        return found[0]


def fetch_files(
    root: Path, name: str, download: Callable[[str], object], is_there: Callable[[], bool], keep: str, way_out: str
) -> None:
    """Downloads into a folder of its own, then moves whole files: a killed download leaves no half files in place.

    Args:
        root: folder of the data; it is created if it is missing.
        name: of the data, in messages.
        download: fetches the data into a folder.
        is_there: tells whether the data is there; called while no other process downloads.
        keep: pattern of the names of the files that are kept.
        way_out: where to put the files by hand, and what else can be done.

    Raises:
        FileNotFoundError: if the data cannot be downloaded.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Processes that start together wait for the first one's download, and then find it there.
        with FileLock(root / f".{name}.lock"):
            if is_there():
                return
            found = []
            for left in root.glob(f".{name}-*"):  # of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            with TemporaryDirectory(prefix=f".{name}-", dir=root) as folder:
                download(folder)
                for file in sorted(path for path in Path(folder).rglob(keep) if path.is_file()):
                    target = root / file.relative_to(folder)
                    if target.exists():
                        if not filecmp.cmp(file, target, shallow=False):
                            found.append(target)
                        continue
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(file, target)
            if not is_there():
                there = f"{', '.join(map(str, found))} lay there before and may be damaged: move it away"
                raise OSError(there if found else "a part of it is missing")
    except (HTTPException, *_UNREADABLE) as error:
        raise FileNotFoundError(
            f"{name} could not be downloaded to {root.absolute()} ({_line(error)}): put it there by hand {way_out}"
        ) from error


def _reads(path: Path) -> bool:
    """Tells whether an IDX file is whole, and holds as many dimensions as its name says (``idx3``: images)."""
    try:
        found = read_sn3_pascalvincent_tensor(str(path))
    except _UNREADABLE:
        return False
    return f"idx{found.ndim}-" in path.name


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or "it is of another format"


class _TorchvisionData(Protocol):
    """A data set of torchvision in memory, as MNIST and CIFAR are."""

    data: Any
    targets: Any
    classes: Sequence[str]


def _as_images(data: _TorchvisionData) -> Images:
    pixels = torch.as_tensor(data.data)
    # MNIST and its kin are [n, H, W], CIFAR is [n, H, W, 3].
    pixels = pixels.unsqueeze(1) if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
    labels = torch.as_tensor(data.targets, dtype=torch.int64)
    return Images(pixels.contiguous(), labels, tuple(data.classes))

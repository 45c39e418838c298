"""Images from a folder: <root>/<split>/<class>/<image>, any format that Pillow reads."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image, UnidentifiedImageError
from torchvision.datasets.folder import is_image_file
from torchvision.transforms.functional import pil_to_tensor

from lab.datasets.sizes import Size
from lab.datasets.sources import Images, Interpolation, Split


class FolderSource:
    """Small colour images of one folder, all in memory at one size.

    Args:
        root: folder that holds ``train/<class>/`` and ``test/<class>/``.
        size: side in pixels that images are brought to.
        name: what the images are called in messages.
        interpolation: how they shrink to a tile, "area" or "bilinear".
        way_out: further advice where the folder is missing.
    """

    def __init__(
        self,
        root: str,
        size: Size = 32,
        name: str = "images",
        interpolation: Interpolation = "bilinear",
        way_out: str = "",
    ) -> None:
        self.root = Path(root).expanduser()
        self.size = size
        self.name = name
        self.interpolation = interpolation
        self.way_out = way_out

    def load(self, split: Split) -> Images:
        """All images of a split.

        Raises:
            FileNotFoundError: if the folder, or a class folder in it, is not there.
            ValueError: if a file is no image.
        """
        folder = self.root / split
        if not folder.is_dir():
            advice = f", or {self.way_out}" if self.way_out else ""
            raise FileNotFoundError(
                f"no {self.name} in {folder.absolute()}: put images there as <class>/<image>, "
                f"name another folder{advice}"
            )
        found = image_folder(folder, self.name)
        resize = torchvision.transforms.Resize((self.size, self.size), antialias=True)
        pixels = torch.empty(len(found), 3, self.size, self.size, dtype=torch.uint8)
        for index, (path, _) in enumerate(found.samples):
            image = read_image(found.loader, path)
            pixels[index] = pil_to_tensor(image if image.size == (self.size, self.size) else resize(image))
        labels = torch.tensor(found.targets, dtype=torch.int64)
        return Images(pixels, labels, tuple(found.classes), self.interpolation)


def image_folder(folder: Path, name: str) -> torchvision.datasets.ImageFolder:
    """The images of a folder by their classes, each read as RGB of 8 bits a channel.

    Args:
        folder: holds ``<class>/<image>``.
        name: what the images are called in messages.

    Raises:
        FileNotFoundError: if a class has no images, or there is no class.
    """
    try:
        return torchvision.datasets.ImageFolder(str(folder), loader=rgb)
    except FileNotFoundError as error:
        packed, loose = sorted(folder.glob("*.tar")), sum(is_image_file(path.name) for path in folder.iterdir())
        hint = f"; unpack {packed[0].name} and the like into folders of their names" if packed else ""
        hint += f"; {loose:,} images there are in no class's folder" if loose else ""
        raise FileNotFoundError(
            f"{name} in {folder.absolute()}: {error} Put images there as <class>/<image>{hint}"
        ) from error


def rgb(path: str) -> Image.Image:
    """The image in a file, in RGB of 8 bits a channel."""
    with open(path, "rb") as file:
        return in_8_bit(Image.open(file)).convert("RGB")


def in_8_bit(image: Image.Image) -> Image.Image:
    """The image, greys of 16 bit by their upper 8: Pillow would make all of them white that are above 255.

    Raises:
        ValueError: if it has 32 bits a pixel.
    """
    # Pillow reads the greys of 16 bit of a .pgm as numbers of 32.
    if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PPM"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"it has more than 16 bits a pixel (mode {image.mode}): save it with 8")
    return image


def read_image(load: Callable[[str], Image.Image], path: str) -> Image.Image:
    """The image in a file.

    Raises:
        ValueError: if the file is no image, or damaged.
    """
    try:
        return load(path)
    # Pillow's readers have no common error of their own.
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
        why = "it holds none" if isinstance(error, UnidentifiedImageError) else error
        raise ValueError(f"{path} cannot be read as an image: {why}") from error

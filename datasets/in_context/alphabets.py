"""Alphabets: where handwritten characters come from, as Omniglot has them."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import torch
import torchvision
from PIL import Image
from torch import Tensor
from torchvision.datasets.folder import is_image_file
from torchvision.transforms.functional import pil_to_tensor

from lab.datasets.folder import in_8_bit, read_image
from lab.datasets.sources import fetch_files

# Bytes that a drawing within a zip file may unpack to; Omniglot's have 300.
_LARGEST = 2**24

# Of Omniglot, and what can be done without them.
_CHARACTERS, _DRAWINGS = 1623, 20
_WAYS = (
    "let the lab download it with data.alphabets.download=true, name the folder that holds omniglot-py with "
    "data.alphabets.root, or take a folder of alphabets with data/alphabets=folder"
)

# Name of a file in messages, and what reads it.
_File = tuple[str, Callable[[], bytes]]


@dataclass(frozen=True)
class Drawings:
    """Drawings of characters.

    Attributes:
        pixels: [C, D, S, S] uint8, white paper is 255; a character with fewer than D drawings ends in empty ones.
        counts: drawings of each character, [C] int64.
        names: of the characters, ``Greek/01``.
    """

    pixels: Tensor
    counts: Tensor
    names: tuple[str, ...]


class Alphabets:
    """A folder that holds ``<alphabet>/<character>/<drawing>.png`` at any depth, also within zip files.

    Other endings of images will do, those of :mod:`lab.datasets.folder`. A drawing that lies in two places counts once:
    Omniglot's small sets share Greek and Latin.

    Args:
        root: the folder.
    """

    def __init__(self, root: str) -> None:
        self.root = Path(root).expanduser()

    def load(self, size: int, check: Callable[[int, int], None] = lambda characters, most: None) -> Drawings:
        """All drawings, shrunk to ``size`` pixels by means of whole pixels; characters in the order of their names.

        Args:
            size: side of a drawing in pixels.
            check: called before any drawing is read, with the numbers of characters and of the most drawings of one; it
                may raise an error.

        Raises:
            FileNotFoundError: if there is no drawing.
            ValueError: if a file is damaged.
        """
        with ExitStack() as opened:
            files: dict[tuple[str, ...], _File] = {}
            for key, file in self._files(opened):
                files.setdefault(key, file)
            if not files:
                raise FileNotFoundError(self._missing())
            characters: dict[str, list[_File]] = {}
            for (alphabet, character, _), file in sorted(files.items()):
                characters.setdefault(f"{alphabet}/{character.removeprefix('character')}", []).append(file)
            most = max(map(len, characters.values()))
            check(len(characters), most)
            pixels = torch.zeros(len(characters), most, size, size, dtype=torch.uint8)
            for own, drawings in zip(pixels, characters.values(), strict=True):
                for place, (where, read) in enumerate(drawings):
                    own[place] = pil_to_tensor(read_image(partial(_grey, read, size), where))[0]
        return Drawings(pixels, torch.tensor([len(own) for own in characters.values()]), tuple(characters))

    def _files(self, opened: ExitStack) -> Iterator[tuple[tuple[str, ...], _File]]:
        """Yields ((alphabet, character, drawing), file) of every drawing, in a fixed order; zip files stay open."""
        found = sorted(path for path in self.root.rglob("*") if is_image_file(path.name))
        pictures = {path: path.relative_to(self.root).parts for path in found}
        # Where no picture lies three levels deep, the folder is one alphabet; otherwise those higher up are skipped.
        above = () if any(len(parts) > 2 for parts in pictures.values()) else (self.root.absolute().name,)
        for path, parts in pictures.items():
            if len(own := (*above, *parts)) > 2:
                yield own[-3:], (str(path), path.read_bytes)
        for path in sorted(self.root.rglob("*.zip")):
            try:
                archive = opened.enter_context(zipfile.ZipFile(path))
            except (zipfile.BadZipFile, OSError) as error:
                raise ValueError(f"{path} cannot be read as a zip file ({error}): replace it") from error
            for member in archive.infolist():
                parts = (path.stem, *PurePosixPath(member.filename).parts)
                # macOS packs shadow copies of files into __MACOSX.
                if not is_image_file(member.filename) or len(parts) < 3 or "__MACOSX" in parts:
                    continue
                if member.file_size > _LARGEST:
                    raise ValueError(f"{path}:{member.filename} has {member.file_size:,} bytes, too many for a drawing")
                yield parts[-3:], (f"{path}:{member.filename}", partial(archive.read, member))

    def _missing(self) -> str:
        """The sentence that says what to do where no drawing is found."""
        return (
            f"no image <alphabet>/<character>/<drawing> in {self.root.absolute()}, nor in a zip file there: put "
            "Omniglot's there, or name another folder with data.alphabets.root"
        )


class TorchvisionAlphabets(Alphabets):
    """All 50 alphabets of Omniglot, background and evaluation: 1,623 characters of 20 drawings.

    Source: Lake et al. 2015.

    Args:
        root: folder that holds, or will hold, torchvision's ``omniglot-py``.
        download: fetch what is missing (the zip files, which are read as they are).
    """

    def __init__(self, root: str, download: bool = False) -> None:
        super().__init__(str(Path(root) / torchvision.datasets.Omniglot.folder))
        self.download = download

    def load(self, size: int, check: Callable[[int, int], None] = lambda characters, most: None) -> Drawings:
        """Loads as :class:`Alphabets` does, after a download where it is needed and allowed.

        Raises:
            FileNotFoundError: if drawings are not there and may not, or could not, be downloaded.
            ValueError: if a file is damaged.
        """
        if self.download and not self._is_there():
            fetch_files(self.root.parent, "Omniglot", _download, self._is_there, "*.zip", "in torchvision's layout")
        found = super().load(size, check)
        if len(found.names) < _CHARACTERS or int(found.counts.min()) < _DRAWINGS:
            raise ValueError(
                f"Omniglot in {self.root.absolute()} is not whole: {int(found.counts.sum()):,} drawings of "
                f"{len(found.names):,} characters, in place of {_DRAWINGS} of each of {_CHARACTERS:,}; move what is "
                f"there away and {_WAYS}"
            )
        return found

    def _is_there(self) -> bool:
        # Each part is a zip file, or the folder that it was unpacked to; Omniglot's small sets do not count.
        unpacked = [self.root / part for part in ("images_background", "images_evaluation")]
        return all(one.with_suffix(".zip").exists() or (one.is_dir() and any(one.iterdir())) for one in unpacked)

    def _missing(self) -> str:
        return f"no Omniglot in {self.root.absolute()}: {_WAYS}"


def _download(folder: str) -> None:
    for background in (True, False):
        torchvision.datasets.Omniglot(folder, background=background, download=True)


def _grey(read: Callable[[], bytes], size: int, _name: str) -> Image.Image:
    try:
        content = read()
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise OSError(str(error)) from error
    image = in_8_bit(Image.open(io.BytesIO(content)))
    if "A" in image.getbands() or "transparency" in image.info:
        # Transparent paper is white; convert("L") alone would show the colour below, mostly black.
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    # BOX is the mean of whole pixels.
    return image.convert("L").resize((size, size), Image.Resampling.BOX)

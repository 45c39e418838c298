"""Tokens of a corpus by a byte-level BPE trained on it; both are kept in the user's cache, by content."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from lab.console import first_line, tell
from lab.datasets.cache import cache
from lab.datasets.text.corpus import Corpus, Split
from lab.datasets.text.library import library

# As RoBERTa has them, in the order of their numbers.
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
START, END, MASK = (SPECIAL.index(token) for token in ("<s>", "</s>", "<mask>"))

# Part of the cache's key: raised whenever the kept files change.
_VERSION = 3
# Documents that are tokenised at once, side by side on all cores.
_AT_ONCE = 1000
_TOKENIZER, _SUMS = "tokenizer.json", "sums.json"
_SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True)
class Tokens:
    """Holds a tokenised corpus.

    Attributes:
        vocabulary: number of tokens that there are; fewer than asked for where the corpus is small.
        streams: split -> token numbers of all its documents, each ended by ``</s>``; read from disk as they are used.
        tokenizer: the tokeniser that made them, of the library ``tokenizers``.
    """

    vocabulary: int
    streams: dict[Split, NDArray[Any]]
    tokenizer: Any

    def words(self, tokens: Iterable[int]) -> list[str]:
        """Each token as text, special ones by their names."""
        return [self.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]

    def encode(self, text: str) -> list[int]:
        """Tokens of any other text."""
        return self.tokenizer.encode(text).ids


def tokenised(corpus: Corpus, vocabulary: int) -> Tokens:
    """Tokens of a corpus, from the cache where they are known.

    Args:
        corpus: its training documents train the tokeniser.
        vocabulary: size of the byte-level BPE, special tokens included.

    Raises:
        ValueError: if ``tokenizers`` is not installed, or the cache is damaged or cannot be written.
    """
    tokenizers = library("tokenizers")
    name = hashlib.blake2b(repr((_VERSION, vocabulary, corpus.identity())).encode(), digest_size=16).hexdigest()
    folder = cache() / "text" / name
    with _writing(folder.parent):
        there = folder.is_dir()
        folder.parent.mkdir(parents=True, exist_ok=True)
    if not there:
        with _alone(folder.with_name(f".{name}.lock")):
            if not folder.is_dir():
                _make(corpus, vocabulary, folder)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / _TOKENIZER))
        streams = {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in _SPLITS}
        sums = json.loads((folder / _SUMS).read_text())
        for split, stream in streams.items():
            if zlib.crc32(stream) != sums[split]:
                raise ValueError(f"{split}.npy is not what was written")
    except Exception as error:  # the two libraries raise many kinds for a damaged file
        raise ValueError(
            f"{folder} is damaged ({first_line(error)}): delete it, and it is made again from the corpus"
        ) from error
    return Tokens(tokenizer.get_vocab_size(), streams, tokenizer)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Says in one sentence that the cache cannot be written, if the block finds so."""
    try:
        yield
    except Exception as error:  # ``tokenizers`` raises no narrower one
        why = getattr(error, "strerror", None) or first_line(error)
        raise ValueError(
            f"{folder} cannot be written ({why}): set XDG_CACHE_HOME to another place for the cache"
        ) from error


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lets one process in at a time: runs that start together wait for the first one's tokens."""
    lock = FileLock(path)
    with _writing(path.parent):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            tell("waiting for another run, which tokenises the corpus")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(corpus: Corpus, vocabulary: int, folder: Path) -> None:
    """Trains the tokeniser and fills the folder of the cache, which appears whole or not at all."""
    from tokenizers.implementations import ByteLevelBPETokenizer

    # Read before the training text is tokenised, which may take hours.
    beginning = {"validation": corpus.documents("validation"), "train": islice(corpus.documents("train"), 1)}
    for split, documents in beginning.items():
        if not sum(1 for _ in documents):
            raise ValueError(f"the {split} text of the corpus is empty")
    tell(f"a tokeniser is trained on the corpus once, and kept in {folder.parent}")
    draft = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
    try:
        with _writing(folder.parent):
            draft.mkdir()
        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(
            corpus.documents("train"), vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False
        )
        with _writing(folder.parent):
            tokenizer.save(str(draft / _TOKENIZER))
        dtype = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
        sums = {
            split: _write(draft / f"{split}.npy", _parts(tokenizer, corpus.documents(split), dtype), dtype)
            for split in _SPLITS
        }
        with _writing(folder.parent):
            (draft / _SUMS).write_text(json.dumps(sums))
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _parts(tokenizer: Any, documents: Iterator[str], dtype: type) -> Iterator[NDArray[Any]]:
    while some := list(islice(documents, _AT_ONCE)):
        encoded = tokenizer.encode_batch(some)
        yield np.concatenate([np.array([*one.ids, END], dtype) for one in encoded])


def _write(path: Path, parts: Iterator[NDArray[Any]], dtype: type) -> int:
    """Writes an array part by part, as a corpus may be larger than memory; returns the checksum of its numbers.

    Not through a memory map: writing to one on a full disk kills the process.
    """

    def write(content: bytes) -> None:
        with _writing(path.parent.parent):
            file.write(content)
            file.flush()

    length, checksum, draft = 0, 0, _head(dtype, 0)
    with path.open("wb") as file:
        write(draft)
        for part in parts:
            write(part.tobytes())
            length, checksum = length + len(part), zlib.crc32(part.data, checksum)
        head = _head(dtype, length)
        assert len(head) == len(draft), "numpy leaves room for any length"
        file.seek(0)
        write(head)
    return checksum


def _head(dtype: type, length: int) -> bytes:
    """The head of an npy file."""
    head = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(head, described)
    return head.getvalue()

"""Tokens of a corpus by a BPE trained on it, or by a given tokeniser; both are kept in the user's cache, by content."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from lab.console import first_line, tell
from lab.datasets.cache import cache
from lab.datasets.text.corpus import Corpus, Split
from lab.datasets.text.given import TOKENIZER, Given
from lab.datasets.text.library import library
from lab.datasets.text.special import UNKNOWN, Special

# Of the lab's own tokenisers: as RoBERTa has them, in the order of their numbers.
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
START, END = (SPECIAL.index(token) for token in ("<s>", "</s>"))

# Part of the cache's key: raised whenever the kept files change.
_VERSION = 3
# Documents that are tokenised at once, side by side on all cores.
_AT_ONCE = 1000
_SUMS = "sums.json"
_SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True)
class Tokens:
    """Holds a tokenised corpus.

    Attributes:
        streams: split -> token numbers of all its documents, each with its end; read from disk as they are used.
        tokenizer: the tokeniser that made them, of the library ``tokenizers``.
        file: file that holds the tokeniser.
    """

    streams: dict[Split, NDArray[Any]]
    tokenizer: Any
    file: Path

    @cached_property
    def special(self) -> Special:
        """The special tokens."""
        return Special.of(self.tokenizer)

    @cached_property
    def vocabulary(self) -> int:
        """Highest number of a token, plus one; a small corpus gives fewer tokens than asked for."""
        return max(self.tokenizer.get_vocab().values()) + 1

    @cached_property
    def ordinary(self) -> Tensor:
        """Numbers of all tokens that are not special, [n] int64, ascending."""
        return torch.tensor(sorted(set(self.tokenizer.get_vocab().values()) - self.special.names.keys()))

    @cached_property
    def is_special(self) -> Tensor:
        """True at each number that is not one of an ordinary token, [vocabulary] bool."""
        return torch.ones(self.vocabulary, dtype=torch.bool).index_fill(0, self.ordinary, False)

    @cached_property
    def keeps_bytes(self) -> bool:
        """True of a byte-level tokeniser that changes no text: tokens have all bytes of it and no others."""
        decoders, text = library("tokenizers").decoders, "a  Bc\n\t ü ²"
        whole = self.tokenizer.decode(self.encode(text), skip_special_tokens=False) == text
        return whole and self.tokenizer.normalizer is None and isinstance(self.tokenizer.decoder, decoders.ByteLevel)

    def words(self, tokens: Iterable[int]) -> list[str]:
        """Each token as text, special ones by their names."""
        return [self.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]

    def encode(self, text: str) -> list[int]:
        """Tokens of any other text."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def tokenised(corpus: Corpus, vocabulary: int, given: Given | None = None) -> Tokens:
    """Tokens of a corpus, from the cache where they are known.

    Args:
        corpus: its training documents train the tokeniser, if none is given.
        vocabulary: size of the byte-level BPE that is trained, special tokens included.
        given: tokeniser to use.

    Raises:
        ValueError: if ``tokenizers`` is not installed, or the cache is damaged or cannot be written.
    """
    library("tokenizers")
    folder = _place(corpus, vocabulary, given)
    with _writing(folder.parent):
        there = folder.is_dir()
        folder.parent.mkdir(parents=True, exist_ok=True)
    if not there:
        with _alone(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():
                _make(corpus, vocabulary, folder, given)
    try:
        tokenizer = _loaded(folder / TOKENIZER)
        streams = {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in _SPLITS}
        sums = json.loads((folder / _SUMS).read_text())
        for split, stream in streams.items():
            if zlib.crc32(stream) != sums[split]:
                raise ValueError(f"{split}.npy is not what was written")
    except Exception as error:  # the two libraries raise many kinds for a damaged file
        raise ValueError(
            f"{folder} is damaged ({first_line(error)}): delete it, and it is made again from the corpus"
        ) from error
    return Tokens(streams, tokenizer, folder / TOKENIZER)


def _place(corpus: Corpus, vocabulary: int, given: Given | None) -> Path:
    """The folder of the cache: by the content of the corpus, and of the given tokeniser or the vocabulary's size.

    A given tokeniser may be the very one that was trained on this corpus, as where a run is inspected.
    """
    identity = corpus.identity()

    def named(tokenizer: int | str) -> Path:
        key = repr((_VERSION, tokenizer, identity)).encode()
        return cache() / "text" / hashlib.blake2b(key, digest_size=16).hexdigest()

    trained = named(vocabulary)
    if given is None:
        return trained
    there = trained / TOKENIZER
    return trained if there.is_file() and there.read_bytes() == given.content else named(given.digest)


def _loaded(path: Path) -> Any:
    """The tokeniser of a file, without the cutting and padding that the file may ask for."""
    tokenizer = library("tokenizers").Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


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


def _make(corpus: Corpus, vocabulary: int, folder: Path, given: Given | None) -> None:
    """Trains the tokeniser, if none is given, and fills the folder of the cache, which appears whole or not at all."""
    # Read before the training text is tokenised, which may take hours.
    beginning = {"validation": corpus.documents("validation"), "train": islice(corpus.documents("train"), 1)}
    for split, documents in beginning.items():
        if not sum(1 for _ in documents):
            raise ValueError(f"the {split} text of the corpus is empty")
    done = "a tokeniser is trained on the corpus" if given is None else "the corpus is tokenised"
    tell(f"{done} once, and kept in {folder.parent}")
    draft = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
    try:
        with _writing(folder.parent):
            draft.mkdir()
        if given is None:
            _train(corpus, vocabulary, draft / TOKENIZER)
        else:
            with _writing(folder.parent):
                (draft / TOKENIZER).write_bytes(given.content)
        tokenizer = _loaded(draft / TOKENIZER)
        literal: Counter[str] = Counter()
        dtype = np.uint16 if max(tokenizer.get_vocab().values()) < 2**16 else np.uint32
        sums = {
            split: _write(draft / f"{split}.npy", _parts(tokenizer, corpus.documents(split), dtype, literal), dtype)
            for split in _SPLITS
        }
        with _writing(folder.parent):
            (draft / _SUMS).write_text(json.dumps(sums))
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if literal:
        listed = ", ".join(f"{name} ({number:,})" for name, number in literal.items())
        tell(
            f"the text of the corpus holds {listed}: they are read as special tokens, so replace them in the text if "
            "they are meant as text"
        )


def _train(corpus: Corpus, vocabulary: int, path: Path) -> None:
    """Trains the lab's own tokeniser on the training documents, and writes it."""
    from tokenizers.implementations import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        corpus.documents("train"), vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False
    )
    with _writing(path.parent.parent):
        tokenizer.save(str(path))


def _parts(tokenizer: Any, documents: Iterator[str], dtype: type, literal: Counter[str]) -> Iterator[NDArray[Any]]:
    """Tokens of documents, each with its end; counts special tokens in their text, but for unknown words."""
    special = Special.of(tokenizer)
    told = {number: name for number, name in special.names.items() if name not in UNKNOWN}
    while some := list(islice(documents, _AT_ONCE)):
        try:
            encoded = [one.ids for one in tokenizer.encode_batch(some, add_special_tokens=False)]
        except Exception as error:  # ``tokenizers`` raises no narrower one
            raise ValueError(f"data.tokenizer cannot read the text of the corpus: {first_line(error)}") from error
        literal.update(told[number] for ids in encoded for number in ids if number in told)
        yield np.concatenate([np.array([*ids, special.end], dtype) for ids in encoded])


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

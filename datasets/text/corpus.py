"""Corpora: where the documents of a language task come from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TextIO

from pydantic import Field, PositiveInt

from lab.console import first_line, tell
from lab.datasets.text.library import library

Split = Literal["train", "validation"]
Pattern = Annotated[str, Field(min_length=1)]
Document = Literal["line", "paragraph", "file"]


class Corpus(Protocol):
    """Documents to train on and others to validate on."""

    def documents(self, split: Split) -> Iterator[str]:
        """The documents of a split, one after another."""
        ...

    def identity(self) -> str:
        """Text that two corpora share only if their documents are the same."""
        ...


def check_patterns(option: str, patterns: Mapping[Split, str], example: str) -> None:
    """Refuses patterns of anything but file names.

    Args:
        option: name of the option that holds the folder, ``data.corpus``.
        patterns: a pattern for each split.
        example: an example of a pattern, for the message.

    Raises:
        ValueError: if a pattern is not of file names alone.
    """
    for split, pattern in patterns.items():
        if "/" in pattern or "**" in pattern or pattern in (".", ".."):
            raise ValueError(f"{option}.{split}={pattern} must be file names of {option}.folder, as in {example}")


def files_of(folder: Path, patterns: Mapping[Split, str], split: Split) -> list[Path]:
    """The files of a split by its pattern, sorted; files of the validation split are no training files."""
    found = set(folder.glob(patterns[split]))
    if split == "train":
        found -= set(folder.glob(patterns["validation"]))
    return sorted(path for path in found if path.is_file())


class FolderCorpus:
    """Text files of a folder, in UTF-8.

    Args:
        folder: the folder.
        train, validation: patterns of file names; a file that fits both is for validation only.
        document: what a document is. ``line`` (None): a line, without blanks around it, as in WikiText and Megatron-LM.
            ``paragraph``: lines up to one that is empty; ``file``: a file. In these two the text is left as it is, but
            for line ends, which become ``\\n``. Documents of blanks alone are left out.

    Raises:
        ValueError: if a pattern names other folders.
        FileNotFoundError: when files are asked for, if a pattern fits none.
    """

    def __init__(
        self,
        folder: Annotated[str, Field(min_length=1)],
        train: Pattern = "*.txt",
        validation: Pattern = "valid*.txt",
        document: Document | None = None,
    ) -> None:
        self.folder = Path(folder).expanduser()
        self.patterns: dict[Split, str] = {"train": train, "validation": validation}
        self.document = document or "line"
        check_patterns("data.corpus", self.patterns, "*.txt")

    def files(self, split: Split) -> list[Path]:
        """The files of a split, by name."""
        found = files_of(self.folder, self.patterns, split)
        if not found and split == "train" and any(path.is_file() for path in self.folder.glob(self.patterns[split])):
            raise FileNotFoundError(
                f"no text to train on in {self.folder.absolute()}: all files of "
                f"data.corpus.train={self.patterns[split]} are for validation, by "
                f"data.corpus.validation={self.patterns['validation']}: name other patterns"
            )
        if not found:
            raise FileNotFoundError(
                f"no text in {self.folder.absolute()}: data.corpus.{split}={self.patterns[split]} fits no file in it; "
                "name another folder with data.corpus.folder, or other files"
            )
        return found

    def documents(self, split: Split) -> Iterator[str]:
        """The documents that are not empty.

        Raises:
            ValueError: if a file is no text in UTF-8.
        """
        for path in self.files(split):
            try:
                # utf-8-sig leaves out the byte-order mark that some editors put first.
                with path.open(encoding="utf-8-sig") as lines:
                    yield from _documents(lines, self.document)
            except UnicodeDecodeError as error:
                raise ValueError(f"{path} is not text in UTF-8: {error.reason} {_place_of_error(path)}") from error

    def identity(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        if self.document != "line":
            digest.update(f"{self.document}\n".encode())
        for split in ("train", "validation"):
            for path in self.files(split):
                with path.open("rb") as file:
                    digest.update(f"{split} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return digest.hexdigest()


def _documents(lines: TextIO, document: Document) -> Iterator[str]:
    """The documents of an open file that are not empty."""
    if document == "line":
        yield from (stripped for line in lines if (stripped := line.strip()))
    elif document == "file":
        if (text := lines.read()).strip():
            yield text
    else:
        for empty, paragraph in groupby(lines, key=lambda line: not line.strip()):
            if not empty:
                yield "".join(paragraph).removesuffix("\n")


def _place_of_error(path: Path) -> str:
    """Place where a file stops being UTF-8, "in line 3, at byte 41"; a decoder counts from its buffer's start."""
    before = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"in line {number:,}, at byte {before + error.start}"
            before += len(line)
    return "at its end"


class HubCorpus:
    """A data set of the Hugging Face Hub, streamed: its first documents validate, those that follow train.

    Args:
        name: of the data set, ``wikimedia/wikipedia``.
        config: one of its configurations, ``20231101.en``; None for the only one.
        split: split of the data set that all documents are from.
        column: name of the column that holds the text.
        revision: commit or tag of the data set; None for the newest commit at first reading, which is then told. The
            cache keeps what was read of it.
        documents: training documents at most, empty ones counted; None for all.
        validation_documents: validation documents, counted likewise.

    Raises:
        ValueError: when documents are asked for, if Hugging Face ``datasets`` is not installed or cannot read them, or
            if none of them holds text.
    """

    def __init__(
        self,
        name: Annotated[str, Field(min_length=1)],
        config: str | None = None,
        split: str = "train",
        column: str = "text",
        revision: str | None = None,
        documents: PositiveInt | None = None,
        validation_documents: PositiveInt = 1000,
    ) -> None:
        self.source = (name, config, split, column, revision)
        self.limits = (documents, validation_documents)

    def documents(self, split: Split) -> Iterator[str]:
        """The documents of a split, as they come from the Hub, without empty ones."""
        name, _, _, column, _ = self.source
        documents, held_out = self.limits
        stream = self._stream()
        rows = (
            islice(stream, held_out) if split == "validation" else islice(stream, held_out, _end(held_out, documents))
        )
        found = False
        for row in _with_errors_told(rows, name):
            if column not in row:
                raise ValueError(f"data.corpus.column={column} is no column of {name}; it has {', '.join(row)}")
            if not isinstance(row[column], str):
                raise ValueError(f"data.corpus.column={column} of {name} holds no text, but {row[column]!r:.60}")
            if document := row[column].strip():
                found = True
                yield document
        if not found:
            first = f"the first {held_out:,} documents"
            which = f"{first}, which validate" if split == "validation" else f"those after {first}, which train"
            raise ValueError(
                f"data.corpus.name={name} has no text among {which}: change data.corpus.validation_documents={held_out}"
            )

    def _stream(self) -> Any:
        name, config, split, _, _ = self.source
        datasets = library("datasets")
        try:
            return datasets.load_dataset(name, config, split=split, revision=self._commit, streaming=True)
        except Exception as error:  # of many libraries: offline, no such name, no such configuration
            raise _unread(name, error) from error

    @cached_property
    def _commit(self) -> str:
        """The revision to read, found out once: all streams are of one commit, even if the data set grows meanwhile."""
        name, *_, revision = self.source
        if revision is not None:
            return revision
        found: str = library("huggingface_hub").HfApi().dataset_info(name).sha
        tell(f"{name} is read as of commit {found}: type data.corpus.revision={found} to read the same again")
        return found

    def identity(self) -> str:
        return repr((self.source, self.limits))


def _end(start: int, count: int | None) -> int | None:
    return None if count is None else start + count


def _with_errors_told(rows: Iterator[Any], name: str) -> Iterator[Any]:
    """Yields the rows; an error between two of them is raised as the same ValueError as one at the start."""
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:  # of many libraries: the connection is lost, a file is damaged
            raise _unread(name, error) from error
        yield row


def _unread(name: str, error: Exception) -> ValueError:
    return ValueError(f"data.corpus.name={name} cannot be read from the Hugging Face Hub: {first_line(error)}")

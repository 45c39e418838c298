"""Tokens of problems: bytes of their text, or those of a pretrained model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from lab.console import first_line
from lab.datasets.text.library import hub_name_or_folder, library
from lab.datasets.text.tokens import END, SPECIAL, START


class Tokenizer(ABC):
    """Turns text into numbers of tokens, and tells the tokens before and after a text."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Size of the vocabulary."""

    @property
    @abstractmethod
    def start(self) -> tuple[int, ...]:
        """Tokens before a text."""

    @property
    @abstractmethod
    def end(self) -> int:
        """Token after a text."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with nothing before it or after."""


class ByteTokenizer(Tokenizer):
    """Bytes of the text in UTF-8, numbered after the special tokens: 261 tokens in all."""

    size = len(SPECIAL) + 256
    start = (START,)
    end = END

    def encode(self, text: str) -> list[int]:
        return [byte + len(SPECIAL) for byte in text.encode()]


class PretrainedTokenizer(Tokenizer):
    """The tokenizer of a pretrained model.

    Args:
        name: of a model on the Hugging Face Hub, or a folder that holds one. It is read at first use.

    Raises:
        ValueError: at first use, if ``transformers`` is not installed, or there is no such tokenizer, or it marks no
            end of a text.
    """

    def __init__(self, name: Annotated[str, Field(min_length=1)]) -> None:
        self.name = name

    @cached_property
    def _own(self) -> Any:
        transformers = library("transformers")
        try:
            own: Any = transformers.AutoTokenizer.from_pretrained(
                hub_name_or_folder(self.name), trust_remote_code=False
            )
        except Exception as error:  # of many libraries: offline, no such name, a damaged file
            raise ValueError(
                f"data.tokenizer.name={self.name} (by default model.pretrained) cannot be read: {first_line(error)}"
            ) from error
        if own.eos_token_id is None:
            raise ValueError(f"data.tokenizer.name={self.name} has no token for the end of a text: take another one")
        return own

    @property
    def size(self) -> int:
        return len(self._own)

    @property
    def start(self) -> tuple[int, ...]:
        return () if self._own.bos_token_id is None else (self._own.bos_token_id,)

    @property
    def end(self) -> int:
        return self._own.eos_token_id

    def encode(self, text: str) -> list[int]:
        return self._own.encode(text, add_special_tokens=False)

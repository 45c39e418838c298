"""A tokeniser that a user gives (``data.tokenizer``), in place of one that is trained on the corpus."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from lab.console import LabError, first_line
from lab.datasets.text.library import library
from lab.datasets.text.special import ENDS, MASKS, Special
from lab.files import read_file

# Name of a tokeniser's file, in a folder of Hugging Face, in the cache and in a run folder.
TOKENIZER = "tokenizer.json"
# Limits far above what tokenisers have: 262,144 tokens in 33 MB (Gemma). The file may come with somebody else's run.
_MOST_BYTES, _MOST_TOKENS = 2**28, 2**21


@dataclass(frozen=True)
class Given:
    """A tokeniser's file, read once: bytes that ``tokenizers`` can load, with a token that ends documents."""

    content: bytes

    @property
    def digest(self) -> str:
        """Text that two tokenisers share only if their files are the same."""
        return hashlib.sha256(self.content).hexdigest()


def given_tokenizer(named: str, masks: bool) -> Given:
    """Reads the tokeniser that ``data.tokenizer`` names. The file is data: no code runs, and nothing is fetched.

    Args:
        named: a ``tokenizer.json`` of Hugging Face ``tokenizers``, or a folder that holds one.
        masks: whether a token that hides words is needed, too.

    Raises:
        ValueError: if ``tokenizers`` is not installed, there is no such file, it cannot be read, it is too large, or it
            lacks a token that is needed.
    """
    tokenizers = library("tokenizers")
    path = Path(named).expanduser()
    path = path / TOKENIZER if os.path.isdir(path) else path
    if not os.path.exists(path):  # Path raises where a name is too long
        raise ValueError(
            f"data.tokenizer={named}: there is no {path.absolute()}; name a {TOKENIZER} of Hugging Face tokenizers, "
            "or a folder that holds one"
        )
    try:
        content = read_file(path, _MOST_BYTES)
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
        special, highest = Special.of(tokenizer), max(tokenizer.get_vocab().values(), default=0)
    except LabError as error:
        raise ValueError(f"data.tokenizer={named}: {error}") from error
    except BaseException as error:  # ``tokenizers`` raises no narrower one; where Rust gives up, not even an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ValueError(
            f"data.tokenizer={named} is no {TOKENIZER} of Hugging Face tokenizers: {first_line(error)}"
        ) from error
    if highest >= _MOST_TOKENS:
        raise ValueError(
            f"data.tokenizer={named} numbers a token {highest:,}, and {_MOST_TOKENS:,} tokens are the most"
        )
    wanted = [("ends a document", special.end, ENDS)] + ([("hides a word", special.mask, MASKS)] if masks else [])
    for what, number, names in wanted:
        if number is None:
            raise ValueError(
                f"data.tokenizer={named} has no token that {what}: one of {', '.join(names)} must be among its added "
                "tokens, flagged special"
            )
    return Given(content)

"""Special tokens of a tokeniser, as its file tells them: added tokens that are flagged special."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Names of the token that ends a document, and of the one that hides a word; the first that there is counts.
ENDS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[SEP]")
MASKS = ("<mask>", "[MASK]")
# Names of the token for what is in no vocabulary, which corpora such as WikiText hold on purpose.
UNKNOWN = ("<unk>", "[UNK]")


@dataclass(frozen=True)
class Special:
    """Special tokens by their numbers.

    Attributes:
        names: number -> name, in the order of the numbers.
        end: number of the token that ends a document; None if there is none.
        mask: number of the token that hides a word; None if there is none.
    """

    names: Mapping[int, str]
    end: int | None
    mask: int | None

    @classmethod
    def of(cls, tokenizer: Any) -> Special:
        """The special tokens of a tokeniser of the library ``tokenizers``."""
        added = tokenizer.get_added_tokens_decoder()
        names = {number: added[number].content for number in sorted(added) if added[number].special}
        numbers = {name: number for number, name in names.items()}

        def first(known: tuple[str, ...]) -> int | None:
            return next((numbers[name] for name in known if name in numbers), None)

        return cls(names, first(ENDS), first(MASKS))

"""Models of other libraries by their names there: ``hf:<name or folder>`` or ``timm:<name>``.

A library is a file of this folder with a class ``Named``; the file's name is the prefix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lab.config.suggestions import choices
from lab.console import LabError
from lab.models.observable import Picture

# Errors of reading what others have written: a file may be missing, damaged, or of another kind.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RuntimeError)


class NamedModel(ABC):
    """A model of another library by its name: the constructor reads its config, :meth:`load` its weights.

    Files of others are taken as data: none of their code is run, and weights are read as tensors alone (safetensors, or
    with ``weights_only=True``).

    Args:
        name: of the model in its library, or its folder.
        weights: False for random weights, which need only the model's config.
        layers: how many of its first layers to keep; None keeps all.
        kind: name of the library's class; None lets the library choose.

    Raises:
        LabError: if there is no such model, it cannot be had, or an option does not go with it.
    """

    # The model without weights (on the meta device), to try softmax and inputs on.
    empty: nn.Module
    # Most tokens that it takes, and size of its vocabulary; None of a model of pictures.
    longest: int | None = None
    vocabulary: int | None = None
    # Whether it predicts the next token: its output has logits [B, N, vocabulary].
    tells_next: bool = False
    # Channels, rows and columns of its pictures; None of a model of tokens.
    size: tuple[int, int, int] | None = None

    @abstractmethod
    def __init__(self, name: str, weights: bool = True, layers: int | None = None, kind: str | None = None) -> None: ...

    @abstractmethod
    def load(self) -> nn.Module:
        """The model, in float32 and evaluation mode, under its own softmax."""

    def specials(self) -> Sequence[int]:
        """Tokens that stand for no text: start, end, padding."""
        return ()

    def encode(self, text: str, longest: int | None = None) -> list[list[int]]:
        """Tokens of a text, cut into blocks of ``longest``, each with special tokens like a text of its own.

        Raises:
            LabError: if the model does not come with its tokenizer.
        """
        raise NotImplementedError

    def picture(self, image: Any) -> Tensor:
        """Turns a PIL image into a picture [3, rows, columns] as the model takes it.

        Raises:
            LabError: if the model does not say how its pictures are prepared.
        """
        raise NotImplementedError

    def shown(self, model: nn.Module) -> Picture | None:
        """Patch grid and colour normalisation of the model; None of a model of tokens, or where they are not known."""
        return None


def named_model(model: str, **options: Any) -> NamedModel:
    """The model that ``model=hf:gpt2`` names, its weights not loaded yet.

    Args:
        model: prefix of a library, a colon, the name there.
        options: of :class:`NamedModel`.

    Raises:
        LabError: if there is no such library or model, it cannot be had, or an option does not go with it.
    """
    library, colon, name = model.partition(":")
    there = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "named")
    if not colon or not name or library not in there:
        raise LabError(
            f"model={model} names no library: begin with {' or '.join(f'{one}:' for one in there)}, as in "
            f"model=hf:gpt2; {choices(library, there)}"
        )
    return import_module(f"lab.models.libraries.{library}").Named(name, **options)

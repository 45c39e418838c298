"""Models of Hugging Face ``transformers`` by their names on the Hub, in its cache, or in a folder."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lab.console import LabError, first_line, tell
from lab.datasets.text.library import hub_name_or_folder, library
from lab.models.libraries.named import UNREADABLE, NamedModel
from lab.models.observable import Picture

T = TypeVar("T")

_TAKES = {"input_ids": "tokens", "pixel_values": "images"}


class Named(NamedModel):
    """A model of ``transformers``: a local folder, a name in the library's cache, or a name on the Hub.

    Local files are tried first, so that a model that is there needs no network.
    """

    def __init__(self, name: str, weights: bool = True, layers: int | None = None, kind: str | None = None) -> None:
        try:
            transformers = library("transformers")
        except ValueError as error:
            raise LabError(f"model=hf:{name}: {error}") from error
        self.name = name
        self.weights = weights
        self.kind: Any = getattr(transformers, kind or "AutoModel", None)
        if not hasattr(self.kind, "from_pretrained"):
            raise LabError(f"kind={kind} is no model of transformers: name one, as in kind=CLIPTextModel")
        reader = getattr(self.kind, "config_class", None) or transformers.AutoConfig
        self.config = self._fetched(reader.from_pretrained, "config")
        if layers is not None:
            self._cut(layers)
        with _quiet(), torch.device("meta"), self._refused("model"):
            self.empty = self._unfilled()
        takes = _TAKES.get(getattr(self.empty, "main_input_name", ""))
        if takes is None:
            raise LabError(
                f"model=hf:{name}: {type(self.empty).__name__} takes neither tokens nor pictures, but "
                f"{getattr(self.empty, 'main_input_name', 'something else')}"
            )
        text = self.config.get_text_config()
        if takes == "tokens":
            self.longest = self._positions(getattr(text, "max_position_embeddings", None))
            self.vocabulary = text.vocab_size
            model: Any = self.empty
            causal = any(getattr(module, "is_causal", False) for module in model.modules())
            self.tells_next = causal and model.can_generate()
        else:
            side = getattr(self.config, "image_size", 224)
            rows, columns = side if isinstance(side, Sequence) else (side, side)
            self.size = (getattr(self.config, "num_channels", 3), rows, columns)

    def load(self) -> nn.Module:
        if not self.weights:
            with _quiet():
                model = self._unfilled()
        else:
            options = {"config": self.config, "dtype": torch.float32, "use_safetensors": True}
            model = self._fetched(self.kind.from_pretrained, "weights", **options)
        return model.eval()

    def specials(self) -> Sequence[int]:
        text = self.config.get_text_config()
        told = [getattr(text, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "sep", "cls")]
        return [token for token in told if isinstance(token, int)]

    def encode(self, text: str, longest: int | None = None) -> list[list[int]]:
        from transformers import AutoTokenizer

        if not hasattr(self, "_tokenizer"):
            self._tokenizer = self._fetched(AutoTokenizer.from_pretrained, "tokenizer")
        with _quiet():
            blocks = self._blocks(text, longest)
        known = [token for block in blocks for token in block]
        if not known or max(known) >= (self.vocabulary or 0):
            raise LabError(
                f"model=hf:{self.name} comes with no tokenizer that fits it: leave text= out for random tokens, or put "
                "tokenizer.json into its folder"
            )
        return blocks

    def _blocks(self, text: str, longest: int | None) -> list[list[int]]:
        """Tokens of the whole text, in blocks of ``longest`` at most, each with the special tokens of the model."""
        read: Any = self._tokenizer
        if longest is None:
            return [read(text)["input_ids"]]
        if read.is_fast:
            cut = {"truncation": True, "max_length": longest, "return_overflowing_tokens": True}
            found = read(text, **cut)["input_ids"]
            return found if found and isinstance(found[0], list) else [found]
        # A tokenizer written in Python gives the first block alone.
        tokens, room = read(text, add_special_tokens=False)["input_ids"], longest - read.num_special_tokens_to_add()
        starts = range(0, max(1, len(tokens)), max(1, room))
        return [read.build_inputs_with_special_tokens(tokens[start : start + room]) for start in starts]

    def picture(self, image: Any) -> Tensor:
        return self._processor(images=image.convert("RGB"), return_tensors="pt")["pixel_values"][0]

    def shown(self, model: nn.Module) -> Picture | None:
        for module in model.modules():
            if isinstance(patch := getattr(module, "patch_size", None), tuple) and self.size is not None:
                grid = (self.size[1] // patch[0], self.size[2] // patch[1])
                with suppress(LabError):
                    return Picture(grid, *(tuple(getattr(self._processor, f"image_{one}")) for one in ("mean", "std")))
                return Picture(grid)
        return None

    @cached_property
    def _processor(self) -> Any:
        from transformers import AutoImageProcessor

        return self._fetched(AutoImageProcessor.from_pretrained, "image processor")

    def _unfilled(self) -> Any:
        config = copy.deepcopy(self.config)
        # An Auto class chooses the model's class by the config; any other class is called with it.
        return self.kind.from_config(config) if hasattr(self.kind, "from_config") else self.kind(config)

    def _positions(self, told: int | None) -> int | None:
        """Most tokens that the model takes: RoBERTa's positions begin after padding's, so its config tells too many."""
        for name, module in self.empty.named_modules():
            if name.endswith("position_embeddings") and (padding := getattr(module, "padding_idx", None)) is not None:
                return int(module.num_embeddings) - padding - 1
        return told

    def _cut(self, layers: int) -> None:
        for config in {id(one): one for one in (self.config, self.config.get_text_config())}.values():
            there = getattr(config, "num_hidden_layers", None)
            if there is None:
                continue
            if getattr(config, "depths", None):
                raise LabError(
                    f"layers={layers}: hf:{self.name} has stages (depths={list(config.depths)}), of which no first "
                    "layers can be told: leave layers out"
                )
            if layers > there:
                raise LabError(f"layers={layers}: hf:{self.name} has {there}")
            config.num_hidden_layers = layers
            for name in ("decoder_layers", "num_decoder_layers"):
                if isinstance(of_decoder := getattr(config, name, None), int):
                    setattr(config, name, min(layers, of_decoder))
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[:layers]
            return
        raise LabError(f"layers={layers}: the config of hf:{self.name} does not say how many layers it has")

    def _fetched(self, fetch: Callable[..., T], what: str, **options: Any) -> T:
        """Fetches a part of the model from its folder or the cache, else from the Hub."""
        with self._refused(what):
            source = hub_name_or_folder(self.name)
        options["trust_remote_code"] = False
        if os.path.isdir(source):
            with _quiet(), self._refused(what):
                return fetch(source, local_files_only=True, **options)
        with _quiet(), suppress(*UNREADABLE):
            return fetch(self.name, local_files_only=True, **options)
        tell(f"hf:{self.name}: asking the Hugging Face Hub for its {what}, which the cache does not have")
        with _quiet(bars=True), self._refused(what):
            return fetch(self.name, **options)

    @contextmanager
    def _refused(self, what: str) -> Iterator[None]:
        try:
            yield
        except UNREADABLE as error:
            raise LabError(f"model=hf:{self.name}: its {what} cannot be loaded: {first_line(error)}") from error


@contextmanager
def _quiet(bars: bool = False) -> Iterator[None]:
    """Silences the libraries' warnings, and progress bars unless asked for: the lab itself says what matters."""
    import transformers
    from huggingface_hub.utils import logging as hub

    ours, theirs = transformers.logging.get_verbosity(), hub.get_verbosity()
    hidden = not bars and transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    if hidden:
        transformers.logging.disable_progress_bar()
    hub.set_verbosity(hub.CRITICAL)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(ours)
        hub.set_verbosity(theirs)
        if hidden:
            transformers.logging.enable_progress_bar()

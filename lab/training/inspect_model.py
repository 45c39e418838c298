"""Shows a model of another library to diagnostics: no run has trained it, and its inputs have no labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.datasets.folder import IMG_EXTENSIONS, is_image_file

from lab.callbacks.diagnostics.base import Diagnostic
from lab.console import LabError, first_line, tell
from lab.datasets.folder import read_image, rgb
from lab.datasets.given import GivenData
from lab.datasets.seeding import generator_of
from lab.models.composed_softmax import refuse_schedule, softmax_config, softmax_factory
from lab.models.libraries.named import NamedModel, named_model
from lab.models.observable import OtherModel, attention_layers_of
from lab.models.replace import replace_softmax, restore_softmax
from lab.observation.subject import Subject
from lab.runs.spec import folder_name
from lab.training.looks import Looks, device_named, typed_softmax
from lab.training.next_token import as_trained

# Defaults: tokens per input, and number of inputs.
_TOKENS, _INPUTS = 128, 16
# The option for a model that has a loss.
_CAUSAL = "kind=AutoModelForCausalLM"
# Characters of text that are read per token wanted: more than tokens have on average in any vocabulary.
_CHARACTERS = 16


def inspect_model(
    model: str,
    callbacks: Sequence[str],
    out: Path | None = None,
    device: str = "cpu",
    softmax: str | None = None,
    softmax_options: Sequence[str] = (),
    force: bool = False,
    text: str | None = None,
    images: Path | None = None,
    tokens: int | None = None,
    inputs: int | None = None,
    weights: bool = True,
    layers: int | None = None,
    kind: str | None = None,
    seed: int = 0,
) -> Path:
    """Shows a model of another library to diagnostics; returns the folder with their tables and pictures.

    Args:
        model: ``hf:<name or folder>`` or ``timm:<name>``.
        callbacks: overrides of ``configs/train.yaml`` that choose and configure the diagnostics, or name a folder with
            more configs.
        out: where to write; None is a folder below ``inspect``, named after the model.
        device: where to compute.
        softmax: softmax config to swap in; None keeps the model's own softmax.
        softmax_options: overrides of that config, as in ``softmax.form=log_n``.
        force: overwrite the files of an earlier look.
        text: input of a model that takes tokens: a text, a file, or a folder of ``*.txt``; None for random tokens.
        images: input of a model that takes pictures: a folder of them; None for noise.
        tokens: tokens per input; None is 128, or the most that the model takes if that is less.
        inputs: largest number of inputs; None is 16.
        weights: False for random weights.
        layers: how many of the model's first layers to keep; None keeps all.
        kind: class of ``transformers``; None lets the library choose.
        seed: of random inputs and random weights.

    Raises:
        LabError: if there is no such model, diagnostic or input, or they do not go together, or an earlier look would
            be overwritten.
    """
    typed = typed_softmax(softmax, softmax_options)
    where = device_named(device)
    looks = Looks(callbacks, out or Path("inspect") / folder_name(",".join([model, *typed])), force)
    elsewhere = [override for override in callbacks if override.startswith("hydra.searchpath=")]
    config = softmax_config(softmax or "softmax", *elsewhere, *softmax_options)
    refuse_schedule(config, f"softmax={softmax}")
    factory = softmax_factory(config)
    named = named_model(model, weights=weights, layers=layers, kind=kind)
    has = [*(["text"] if named.vocabulary else []), *(["training"] if named.tells_next else [])]
    lacks = f" without {_CAUSAL}" if named.vocabulary and not named.tells_next else ""
    looks.check_needs(has, f"model={model}{lacks}")
    # Mistakes that show without weights are found before these are downloaded.
    replace_softmax(named.empty, factory)
    data = _data(named, text, images, tokens, inputs or _INPUTS, seed)
    if any(one.needs == "text" for one in looks.diagnostics):
        named.encode("to be refused where there is no tokenizer")
    with suppress(RuntimeError):  # from code that needs numbers, which tensors on "meta" lack
        _try(restore_softmax(named.empty), data, torch.device("meta"), model, (TypeError, ValueError, AttributeError))
    torch.manual_seed(seed)
    loaded = replace_softmax(named.load(), factory).to(where)
    known = OtherModel(loaded, named.shown(loaded))
    _try(known, data, where, model, (IndexError, RuntimeError, AssertionError))
    tell(f"{model}: {len(attention_layers_of(known))} attention layers; {', '.join(looks.names)}")
    trained = as_trained(known, data) if named.tells_next else None
    subject = Subject(known, trained, encode=lambda words: named.encode(words)[0], longest=named.longest)
    few = any(".scenes=" in override for override in callbacks)
    facts = {
        "model": model,
        "softmax": " ".join(typed).removeprefix("softmax=") or None,
        "weights": weights,
        "layers": layers,
        "kind": kind,
        "text": text,
        "images": None if images is None else str(images),
        "input": list(data.draw_validation(0)["x"].shape[1:]),
        "inputs": len(data.inputs),
        "seed": seed,
    }
    for one, findings in looks.found(subject, data, where, _tell_too_few if few else None):
        looks.keep(one, findings, facts, step=None)
    return looks.folder


def _data(
    named: NamedModel, text: str | None, images: Path | None, tokens: int | None, inputs: int, seed: int
) -> GivenData:
    """Inputs of a model: from a text, from a folder of pictures, or random."""
    if named.size is not None:
        for option, value in (("text", text), ("tokens", tokens)):
            if value is not None:
                raise LabError(f"{option}= is for a model of tokens, but this one takes pictures: give images=<folder>")
        if images is not None:
            return GivenData(_pictures(images, inputs), lambda path: named.picture(_opened(path)))
        return GivenData(list(torch.randn(inputs, *named.size, generator=generator_of("noise", seed))))
    if images is not None:
        raise LabError("images= is for a model of pictures, but this one takes tokens: give text=<file, or words>")
    longest = named.longest or tokens or _TOKENS
    if tokens is not None and tokens > longest:
        raise LabError(f"tokens={tokens}: the model takes at most {longest}")
    length = tokens or min(_TOKENS, longest)
    if text is None:
        return GivenData(list(_random_tokens(named, inputs, length, seed)))
    blocks = named.encode(_words(text, _CHARACTERS * inputs * length), length)
    whole = [block for block in blocks if len(block) == length][:inputs]
    return GivenData(list(torch.tensor(whole or blocks[:1])))


def _random_tokens(named: NamedModel, inputs: int, length: int, seed: int) -> Tensor:
    ordinary = torch.ones(named.vocabulary or 0)
    ordinary[[token for token in named.specials() if token < len(ordinary)]] = 0
    return torch.multinomial(
        ordinary, inputs * length, replacement=True, generator=generator_of("random tokens", seed)
    ).view(inputs, length)


def _words(text: str, characters: int) -> str:
    """The first characters of a text, of a file, or of the files of a folder."""
    path = Path(os.path.expanduser(text))  # not Path.expanduser, which fails on a text such as "~ 5 apples"
    if not os.path.exists(path):  # False, not an error, for a text too long to be a file name
        if len(text.split()) < 2 or text.endswith(".txt"):
            raise LabError(f"text={text} is no file, no folder and no text of two words or more")
        return text
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files:
        raise LabError(f"text={text}: the folder holds no *.txt")
    found = ""
    for file in files:
        try:
            with file.open(encoding="utf-8") as lines:
                found += lines.read(characters - len(found))
        except (OSError, UnicodeDecodeError) as error:
            raise LabError(f"text={file} is no text in UTF-8 that can be read: {error}") from error
    if not found.strip():
        raise LabError(f"text={text} holds no text")
    return found


def _pictures(folder: Path, inputs: int) -> list[Path]:
    """The first pictures, by name, of a folder and its subfolders."""
    where = Path(os.path.expanduser(folder))
    if not where.is_dir():
        raise LabError(f"images={folder} is no folder: name one that holds pictures")
    found = sorted(path for path in where.rglob("*") if is_image_file(path.name))
    if not found:
        raise LabError(f"images={folder} holds no pictures: name a folder of {', '.join(IMG_EXTENSIONS)}")
    return found[:inputs]


def _opened(path: Path) -> Any:
    try:
        return read_image(rgb, str(path))
    except ValueError as error:
        raise LabError(str(error)) from error


def _try(
    model: nn.Module, data: GivenData, device: torch.device, name: str, wrong: tuple[type[Exception], ...]
) -> None:
    """Runs the model on one input: it may need other inputs as well, or take fewer tokens than it says."""
    x = data.draw_validation(0)["x"][:1].to(device)
    try:
        with torch.no_grad():
            model(x)
    except wrong as error:
        raise LabError(
            f"model={name} cannot be shown an input of {list(x.shape[1:])}: {first_line(error)}; choose a part of "
            "the model with kind=, as in kind=CLIPTextModel, or shorten the texts with tokens="
        ) from error


def _tell_too_few(asking: Diagnostic, there: int) -> None:
    wanted = asking.scenes
    tell(f"{asking.name} asks for {wanted:,} inputs, but {there:,} are shown: inputs={wanted} takes more, if any")

"""Checks a data module before any training: draws some of its batches and tries all that training relies on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lab.console import LabError, blamed, name_of
from lab.datasets.loading import IGNORED, Batch, DataModule, parts_of

# How names of latents begin that are classes, which are counted from 0, and what probes are fitted to.
CLASSES = ("indicator_", "target_", "color_", "largest", "second_largest", "smallest")


class FirstBatches(NamedTuple):
    """The first batch of each kind."""

    train: Batch
    validation: Batch


def check_parts(data: DataModule) -> None:
    """Checks that a data module has all that is read before anything is drawn.

    Raises:
        LabError: if it lacks a part.
    """
    if "trainer" not in vars(data):
        raise LabError(f"{name_of(type(data))} does not call super().__init__()")
    own_epochs = type(data).train_dataloader is not DataModule.train_dataloader
    for part in ("batch_size", "validation_size", *([] if own_epochs else ["epoch_size"])):
        # Not hasattr: a property may have to read the data first.
        if part not in vars(data) and not hasattr(type(data), part):
            raise LabError(f"{name_of(type(data))} has no {part}, a number of samples: set it in __init__")


def facts_of(data: DataModule) -> dict[str, int]:
    """The data's ``model_arguments()``.

    Raises:
        LabError: if they lack the number of labels.
    """
    facts = data.model_arguments()
    if not isinstance(facts, Mapping) or "num_classes" not in facts:
        raise LabError(f"{name_of(type(data))}.model_arguments() gives no num_classes, the number of labels")
    return facts


def check_data(data: DataModule) -> FirstBatches:
    """Draws the first training batch and the first and last validation batch, each twice, on the CPU.

    Of data with a ``val_dataloader`` of their own, which may cut the set otherwise, only the first validation batch; of
    data with a ``first_batches`` of their own, the few samples that these hold. Data without a trainer are set up.

    Raises:
        LabError: if it is no data module or lacks a part, drawing fails or gives another batch the second time, or a
            batch is not of the form of :class:`lab.datasets.loading.Batch` or of another size: says which.
    """
    if not isinstance(data, DataModule):
        raise LabError(f"check_data takes a data module, an object of a class derived from DataModule, got {data!r}")
    check_parts(data)
    if data.trainer is None:  # a trainer has done so by now
        data.setup("fit")
    if isinstance(data.locations, str):
        raise LabError(f'{name_of(type(data))}.locations is a text: write a tuple, ("{data.locations}",)')
    with torch.random.fork_rng(devices=[]):
        if type(data).first_batches is not DataModule.first_batches:  # few samples, where they are slow to make
            return _few(data)
        batches = FirstBatches(_batch(data, "draw_train(0, 0)", lambda: data.draw_train(0, 0)), _validation(data))
    drawn = len(batches.train["y"])
    # Of a full batch, processes may have shares that differ by one.
    if abs(drawn * data.world_size - data.samples_per_batch) >= data.world_size:
        raise LabError(
            f"{name_of(type(data))}.draw_train(0, 0) gives {drawn} samples, but its batch_size is {data.batch_size}"
        )
    return batches


def _validation(data: DataModule) -> Batch:
    """The first validation batch, after all checks of it and, where the size of batches is known, of the last one."""
    made = type(data)
    default = made.val_dataloader is DataModule.val_dataloader
    counted = default and made.validation_batches is DataModule.validation_batches
    drawn: list[Batch] = []
    for index in sorted({0, *(data.validation_batches(data.batch_size)[-1:] if default else ())}):
        call = f"draw_validation({index})"
        drawn.append(_batch(data, call, lambda index=index: data.draw_validation(index)))
        got, wanted = len(drawn[-1]["y"]), len(data.validation_samples(index, data.batch_size))
        if counted and got != wanted:
            raise LabError(
                f"{name_of(made)}.{call} gives {got} samples, but its validation_size of {data.validation_size} in "
                f"batches of {data.batch_size} leaves {wanted} for it: draw "
                "len(self.validation_samples(index, self.batch_size))"
            )
    return drawn[0]


def _few(data: DataModule) -> FirstBatches:
    """The samples of the data's own ``first_batches``, after all checks."""
    where = f"{name_of(type(data))}.first_batches()"
    with blamed(f"{where} fails"):
        (validation, train), (validation_again, train_again) = data.first_batches(), data.first_batches()
    return FirstBatches(_checked(data, where, train, train_again), _checked(data, where, validation, validation_again))


def _batch(data: DataModule, call: str, draw: Any) -> Batch:
    """The batch that a call draws, after all checks."""
    where = f"{name_of(type(data))}.{call}"
    with blamed(f"{where} fails"):
        batch, again = (data.on_after_batch_transfer(draw(), 0) for _ in range(2))
    return _checked(data, where, batch, again)


def _checked(data: DataModule, where: str, batch: Batch, again: Batch) -> Batch:
    """The batch, after a check of its form and that it was drawn alike twice."""
    _check_form(data, batch, where)
    if not same(batch, again):
        raise LabError(
            f"{where} gives another batch when it is called again: draw random numbers from "
            "lab.datasets.seeding.generator_of alone, or a resumed run would see other data"
        )
    return batch


def _check_form(data: DataModule, batch: object, where: str) -> None:
    wanted = '{"x": ..., "y": [B] int64, "latents": {name: [B] int64}}, with {} for latents where there are none'
    if not isinstance(batch, Mapping) or not {"x", "y", "latents"} <= batch.keys():
        got = f"a dict of {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
        raise LabError(f"{where} must give {wanted}, and gives {got}")
    y, latents = batch["y"], batch["latents"]
    if not isinstance(y, Tensor) or y.dtype != torch.int64 or not y.ndim:
        raise LabError(f"labels of {where} must be a tensor of int64, [B] or [B, answers], and are {_described(y)}")
    for part in parts_of(batch["x"]):
        if not isinstance(part, Tensor) or part.shape[:1] != y.shape[:1]:
            raise LabError(f"{where} must give {len(y)} inputs, one for each label, and gives x as {_described(part)}")
        if part.is_floating_point() and not part.isfinite().all():
            raise LabError(f"inputs of {where} hold NaN or infinity")
    facts = facts_of(data)
    _check_tokens(facts.get("tokens"), batch["x"], where)
    classes = facts["num_classes"]
    counted = y[y != IGNORED] if data.ignores else y
    if counted.numel() and not 0 <= int(counted.min()) <= int(counted.max()) < classes:
        raise LabError(
            f"labels of {where} run from {int(counted.min())} to {int(counted.max())}, but model_arguments() gives "
            f"num_classes={classes}: labels are 0 to {classes - 1}"
        )
    if not isinstance(latents, Mapping):
        raise LabError(f"latents of {where} must be a dict, name -> tensor, and are {_described(latents)}")
    for name, values in latents.items():
        if not isinstance(values, Tensor) or values.shape not in (y.shape[:1], y.shape):
            raise LabError(
                f"latent {name} of {where} must have one value for each of {len(y)} samples, or, as y, one for each "
                f"answer, and is {_described(values)}"
            )
        if name.startswith(CLASSES) and (values.dtype != torch.int64 or (values < 0).any()):
            raise LabError(f"latent {name} of {where} must be a class, int64 from 0 on, and is {_described(values)}")
    if data.locations and type(data).scored is DataModule.scored:
        _check_locations(data, y, latents, where)


def _check_tokens(tokens: int | None, x: object, where: str) -> None:
    """Checks that inputs of data with a vocabulary lie in it: a model may take others for no token at all."""
    if tokens is None or not isinstance(x, Tensor) or not x.numel():
        return
    whole = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
    if not whole or not 0 <= int(x.min()) <= int(x.max()) < tokens:
        raise LabError(
            f"inputs of {where} must be whole numbers from 0 to {tokens - 1}, as model_arguments() gives "
            f"tokens={tokens}, and are {_described(x)}"
        )


def _check_locations(data: DataModule, y: Tensor, latents: Mapping[str, Tensor], where: str) -> None:
    """Checks what accuracies by location are computed from."""
    name, places, known = name_of(type(data)), latents.get("target_location"), len(data.locations)
    if places is None or places.shape != y.shape or not bool(((places >= 0) & (places < known)).all()):
        got = "has none" if places is None else f"has {_described(places)}"
        raise LabError(
            f"{name} has locations ({', '.join(data.locations)}), so the latent target_location has to give the place "
            f"of each answer, {list(y.shape)} from 0 to {known - 1}, but {where} {got}"
        )


def _described(value: object) -> str:
    """A value in a message: shape, type and range of a tensor, else its class."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    kind = f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return f"{kind} from {value.min():g} to {value.max():g}" if value.numel() and not value.is_complex() else kind


def same(one: Any, other: Any) -> bool:
    """Tells if two batches, or parts of them, hold the same numbers; NaN is the same as NaN."""
    if isinstance(one, Tensor):
        alike = isinstance(other, Tensor) and (one.shape, one.dtype) == (other.shape, other.dtype)
        return alike and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return not isinstance(one, bool | int | float | str) or one == other or one != one  # the last is NaN

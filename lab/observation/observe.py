"""Shows a probe set to diagnostics: one forward pass in chunks feeds all of them.

Shapes: B scenes of a chunk, H heads, N queries, M keys, D head dimension, W width.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from numbers import Number
from pathlib import PurePath
from typing import Any, Protocol

import numpy as np
import torch
from lightning.fabric.plugins.precision import Precision
from lightning.fabric.utilities import move_data_to_device
from lightning_utilities import apply_to_collection
from matplotlib.figure import Figure
from torch import Tensor, nn

from lab.attention.normaliser import Normaliser
from lab.attention.rule import TemperatureRule
from lab.console import LabError, blamed, name_of
from lab.datasets.loading import Batch, DataModule
from lab.models.observable import Observable, attention_layers_of, observable
from lab.observation.attention_statistics import shares
from lab.observation.recorder import QUANTITIES, Recorder, evaluating, own_random_numbers

# Number of scenes that stands for all scenes of the validation set.
EVERY_SCENE = sys.maxsize

# Numbers that a chunk may hold of what attention layers compute, all layers together: 128 MiB in float32.
_CHUNK_ELEMENTS = 2**25

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Chunk:
    """Some scenes of the probe set, and what the recorder read of them.

    Attributes:
        batch: ``{"x": ..., "y": [B], "latents": {name: [B]}}``, as the data module gives it.
        regions: where parts of the scene are, name -> bool [B, M] over the keys; parts of one kind also together
            (``indicator_1`` and ``indicator_2`` as ``indicator``).
        layers: what the recorder read, a dict by quantity for each layer; shapes: ``Recorder``.
        model: the model, to ask for its rules and weights.
        latent_names: names of the values of latents, as the data has them.
        token_names: returns the names of a sample's tokens, given its index in the chunk; [] where they have none.
    """

    batch: Batch
    regions: dict[str, Tensor]
    layers: list[dict[str, Tensor]]
    model: Observable
    latent_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    token_names: Callable[[int], list[str]] = lambda sample: []

    def __len__(self) -> int:
        return len(self.batch["y"])

    @property
    def rules(self) -> list[TemperatureRule]:
        """The temperature rule of every layer."""
        return self.model.rules()

    @property
    def normalisers(self) -> list[Normaliser]:
        """The normaliser of every layer."""
        return self.model.normalisers()

    @cached_property
    def shares(self) -> list[Tensor]:
        """The weights of every layer as shares of their rows, [B, H, N, M] in float32."""
        totals = (normaliser.total for normaliser in self.normalisers)
        return [shares(layer["weights"], total) for layer, total in zip(self.layers, totals, strict=True)]


@dataclass
class Findings:
    """Findings of a diagnostic at one moment of training.

    Attributes:
        rows: rows of the diagnostic's table; numbers and names by column.
        scalars: values for the loggers, by name; the diagnostic's name is put before it.
        histograms: values for the boards, by name, used where a picture is due.
        arrays: arrays by name, kept as one ``.npz`` where a picture is due.
        figures: functions that make a figure each, by name; called only where a picture is due.
    """

    rows: Rows = field(default_factory=list)
    scalars: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Tensor] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    figures: dict[str, Callable[[], Figure]] = field(default_factory=dict)


class Observer(Protocol):
    """Observer of a probe set: summarises each chunk, then turns all summaries into findings."""

    @property
    def reads(self) -> Sequence[str]: ...

    @property
    def scenes(self) -> int: ...

    def see(self, chunk: Chunk) -> Any: ...

    def conclude(self, seen: list[Any]) -> Findings: ...


def observe(
    model: nn.Module,
    data: DataModule,
    observers: Sequence[Observer],
    device: torch.device | str | None = None,
    precision: Precision | None = None,
    too_few: Callable[[Any, int], None] | None = None,
) -> list[Findings]:
    """Shows each observer as many first scenes of the validation set as it asks for; returns their findings.

        trained = lab.read_trained("runs/reasoning/norm_softmax/seed=0")
        (entropy,) = lab.observe(trained.model(), trained.data(), [AttentionEntropy("look")])

    Draws no random number of training, and leaves gradients and training flags of the model as they were.

    Args:
        model: a transformer of the lab.
        data: its data module, set up.
        observers: diagnostics.
        device: where the model is; None asks the model.
        precision: the trainer's; only the forward pass of the model uses it. None is full precision.
        too_few: called with the observer that asks for most scenes and the number there is, if there are not enough.

    Raises:
        LabError: if the model is none or has no attention, data is no data module, or there is no observer, or one
            that cannot look at scenes.
    """
    check_observers(observers)
    if not attention_layers_of(model):
        names = ", ".join(type(observer).__name__ for observer in observers)
        raise LabError(f"{type(model).__name__} has no attention, so {names or 'nobody'} cannot look into it")
    if not observers:
        raise LabError("lab.observe needs observers, as in [AttentionEntropy('look')]")
    for one in observers:
        if not isinstance(getattr(one, "scenes", None), int):
            raise LabError(f"{type(one).__name__} does not look at scenes of the validation set: leave it out")
    if not isinstance(data, DataModule):
        raise LabError(f"lab.observe takes a data module of the lab, got {type(data).__name__}: lab.look takes a batch")
    device = device_of(model) if device is None else torch.device(device)
    precision = precision or Precision()
    # Evaluation mode until the end: observers ask the rules again for the temperatures of the pass.
    with own_random_numbers(device), evaluating(model):
        seen: list[list[Any]] = [[] for _ in observers]
        stop = 0
        for start, stop, batch in _chunks(model, data, observers, device, precision):
            wanted = [index for index, observer in enumerate(observers) if observer.scenes > start]
            what = sorted({quantity for index in wanted for quantity in observers[index].reads})
            chunk = _read(model, data, batch, what, precision)
            for index in wanted:
                assert stop <= observers[index].scenes
                seen[index].append(seen_by(observers[index], chunk))
            del chunk
        asking = [observer for observer in observers if stop < observer.scenes != EVERY_SCENE]
        if too_few is not None and asking:
            too_few(max(asking, key=lambda observer: observer.scenes), stop)
        return [conclusion(observer, own) for observer, own in zip(observers, seen, strict=True)]


def check_observers(observers: object) -> None:
    """Refuses what is no list of observers.

    Raises:
        LabError: if it is no list, or holds a class or something else that cannot see.
    """
    if not isinstance(observers, Sequence) or isinstance(observers, str):
        raise LabError(f"observers are a list, as in [{type(observers).__name__}(...)]")
    for one in observers:
        if isinstance(one, type):
            raise LabError(f"{one.__name__} is a class: give an observer, as in {one.__name__}('look')")
        if isinstance(one, str):
            raise LabError(f"{one!r} is a name: give an observer, as in AttentionEntropy('look')")
        if isinstance(reads := getattr(one, "reads", ()), str):
            raise LabError(f"{type(one).__name__}.reads is a text: write a tuple, ({reads!r},)")
        if unknown := sorted(set(reads) - set(QUANTITIES)):
            raise LabError(
                f"{type(one).__name__}.reads names {', '.join(unknown)}, which the recorder does not know; valid: "
                f"{', '.join(QUANTITIES)}"
            )


def seen_by(observer: Observer, chunk: Chunk) -> Any:
    """Returns what an observer makes of a chunk.

    Raises:
        LabError: if it fails; says where.
    """
    with blamed(f"{type(observer).__name__}.see fails"):
        try:
            return observer.see(chunk)
        except KeyError as error:
            missing = error.args[0] if error.args else None
            if missing not in QUANTITIES or missing in observer.reads:
                raise
            raise LabError(
                f"{type(observer).__name__}.see uses {missing!r}, which it does not read: add it to its reads, as in "
                f"reads = {(*observer.reads, missing)}"
            ) from error


def conclusion(observer: Observer, seen: list[Any]) -> Findings:
    """Returns what an observer concludes from all chunks that it has seen.

    Raises:
        LabError: if it fails, or what it returns are no findings.
    """
    with blamed(f"{type(observer).__name__}.conclude fails"):
        found: object = observer.conclude(seen)
    if not isinstance(found, Findings):
        raise LabError(f"{type(observer).__name__}.conclude must return Findings, and returned {type(found).__name__}")
    parts: dict[str, tuple[Iterable[Any], Callable[[Any], bool]]] = {
        "rows are dicts, column -> value": (found.rows, lambda row: isinstance(row, Mapping)),
        "scalars are single numbers": (found.scalars.values(), _is_number),
        "values in rows are single": ((value for row in found.rows for value in row.values()), _is_single),
        "histograms are tensors": (found.histograms.values(), lambda value: isinstance(value, Tensor)),
        "arrays are numbers that numpy can save": (found.arrays.values(), _is_array),
        "figures are functions that make a figure": (found.figures.values(), callable),
        "names of figures are names of files": (found.figures, _is_file_name),
    }
    for words, (values, holds) in parts.items():
        if wrong := [value for value in values if not holds(value)]:
            told = repr(wrong[0]) if isinstance(wrong[0], str) else f"a {type(wrong[0]).__name__}"
            raise LabError(f"{type(observer).__name__}.conclude: {words}, and one is {told}")
    # A tensor would be written as its text.
    rows = [
        {column: value.item() if _is_scalar(value) else value for column, value in row.items()} for row in found.rows
    ]
    return replace(found, rows=rows)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0


def _is_number(value: Any) -> bool:
    return isinstance(value, Number | np.generic) or _is_scalar(value)


def _is_single(value: Any) -> bool:
    """Tells whether a value fits into one field of a table."""
    several = isinstance(value, Tensor | np.ndarray | Mapping | Set | Sequence) and not isinstance(value, str)
    return _is_scalar(value) or not several


def _is_array(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind in "biufc"
    except (TypeError, ValueError, RuntimeError):  # rows of several lengths; tensors that numpy cannot read
        return False


def _is_file_name(name: object) -> bool:
    """Tells whether a name leads to a file below the folder that it is written into."""
    return isinstance(name, str) and PurePath(name).name != "" and not {"/", ".."} & set(PurePath(name).parts)


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's parameters; the CPU for a model without any."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _chunks(
    model: nn.Module, data: DataModule, observers: Sequence[Observer], device: torch.device, precision: Precision
) -> Iterator[tuple[int, int, Batch]]:
    """(first scene, scene after the last, batch), cut so that a chunk ends where an observer has enough scenes."""
    ends = sorted({observer.scenes for observer in observers})
    # Batches after the validation set hold other kinds of samples and are not shown.
    last = min(ends[-1], data.validation_size)
    rows, measured = 0, None
    start = 0
    for batch in _batches(data, device):
        size, place = len(batch["y"]), 0
        # Batches may differ in the number of tokens, and so in the memory that a scene takes.
        shape = apply_to_collection(batch["x"], Tensor, lambda tensor: tensor.shape[1:])
        reading = any(observer.reads and observer.scenes > start for observer in observers)
        if reading and shape != measured:
            rows, measured = chunk_rows(model, _slice(batch["x"], 0, 1), precision), shape
        while place < size and start < last:
            room = min(last, next(end for end in ends if end > start)) - start
            take = min(rows if reading else size, size - place, room)
            yield start, start + take, _slice(batch, place, place + take)
            place += take
            start += take
        if start >= last:
            return


def _batches(data: DataModule, device: torch.device) -> Iterable[Batch]:
    if data.world_size > 1:
        data = data.alone()  # else each process would have a share of the set
    for batch in data.val_dataloader():
        yield data.on_after_batch_transfer(move_data_to_device(batch, device), 0)


def _slice(value: Any, start: int, stop: int) -> Any:
    return apply_to_collection(value, Tensor, lambda tensor: tensor[start:stop])


def read_layers(model: nn.Module, x: Any, what: Sequence[str], precision: Precision) -> list[dict[str, Tensor]]:
    """Quantities that the recorder reads of each layer, in one pass."""
    recorder = Recorder(model, what=what)
    with precision.forward_context():
        recorder.run(precision.convert_input(x))
    return list(recorder)


def chunk_rows(model: nn.Module, one: Any, precision: Precision) -> int:
    """Number of scenes per chunk, from the memory that one scene takes."""
    elements = 0
    for layer in read_layers(model, one, ("q", "k"), precision):
        q, k = layer["q"], layer["k"]
        heads, queries, width = q.shape[1:]
        elements += heads * (queries * k.shape[2] + 4 * max(queries, k.shape[2]) * width)
    return max(1, _CHUNK_ELEMENTS // elements)


def _read(model: nn.Module, data: DataModule, batch: Batch, what: Sequence[str], precision: Precision) -> Chunk:
    layers = read_layers(model, batch["x"], what, precision) if what else []
    plain = observable(model)
    assert plain is not None
    on_tokens = with_kinds({name: plain.on_tokens(region) for name, region in _regions(data, batch).items()})
    return Chunk(batch, on_tokens, layers, plain, data.latent_names, partial(data.token_names, batch))


def _regions(data: DataModule, batch: Batch) -> Mapping[str, Tensor]:
    """The regions of a batch.

    Raises:
        LabError: if the data fail to give them, or give something else; says which.
    """
    where = f"{name_of(type(data))}.regions"
    with blamed(f"{where} fails"):
        regions: object = data.regions(batch)
    if not isinstance(regions, Mapping):
        raise LabError(f"{where} must return a dict, name -> tensor of bool, and returned {type(regions).__name__}")
    for name, region in regions.items():
        if not isinstance(region, Tensor) or region.dtype != torch.bool:
            got = f"one of {region.dtype}" if isinstance(region, Tensor) else f"a {type(region).__name__}"
            raise LabError(f"{where}: {name} must be a tensor of bool, and is {got}")
    return regions


def with_kinds(regions: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Regions, and the unions of those of one kind: ``target`` is ``target_1`` or ``target_2``."""
    kinds: dict[str, Tensor] = {}
    for name, region in regions.items():
        kind, _, number = name.rpartition("_")
        if number.isdigit():
            kinds[kind] = kinds[kind] | region if kind in kinds else region
    return {**regions, **kinds}


def mean_over_scenes(chunks: Sequence[Tensor]) -> Tensor:
    """The mean over the scenes of all chunks, [B, ...] each; a scene without a value (NaN) is left out.

    It does not depend on how scenes are cut into chunks, as a mean of chunks' means would.
    """
    return torch.cat([chunk.double() for chunk in chunks]).nanmean(0)


def layers_over_scenes(chunks: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Means as in :func:`mean_over_scenes`, layer by layer, since layers may differ in heads or tokens."""
    return [mean_over_scenes(layer) for layer in zip(*chunks, strict=True)]


def head_rows(layer: int, **columns: Sequence[Any]) -> Rows:
    """One row for each head of a layer, from columns that hold one value per head."""
    values = zip(*columns.values(), strict=True)
    return [{"layer": layer, "head": head, **dict(zip(columns, own, strict=True))} for head, own in enumerate(values)]

"""Induction heads: attention, in a sequence that repeats itself, to what followed a token the first time.

Shapes: S sequences, B of them at once, H heads, N = 2 T tokens of a sequence (as keys M), C tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from lightning.fabric.plugins.precision import Precision
from matplotlib.figure import Figure
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from lab.attention.normaliser import Total
from lab.callbacks.diagnostics.base import Diagnostic
from lab.console import LabError
from lab.datasets.seeding import generator_of
from lab.datasets.text.tokens import SPECIAL
from lab.models.language import LanguageModel
from lab.models.observable import Observable
from lab.observation.attention_statistics import items_seen, shares
from lab.observation.observe import Chunk, Findings, chunk_rows, head_rows, layers_over_scenes, mean_over_scenes
from lab.observation.recorder import Recorder
from lab.plotting.figures import count_axis, legend_below, name_left, panels, shade_before
from lab.plotting.style import GUIDE, MAP, layer_colors, styled

_SCORES = {"prefix_matching": "to what followed before", "previous_token": "to the token before"}
_COLUMNS = ("prefix_matching", "prefix_even", "previous_token", "previous_even")
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# Larger maps have no numbers in their cells.
_NUMBERS = 12


class _Shown(NamedTuple):
    """A model, and how long its inputs are.

    Attributes:
        model: the model.
        length: tokens of an input.
        vocabulary: size of the vocabulary.
        device: where tokens are.
    """

    model: Observable
    length: int
    vocabulary: int
    device: torch.device


class InductionHeads(Diagnostic):
    """Scores of each head on T random tokens that come twice: does it find what followed a token the first time?

    Table: layer, head, prefix_matching (mean weight from each token of the second repeat to the one that followed it in
    the first), previous_token (mean weight from each token to the one before it), prefix_even and previous_even (the
    same of attention that is even over the keys that a token may see: chance). Where the model gives logits, a row with
    layer and head -1 has loss_first and loss_second, the mean loss in nats of the tokens of each repeat but its first
    one, and loss_change, the second minus the first: below 0 where the model copies. Scalars are the largest score of
    each layer, and the losses.

    Tokens are drawn evenly from the vocabulary, without special tokens, no token twice in a repeat; nothing stands
    before them. They are the same at each look. Where weights do not add up to one, scores are those of their shares
    (``lab.observation.attention_statistics.shares``).

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads" (prefix matching on random tokens that
    repeat); Elhage et al. 2021 (previous-token heads).

    Args:
        folder, every_n_epochs, pictures_every_n_epochs: as in :class:`Diagnostic`.
        sequences: how many sequences.
        repeat: tokens of a repeat, T; None takes half of the tokens of an input, or the whole vocabulary if that is
            less.
        seed: of the tokens.

    Raises:
        LabError: at a look, if the model does not read tokens alone, or its attention is not causal, or repeats do
            not fit.
    """

    reads = ("logits",)

    def __init__(
        self,
        folder: str,
        every_n_epochs: PositiveInt = 1,
        sequences: PositiveInt = 32,
        repeat: Annotated[int, Field(ge=2)] | None = None,
        seed: int = 0,
        pictures_every_n_epochs: NonNegativeInt = 10,
    ) -> None:
        super().__init__(folder, every_n_epochs, scenes=1, pictures_every_n_epochs=pictures_every_n_epochs)
        self.sequences = sequences
        self.repeat = repeat
        self.seed = seed

    def see(self, chunk: Chunk) -> _Shown:
        x, model = chunk.batch["x"], chunk.model
        tokens = x.get("input_ids") if isinstance(x, Mapping) else x
        if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.is_floating_point():
            raise self._refusal("a causal language model that reads tokens alone", "this one does not")
        length = tokens.shape[1]
        for index, layer in enumerate(chunk.layers):
            logits_BHNM = layer["logits"]
            square = logits_BHNM.shape[-2:] == (length, length)
            # triu keeps the keys that stand after their query.
            if not square or bool((~logits_BHNM.isneginf()).triu(1).any()):
                raise self._refusal("causal attention", f"in layer {index} tokens see others than those before them")
        with torch.no_grad():
            logits_BNC = _logits(model, tokens[:1])
        config = _config(model)
        vocabulary = getattr(config, "vocab_size", None) if logits_BNC is None else logits_BNC.shape[-1]
        if not isinstance(vocabulary, int):
            raise self._refusal("a language model", "this one does not tell the size of its vocabulary")
        return _Shown(model, length, vocabulary, tokens.device)

    def conclude(self, seen: list[Any]) -> Findings:
        shown: _Shown = max(seen, key=lambda one: one.length)
        tokens_SN = self._drawn(shown).to(shown.device)
        recorder = Recorder(shown.model, what=("logits", "weights"))
        totals = [normaliser.total for normaliser in shown.model.normalisers()]
        scores, losses = [], []
        for tokens_BN in tokens_SN.split(chunk_rows(shown.model, tokens_SN[:1], Precision())):
            logits_BNC = _logits_of(recorder.run(tokens_BN), tokens_BN)
            scores.append(
                [_scores(one["logits"], one["weights"], total) for one, total in zip(recorder, totals, strict=True)]
            )
            if logits_BNC is not None:
                losses.append(_losses(logits_BNC, tokens_BN))
        found = Findings()
        for index, score_XH in enumerate(layers_over_scenes(scores)):
            found.rows += head_rows(index, **dict(zip(_COLUMNS, score_XH.tolist(), strict=True)))
            for name in _SCORES:
                found.scalars[f"{name}/layer_{index}"] = float(score_XH[_COLUMNS.index(name)].max())
        table = pd.DataFrame(found.rows)
        found.figures["heads"] = partial(_heads, table)
        if losses:
            first, second = mean_over_scenes(losses).tolist()
            told = {"loss_first": first, "loss_second": second, "loss_change": second - first}
            found.rows.append({"layer": -1, "head": -1, **told})
            found.scalars |= told
        return found

    @styled()
    def history(self, table: pd.DataFrame, moment: float | None) -> Figure:
        """Over training: the largest score of each layer, the loss of both repeats; the newest score of each head."""
        own, whole = table[table["layer"] >= 0], table[table["layer"] < 0]
        figure, axes = panels(4 if len(whole) else 3, width=3.0, columns=2)
        layers = sorted(own["layer"].unique())
        for panel, (name, told) in zip(axes, _SCORES.items(), strict=False):
            for layer, color in zip(layers, layer_colors(len(layers)), strict=True):
                largest = own[own["layer"] == layer].groupby("step")[name].max()
                panel.plot(largest.index, largest.to_numpy(), color=color, label=f"largest in layer {layer}")
            even = own.groupby("step")[f"{name.split('_')[0]}_even"].mean()
            panel.plot(even.index, even.to_numpy(), "--", color=GUIDE, label="even attention")
            panel.set(title=told, ylim=(-0.03, 1.03))
        name_left(axes[:1], "attention")
        for name, style in (("first", ":"), ("second", "-")) if len(whole) else ():
            axes[2].plot(whole["step"], whole[f"loss_{name}"], style, color="C1", label=f"loss of the {name} repeat")
        for panel in axes[:-1]:
            count_axis(panel, "step")
            shade_before(panel, moment)
        if len(whole):
            axes[2].set_ylabel("loss (nats)")
        newest = own[own["step"] == own["step"].max()]
        figure.colorbar(_map(axes[-1], newest, "prefix_matching"), ax=axes[-1], label="attention")
        axes[-1].set_title(f"{_SCORES['prefix_matching']}, newest")
        legend_below(figure)
        return figure

    def _drawn(self, shown: _Shown) -> Tensor:
        """Sequences of tokens that come twice, [S, N] int64 on the CPU.

        Raises:
            LabError: if repeats do not fit into an input.
        """
        ordinary_C = _ordinary(shown.model, shown.vocabulary)
        most = min(shown.length // 2, int(ordinary_C.sum()))
        if (self.repeat or 2) > most:
            raise LabError(
                f"{self.place}.repeat={self.repeat or 2}: inputs have {shown.length:,} tokens, and no token comes twice "
                f"in a repeat, so that it has {most:,} tokens at most"
            )
        generator = generator_of("induction heads", self.seed)
        weights_SC = ordinary_C.float().expand(self.sequences, -1)
        return torch.multinomial(weights_SC, self.repeat or most, generator=generator).repeat(1, 2)

    def _refusal(self, needs: str, has: str) -> LabError:
        return LabError(f"{self.place} needs {needs}, and {has}: leave it out")


def _config(model: Observable) -> Any:
    """Config of a model of ``transformers`` (of its text part); None of another model."""
    config: Any = getattr(getattr(model, "model", None), "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _logits(model: Observable, tokens_BN: Tensor) -> Tensor | None:
    """Logits of the next token, [B, N, C]; None of a model that does not predict it."""
    return _logits_of(model.forward(tokens_BN), tokens_BN)


def _logits_of(out: Any, tokens_BN: Tensor) -> Tensor | None:
    """Logits in what a model returns, [B, N, C]; None where there are none."""
    logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
    return logits if isinstance(logits, Tensor) and logits.dim() == 3 and logits.shape[:2] == tokens_BN.shape else None


def _ordinary(model: Observable, vocabulary: int) -> Tensor:
    """True for each token that stands for text, as far as the model tells, bool [C]."""
    named = [getattr(_config(model), name, None) for name in _SPECIAL_IDS]
    special = {one for ids in named for one in (ids if isinstance(ids, list | tuple) else [ids]) if one is not None}
    if isinstance(model, LanguageModel):
        special |= set(range(len(SPECIAL)))
    ordinary_C = torch.ones(vocabulary, dtype=torch.bool)
    ordinary_C[[one for one in special if 0 <= one < vocabulary]] = False
    return ordinary_C


def _scores(logits_BHNM: Tensor, weights_BHNM: Tensor, total: Total) -> Tensor:
    """Scores of each head, [B, columns, H], on the CPU; columns as in the table."""
    even_BHNM = ~logits_BHNM.isneginf() / items_seen(logits_BHNM, total).unsqueeze(-1)
    T = logits_BHNM.shape[-1] // 2
    columns = []
    for offset, first in (
        (T - 1, 1),
        (1, 0),
    ):  # query n looks at key n - offset; query T - 1 is still in the first repeat
        for one in (shares(weights_BHNM, total), even_BHNM):
            columns.append(one.diagonal(-offset, dim1=-2, dim2=-1)[..., first:].mean(-1))
    return torch.stack(columns, dim=1).cpu()


def _losses(logits_BNC: Tensor, tokens_BN: Tensor) -> Tensor:
    """Mean loss of each repeat, in nats, [B, 2] on the CPU; the first token of each is left out, as it has no cue."""
    loss = F.cross_entropy(logits_BNC[:, :-1].flatten(0, 1).float(), tokens_BN[:, 1:].flatten(), reduction="none")
    loss_BN, T = loss.unflatten(0, (len(tokens_BN), -1)), tokens_BN.shape[1] // 2
    return torch.stack([loss_BN[:, : T - 1].mean(1), loss_BN[:, T:].mean(1)], dim=1).cpu()


def _map(axes: Any, table: pd.DataFrame, column: str) -> Any:
    """Draws a score, layers down and heads across, from 0 to 1; returns the picture, for a colour bar."""
    wide = table.pivot_table(column, "layer", "head").to_numpy(float)
    picture = axes.imshow(wide, vmin=0, vmax=1, cmap=MAP, aspect="auto")
    axes.grid(visible=False)
    axes.set(xlabel="head", ylabel="layer")
    axes.locator_params(integer=True)
    if max(wide.shape) <= _NUMBERS:
        for layer, head in np.ndindex(*wide.shape):
            value = wide[layer, head]
            axes.text(
                head,
                layer,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=6,
                color="black" if value > 0.6 else "white",
            )
    return picture


@styled()
def _heads(table: pd.DataFrame) -> Figure:
    """One map per score: layers down, heads across."""
    figure, axes = panels(len(_SCORES), width=3.0, height=max(1.6, 0.28 * table["layer"].nunique() + 0.8), columns=2)
    for panel, (name, told) in zip(axes, _SCORES.items(), strict=True):
        picture = _map(panel, table, name)
        panel.set_title(told)
    figure.colorbar(picture, ax=axes, label="attention", fraction=0.04, pad=0.02)
    return figure

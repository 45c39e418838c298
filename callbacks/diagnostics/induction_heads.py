"""Induction heads: attention, in a sequence that repeats itself, to what followed a token the first time.

Shapes: S sequences, B of them at once, H heads, N = 2 T tokens of a sequence (as keys M), C tokens
of the vocabulary, K tokens to draw from.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

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
from lab.datasets.text.tokens import END, SPECIAL, START
from lab.models.language import LanguageModel
from lab.models.observable import Observable
from lab.observation.attention_statistics import items_seen, shares
from lab.observation.observe import Chunk, Findings, chunk_rows, head_rows, layers_over_scenes, mean_over_scenes
from lab.observation.recorder import Recorder
from lab.plotting.figures import count_axis, legend_below, name_left, panels, shade_before
from lab.plotting.style import GUIDE, layer_colors, styled
from lab.plotting.weight_map import weight_map

_SCORES = {"prefix_matching": "to what followed before", "previous_token": "to the token before"}
_COLUMNS = ("prefix_matching", "prefix_even", "previous_token", "previous_even")
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# Larger maps have no numbers in their cells.
_NUMBERS = 12


class _Shown(NamedTuple):
    """Inputs that were shown.

    Attributes:
        model: the model.
        inputs: how many they are.
        length: tokens of an input.
        tokens: those that occur, [K] int64 on the CPU.
        device: where inputs are.
    """

    model: Observable
    inputs: int
    length: int
    tokens: Tensor
    device: torch.device


class InductionHeads(Diagnostic):
    """Scores of each head on T random tokens that come twice: does it find what followed a token the first time?

    Table: layer, head, prefix_matching (mean weight from each token of the second repeat to the one that followed it in
    the first), previous_token (mean weight from each token to the one before it), prefix_even and previous_even (the
    same of attention that is even over the keys that a token may see: chance). Where the model gives logits, a row with
    layer and head -1 has loss_first and loss_second, the mean loss in nats of the tokens of each repeat but its first
    one, and loss_change, the second minus the first: below 0 where the model copies. Scalars are the largest score of
    each layer, and the losses.

    A head that always looks T - 1 tokens back scores high, too: it does not at another ``repeat``.

    Tokens are drawn evenly from those that occur in the inputs shown, without the special ones that the model's config
    names, no token twice in a repeat; nothing stands before them. Over training they are the same at each look. Where
    weights do not add up to one, scores are those of their shares (``lab.observation.attention_statistics.shares``).

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads" (prefix matching on random tokens that
    repeat); Elhage et al. 2021 (previous-token heads).

    Args:
        folder, every_n_epochs, pictures_every_n_epochs: as in :class:`Diagnostic`.
        scenes: how many texts to look at; as many sequences are made of their tokens.
        repeat: tokens of a repeat, T; None takes as many as fit: half of the tokens of an input, if as many occur.
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
        scenes: PositiveInt = 64,
        repeat: Annotated[int, Field(ge=2)] | None = None,
        seed: int = 0,
        pictures_every_n_epochs: NonNegativeInt = 10,
    ) -> None:
        super().__init__(folder, every_n_epochs, scenes, pictures_every_n_epochs)
        self.repeat = repeat
        self.seed = seed

    def see(self, chunk: Chunk) -> _Shown:
        x = chunk.batch["x"]
        tokens = x.get("input_ids") if isinstance(x, Mapping) else x
        if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.is_floating_point():
            raise self._refusal("a causal language model that reads tokens alone", "this one does not")
        for index, layer in enumerate(chunk.layers):
            logits_BHNM, length = layer["logits"], tokens.shape[1]
            # triu keeps the keys that stand after their query.
            if logits_BHNM.shape[-2:] != (length, length) or bool((~logits_BHNM.isneginf()).triu(1).any()):
                raise self._refusal("causal attention", f"in layer {index} tokens see others than those before them")
        return _Shown(chunk.model, len(tokens), tokens.shape[1], tokens.cpu().unique(), tokens.device)

    def conclude(self, seen: list[Any]) -> Findings:
        model, device = seen[0].model, seen[0].device
        tokens_SN = self._drawn(seen).to(device)
        recorder = Recorder(model, what=("logits", "weights"))
        totals = [normaliser.total for normaliser in model.normalisers()]
        scores, losses = [], []
        for tokens_BN in tokens_SN.split(chunk_rows(model, tokens_SN[:1], Precision())):
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
        found.figures["heads"] = partial(_heads, pd.DataFrame(found.rows))
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

    def _drawn(self, seen: list[_Shown]) -> Tensor:
        """Sequences of tokens that come twice, [S, N] int64 on the CPU.

        Raises:
            LabError: if repeats do not fit into an input, or too few tokens occur.
        """
        length = max(shown.length for shown in seen)
        tokens_K = torch.cat([shown.tokens for shown in seen]).unique()
        tokens_K = tokens_K[~torch.isin(tokens_K, _specials(seen[0].model))]
        most = min(length // 2, len(tokens_K))
        if (self.repeat or 2) > most:
            raise LabError(
                f"{self.place} draws tokens from its inputs, no token twice in a repeat, which is half of an input at "
                f"most: {length:,} tokens in an input and {len(tokens_K):,} different ones are too few for repeat="
                f"{self.repeat or 2}"
            )
        even_SK = torch.ones(sum(shown.inputs for shown in seen), len(tokens_K))
        places_ST = even_SK.multinomial(self.repeat or most, generator=generator_of("induction heads", self.seed))
        return tokens_K[places_ST].repeat(1, 2)

    def _refusal(self, needs: str, has: str) -> LabError:
        return LabError(f"{self.place} needs {needs}, and {has}: leave it out")


def _logits_of(out: Any, tokens_BN: Tensor) -> Tensor | None:
    """Logits in what a model returns, [B, N, C]; None where there are none."""
    logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
    return logits if isinstance(logits, Tensor) and logits.dim() == 3 and logits.shape[:2] == tokens_BN.shape else None


def _specials(model: Observable) -> Tensor:
    """Tokens that stand for no text, as far as the model tells, [...] int64."""
    config: Any = getattr(getattr(model, "model", None), "config", None)
    of_the_lab = isinstance(model, LanguageModel) and (config.bos_token_id, config.eos_token_id) == (START, END)
    named = [getattr(config, name, None) for name in _SPECIAL_IDS]
    found = [one for ids in named for one in (ids if isinstance(ids, list | tuple) else [ids]) if one is not None]
    return torch.tensor([*found, *(range(len(SPECIAL)) if of_the_lab else ())], dtype=torch.long)


def _scores(logits_BHNM: Tensor, weights_BHNM: Tensor, total: Total) -> Tensor:
    """Scores of each head, [B, columns, H], on the CPU; columns as in the table."""
    even_BHNM = ~logits_BHNM.isneginf() / items_seen(logits_BHNM, total).unsqueeze(-1)
    T = logits_BHNM.shape[-1] // 2
    columns = []
    # Query n looks at key n - offset; in the first case query T - 1 is left out, which is still in the first repeat.
    for offset, first in ((T - 1, 1), (1, 0)):
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
    picture = weight_map(axes, wide, numbers=max(wide.shape) <= _NUMBERS)
    axes.set(xlabel="head", ylabel="layer")
    axes.locator_params(integer=True)
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

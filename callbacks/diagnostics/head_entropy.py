"""Entropy of each head of a block at the end of a prompt, against the number of items in the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import lightning as L
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt
from scipy import stats

from lab.callbacks.diagnostics.base import NEEDS, CheckpointDiagnostic
from lab.console import LabError, tell
from lab.datasets.seeding import generator_of
from lab.models.observable import observable
from lab.observation.attention_statistics import items_seen, weight_entropy
from lab.observation.observe import Findings
from lab.observation.recorder import Recorder
from lab.observation.subject import Subject
from lab.plotting.figures import legend_below, new_figure
from lab.plotting.style import GUIDE, styled

PROMPT = "What is the maximum in the following sequence: {seq}? The maximum is:"
_PLACE = "{seq}"


class HeadEntropy(CheckpointDiagnostic):
    """Entropy of attention at the last token of a prompt, head by head, against the number of items in the prompt.

    Items are whole numbers, drawn uniformly from 0 to ``largest`` and separated by commas. Table: block, head,
    items, tokens (of the prompt, mean over draws), entropy in nats (mean over draws), low and high (its 95 %
    interval by Student's t, within 0 and log_n; empty for one draw), log_n (log of the number of keys that the
    token may see: the entropy of uniform attention). Arrays: ``entropy`` [draws, sizes, heads], ``tokens`` [draws,
    sizes]. Where weights do not add up to one, entropy is as in ``attention_entropy``. Sizes whose prompts are
    longer than the model takes are left out, with a note.

    Source: "softmax is not enough", Figure 3 (prompt, sizes 2^0 to 2^9, first block of Gemma 2B). The paper states
    neither the items nor the query; here the query is the last token.

    Args:
        folder: where the look is kept.
        block: the attention layer, from 0 on.
        sizes: numbers of items.
        draws: prompts of each size.
        largest: the largest item.
        prompt: the text, with ``{seq}`` where the items go.
        seed: of the items.

    Raises:
        ValueError: if the prompt has no place for the items.
    """

    needs = "text"

    def __init__(
        self,
        folder: str,
        block: NonNegativeInt = 0,
        sizes: Annotated[Sequence[PositiveInt], Field(min_length=1)] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
        draws: PositiveInt = 8,
        largest: PositiveInt = 999,
        prompt: str = PROMPT,
        seed: int = 0,
    ) -> None:
        super().__init__(folder)
        if _PLACE not in prompt:
            raise ValueError(f"callbacks.{self.name}.prompt must have {_PLACE} where the items go, got {prompt!r}")
        self.block = block
        self.sizes = sorted(set(sizes))
        self.draws = draws
        self.largest = largest
        self.prompt = prompt
        self.seed = seed

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        raise LabError(f"callbacks.{self.name} does not work during training: leave it out, and use lab.inspect after")

    def look(self, subject: Subject) -> Findings:
        """Entropies of the chosen block.

        Raises:
            LabError: if the model has no such block, reads no text, or takes none of the prompts.
        """
        model, encode = observable(subject.model), subject.encode
        if encode is None:
            raise LabError(f"{self.name} needs {NEEDS['text']}")
        layers = 0 if model is None else len(model.attention_layers())
        if model is None or self.block >= layers:
            raise LabError(
                f"callbacks.{self.name}.block={self.block}: the model has attention layers 0 to {layers - 1}"
            )
        prompts = [[encode(self._text(size, draw)) for size in self.sizes] for draw in range(self.draws)]
        tokens = np.array([[len(one) for one in row] for row in prompts])
        fits = tokens.max(0) <= (subject.longest or tokens.max())
        if not fits.any():
            raise LabError(
                f"callbacks.{self.name}: the model takes at most {subject.longest} tokens, and prompts of every size "
                "have more"
            )
        if not fits.all():
            left = ", ".join(str(size) for size, fit in zip(self.sizes, fits, strict=True) if not fit)
            tell(f"{self.name}: sizes {left} left out: their prompts have more than {subject.longest} tokens")
        sizes = [size for size, fit in zip(self.sizes, fits, strict=True) if fit]
        device = next(model.parameters()).device
        recorder = Recorder(model, [self.block], ("logits", "weights"))
        total = model.normalisers()[self.block].total
        entropies, logs = [], []
        for row in prompts:
            for prompt, fit in zip(row, fits, strict=True):
                if fit:
                    recorder.run(torch.tensor([prompt], device=device))
                    seen = {name: value[:, :, -1:] for name, value in recorder[self.block].items()}
                    entropies.append(weight_entropy(seen["weights"], total).flatten().cpu().numpy())
                    logs.append(np.log(float(items_seen(seen["logits"], total).max())))
        entropy_KSH = np.stack(entropies).reshape(self.draws, len(sizes), -1)
        return self._found(sizes, entropy_KSH, tokens[:, fits], np.array(logs).reshape(self.draws, -1))

    def _text(self, size: int, draw: int) -> str:
        items = torch.randint(self.largest + 1, (size,), generator=generator_of("head entropy", self.seed, size, draw))
        return self.prompt.replace(_PLACE, ", ".join(map(str, items.tolist())))

    def _found(
        self,
        sizes: Sequence[int],
        entropy_KSH: NDArray[np.floating],
        tokens_KS: NDArray[np.integer],
        logs_KS: NDArray[np.floating],
    ) -> Findings:
        mean_SH = entropy_KSH.mean(0)
        half_SH = np.full_like(mean_SH, np.nan)
        if self.draws > 1:
            half_SH = stats.t.ppf(0.975, self.draws - 1) * stats.sem(entropy_KSH, axis=0)
        found = Findings(arrays={"entropy": entropy_KSH, "tokens": tokens_KS})
        for s, head in np.ndindex(*mean_SH.shape):
            mean, half = float(mean_SH[s, head]), float(half_SH[s, head])
            row = {"block": self.block, "head": head, "items": sizes[s], "tokens": float(tokens_KS[:, s].mean())}
            log_n = float(logs_KS[:, s].mean())
            # NaN, of a single draw, stays NaN.
            low, high = (float(one) for one in np.clip([mean - half, mean + half], 0.0, log_n))
            row |= {"entropy": mean, "low": low, "high": high, "log_n": log_n}
            found.rows.append(row)
        found.figures["items"] = partial(_lines, pd.DataFrame(found.rows))
        return found


@styled()
def _lines(table: pd.DataFrame) -> Figure:
    """One line per head with its interval, and log n."""
    figure, axes = new_figure(4.8, 3)
    for head, own in table.groupby("head"):
        (line,) = axes.plot(own["items"], own["entropy"], marker=".", label=f"head {head}")
        axes.fill_between(own["items"], own["low"], own["high"], color=line.get_color(), alpha=0.2, linewidth=0)
    uniform = table.groupby("items")["log_n"].mean()
    axes.plot(uniform.index, uniform.to_numpy(), "--", color=GUIDE, label="log n: uniform attention")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="items in the prompt", ylabel="entropy in nats", ylim=(0, None))
    axes.set_title(f"block {table['block'].iloc[0]}, last token of the prompt")
    legend_below(figure)
    return figure

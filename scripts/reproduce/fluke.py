"""Toy figure of "Softmax attention is a fluke": softmax of Gaussian logits flattens as their number grows.

    python -m scripts.reproduce.fluke

Takes seconds: nothing is trained. Compares softmax of N(0, 1) logits at 2, 5, 25 and 1,000 items, alone and under each
temperature rule that depends on the number of keys; rules with a trained length are made for 25 keys.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lab.attention.functional import attend_explicit
from lab.attention.rule import TemperatureRule
from lab.attention.rules.entropy_matched import EntropyMatched
from lab.attention.rules.fixed import Fixed
from lab.attention.rules.log_length import LogLength
from lab.config.arguments import Parser
from lab.console import LabError, refusals
from lab.files import write_text
from lab.observation.dispersion import entropy
from lab.plotting.figures import new_figure, save_figure
from lab.plotting.style import line_styles, styled
from scripts.reproduce.common import markdown, origin, positive

SIZES = (2, 5, 25, 1000)
TRAINED = 25
SHOWN = 25  # weights of a picture
# Entropies that the paper's text states, each of a single draw.
TOLD = {25: 2.80, 1000: 6.39}


def rules() -> dict[str, TemperatureRule]:
    """Temperature rules by the words that choose them."""
    return {
        "softmax": Fixed(1, 1),
        "log_length form=log_n": LogLength(1, 1, form="log_n"),
        "log_length form=sqrt_log_ratio": LogLength(1, 1, form="sqrt_log_ratio", trained_length=TRAINED),
        "log_length form=learned, at its start": LogLength(1, 1, form="learned", trained_length=TRAINED),
        "entropy_matched": EntropyMatched(1, 1, trained_length=TRAINED),
    }


@torch.no_grad()
def weights_of(rule: TemperatureRule, logits: Tensor) -> Tensor:
    """Softmax of logits [draws, n] under a rule, [draws, n]."""
    keys = logits[:, None, :, None]
    return attend_explicit(torch.ones_like(keys[:, :, :1]), keys, keys, rule).weights[:, 0, 0]


def measured(draws: int, seed: int) -> dict[str, dict[int, Tensor]]:
    """Rule -> size -> weights [draws, n] of the same logits."""
    generator = torch.Generator().manual_seed(seed)
    logits = {n: torch.randn(draws, n, generator=generator, dtype=torch.float64) for n in SIZES}
    return {name: {n: weights_of(rule.double(), x) for n, x in logits.items()} for name, rule in rules().items()}


def table(found: Mapping[str, Mapping[int, Tensor]]) -> pd.DataFrame:
    """Entropy in nats and largest weight, mean and deviation over draws, one row per rule."""
    rows: dict[str, dict[str, str]] = {name: {} for name in found}
    for name, by_size in found.items():
        for n, weights in by_size.items():
            H, most = entropy(weights.log()), weights.amax(-1)
            rows[name][f"entropy, {n:,}"] = f"{H.mean():.2f} ± {H.std():.2f}"
            rows[name][f"largest, {n:,}"] = f"{most.mean():.3f} ± {most.std():.3f}"
    columns = [f"{what}, {n:,}" for what in ("entropy", "largest") for n in SIZES]
    return pd.DataFrame(rows).T[columns].rename_axis("softmax")


@styled()
def figure_of(found: Mapping[str, Mapping[int, Tensor]]) -> Figure:
    """The largest weights of one draw, in order: one row per rule, one column per size."""
    figure, panels = new_figure(7, 1.25 * len(found), len(found), len(SIZES), sharex=True, sharey=True)
    styles = line_styles([name.split()[0] for name in found])
    for row, (name, by_size), style in zip(panels, found.items(), styles, strict=True):
        for axes, (n, weights) in zip(row, by_size.items(), strict=True):
            one = weights[0].sort(descending=True).values
            axes.bar(range(len(one[:SHOWN])), one[:SHOWN].numpy(), color=style.color)
            told = f"H = {entropy(one.log()[None]).item():.2f}, largest {one[0].item():.2f}"
            axes.set(xlim=(-1, SHOWN), ylim=(0, 1), xticks=[], title=f"n = {n:,}\n{told}")
        row[0].set_ylabel(textwrap.fill(name, 20), rotation=0, ha="right", va="center")
    figure.supxlabel(f"the {SHOWN} largest weights of one draw, in order")
    return figure


def page(found: Mapping[str, Mapping[int, Tensor]], draws: int, seed: int) -> str:
    """The page of results."""
    here = {n: entropy(found["softmax"][n].log()) for n in TOLD}
    told = "; ".join(
        f"{value:.2f} nats at {n:,} items there, {here[n].mean():.2f} ± {here[n].std():.2f} here"
        for n, value in TOLD.items()
    )
    return "\n\n".join(
        [
            '# "Softmax attention is a fluke": softmax flattens with the number of items',
            origin(),
            f"Softmax of N(0, 1) logits, {draws:,} draws of each size (seed {seed}), mean and deviation over draws; "
            f"entropies in nats. All rules see the same logits; those with a trained length have {TRAINED} items. The "
            f"text tells the entropy of one draw: {told}.",
            markdown(table(found), index=True, stralign="right"),
            "entropy_matched takes logits for Gaussian, which is exact for many keys and little spread alone.",
            f"## One draw, its {SHOWN} largest weights",
            "![Weights](weights.png)",
        ]
    )


def main(out: Path, draws: int, seed: int) -> None:
    """Writes page and picture.

    Raises:
        LabError: if there is a single draw, which has no deviation, or no generator takes the seed.
    """
    if not 0 <= seed < 2**63:
        raise LabError(f"--seed {seed} is wrong: give a whole number from 0 to 2^63 - 1")
    if draws < 2:
        raise LabError("--draws 1 has no deviation over draws: give at least 2")
    found = measured(draws, seed)
    save_figure(figure_of(found), out / "weights.png", pdf=True)
    write_text(out / "README.md", page(found, draws, seed) + "\n")
    print(f"written: {out}")


if __name__ == "__main__":
    parser = Parser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/fluke"), help="folder of the page")
    parser.add_argument("--draws", type=positive, default=1000, help="of each size")
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    with refusals():
        main(parsed.out, parsed.draws, parsed.seed)

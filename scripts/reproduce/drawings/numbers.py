"""Numbers of what a layout draws, for the page below it: the paper's words can be held against them.

Each function takes runs and the options of the figure's layout, and returns what its numbers are and a table of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lab.callbacks.diagnostics.attention_scores import BINS, all_counts
from lab.report.figures import shares_of_v
from scripts.reproduce.drawings.probes import QUANTITIES, REPRESENTATIONS, TOKENS, last_look
from scripts.reproduce.drawings.runs import Shown, layers_logged

# First bin of attention weights that count as large: 0.32 and more.
_LARGE = 8
_BEFORE = "before the Eureka-moment; without one, over all of training"


def gradient_shares(runs: Sequence[Shown], layers: Sequence[int] | None = None) -> tuple[str, pd.DataFrame]:
    """Gradients of W_Q and W_K as shares of W_V's, of what :func:`training.gradient_norms` draws."""
    rows = []
    for run in runs:
        shown = layers_logged(run.folder, "gradient/q/layer_") if layers is None else layers
        for layer in shown:
            shares = shares_of_v(run.folder, run.moment(), layer)
            told = {name: f"{shares[name]:.2g}" if name in shares else "too few steps" for name in ("W_Q", "W_K")}
            rows.append({"run": run.label, "layer": str(layer)} | told)
    return f"Mean |gradient| over that of W_V, the median {_BEFORE}", pd.DataFrame(rows)


def derivative_ratios(runs: Sequence[Shown]) -> tuple[str, pd.DataFrame]:
    """Derivatives on indicators over those on targets, of what :func:`training.derivatives_by_region` draws."""
    rows = []
    for run in runs:
        table, moment = run.table("attention_gradients"), run.moment()
        before = table if moment is None else table[table["step"] < moment]
        means = before.pivot_table(index=["layer", "step"], columns=["of", "region"], values="derivative")
        ratios = pd.DataFrame({of: means[of]["indicator"] / means[of]["target"] for of in "qkv"})
        for layer, medians in ratios.groupby(level="layer").median().iterrows():
            rows.append(
                {"run": run.label, "layer": str(layer)} | {f"dZ/d{of.upper()}": f"{medians[of]:.2f}" for of in "qkv"}
            )
    return f"Mean |derivative| on indicators over that on targets, the median {_BEFORE}", pd.DataFrame(rows)


def attention_shares(runs: Sequence[Shown]) -> tuple[str, pd.DataFrame]:
    """Shares of attention on indicators and on targets, of what :func:`maps.attention` draws."""
    rows, even = [], ""
    for run in runs:
        table = last_look(run.table("attention_mass"))
        tokens = run.arrays("attention_maps")["received"].shape[-1]
        for layer, own in table.groupby("layer"):
            kinds = own[own["region"].isin(["indicator", "target"])].groupby("region")[["mass", "tokens"]].mean()
            shares = {f"{kind}s": f"{mass:.1%}" for kind, mass in kinds["mass"].items()}
            rows.append({"run": run.label, "layer": str(layer)} | shares)
            even = " and ".join(f"{count / tokens:.1%}" for count in kinds["tokens"])
    about = f"Share of attention at the end of training, mean over queries, heads and scenes (even attention: {even})"
    return about, pd.DataFrame(rows)


def score_shares(runs: Sequence[Shown]) -> tuple[str, pd.DataFrame]:
    """Shares of small and large attention weights, of what :func:`training.attention_scores` draws."""
    rows = []
    for run in runs:
        counts = all_counts(run.table("attention_scores"), "epoch").sum().to_numpy()
        small, large = counts[0] / counts.sum(), counts[_LARGE:].sum() / counts.sum()
        rows.append(
            {"run": run.label, f"below {1 / BINS}": f"{small:.1%}", f"{_LARGE / BINS} and more": f"{large:.1%}"}
        )
    return "Share of all attention weights, over training", pd.DataFrame(rows)


def accuracies(
    runs: Sequence[Shown],
    quantities: Sequence[str],
    targets: Sequence[str],
    every: Sequence[str],
    layers: Sequence[int] | None = None,
) -> tuple[str, pd.DataFrame]:
    """Accuracies of probes, mean over heads in the best layer, of what :func:`probes.accuracy` draws."""
    rows = []
    for run in runs:
        table = last_look(run.table("linear_probes"))
        table = table if layers is None else table[table["layer"].isin(layers)]
        for quantity in quantities:
            for tokens in every:
                own = table[(table["quantity"] == quantity) & (table["tokens"] == tokens)]
                row: dict[str, Any] = {
                    "run": run.label,
                    "of": f"{QUANTITIES.get(quantity, quantity.upper())}, {TOKENS[tokens]}",
                }
                for target in targets:
                    of_target = own[own["target"] == target]
                    best = of_target.groupby("layer")["accuracy"].mean().max()
                    row[f"{target} (chance {of_target['chance'].iloc[0]:.0%})"] = f"{best:.1%}"
                rows.append(row)
    return "Accuracy of probes at the end of training, mean over heads, in the best layer", pd.DataFrame(rows)


def code_lengths(
    runs: Sequence[Shown], targets: Sequence[str] = ("indicator_1", "target_location"), layers: Sequence[int] = ()
) -> tuple[str, pd.DataFrame]:
    """Code-lengths in the last quarter of looks, in the best layer, of what :func:`probes.code_length` draws."""
    rows = []
    for run in runs:
        table = run.table("code_length")
        table = table[table["layer"].isin(layers)] if layers else table
        late = table[table["step"] >= table["step"].drop_duplicates().quantile(0.75)]
        for quantity, tokens in REPRESENTATIONS:
            row: dict[str, Any] = {"run": run.label, "of": f"{QUANTITIES[quantity]}, {TOKENS[tokens]}"}
            for target in targets:
                wanted = {"target": target, "quantity": quantity, "tokens": tokens}
                own = late[(late[list(wanted)] == pd.Series(wanted)).all(axis=1)]
                row[target] = f"{(own['bits'] / own['uniform']).groupby(own['layer']).median().min():.2f}"
            rows.append(row)
    return "Code-length over the uniform code, median over the last quarter of looks, in the best layer", pd.DataFrame(
        rows
    )

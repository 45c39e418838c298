"""Table 1 and Figures 2, 4, 5 and 6 of "softmax is not enough": max retrieval far beyond the trained sizes.

    python -m scripts.reproduce.max_retrieval            # trains ten seeds together, then evaluates
    python -m scripts.reproduce.max_retrieval evaluate   # evaluates the newest checkpoints, while others train on

Stop it at any time: the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from omegaconf import DictConfig
from torch import Tensor, nn

from datasets.max_retrieval import Batch, MaxRetrievalData
from datasets.seeding import generator_of
from lab.dispersion import best_inverse_temperature, entropy, fit_beta
from lab.files import write_text
from lab.load import read_trained, softmax_config
from lab.models.set_attention import SetAttention
from lab.pictures import new_figure, save_figure
from lab.published import load
from lab.recorder import Recorder
from lab.run import read_summary
from lab.statistics import mean_over_seeds, paired
from lab.tell import refusals
from scripts.reproduce.common import folder_of, origin, speed_of, tell_duration, train

SIZES = tuple(2**power for power in range(4, 15))
PAPER = {row.label: row.cells for row in load("softmax_is_not_enough/table_1").rows}
# Coefficients of the published polynomial, highest power first.
_POWERS = [row.cells["coefficient"].mean for row in load("softmax_is_not_enough/figure_5").rows]
PUBLISHED = tuple(value for value in reversed(_POWERS) if value is not None)
# Items held at once: 128 MiB of features of width 128.
ITEMS_AT_ONCE = 2**18
ITEMS_IN_ALL = 2**21
MEASURES = ("baseline", "adaptive", "adaptive, refitted")
# Those that the paper has too -> its row.
ROWS = {"baseline": "Baseline", "adaptive": "Adaptive θ"}


def sets_of(size: int, sets: int) -> int:
    """Test sets of ``size`` items: fewer of the largest ones, where each costs a second."""
    return min(sets, max(sets // 8, ITEMS_IN_ALL // size))


def batches(size: int, sets: int, seed: int) -> Iterator[Batch]:
    """Test sets, the same for every softmax, others for every seed; in pieces that fit into memory."""
    data = MaxRetrievalData()
    step = max(1, min(sets, ITEMS_AT_ONCE // size))
    for start in range(0, sets, step):
        generator = generator_of("max_retrieval test", size, start, seed)
        yield data.draw(size, min(step, sets - start), generator)


@torch.no_grad()
def accuracies(models: dict[str, SetAttention], size: int, sets: int, seed: int) -> dict[str, float]:
    """Share of right answers on sets of ``size`` items, of models that differ in their softmax alone."""
    right = dict.fromkeys(models, 0)
    for batch in batches(size, sets, seed):
        embedded = next(iter(models.values())).embed(batch["x"])
        for name, model in models.items():
            right[name] += int((model.answer(*embedded).argmax(-1) == batch["y"]).sum())
    return {name: count / sets for name, count in right.items()}


def logits_and_largest(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Attention logits [B, n] at theta = 1 (the trained temperature), and which item is the largest [B]."""
    recorder = Recorder(model, what=("logits",))
    recorder.run(batch["x"])
    return recorder[0]["logits"][:, 0, 0], batch["latents"]["largest"]


def mistaken(models: Sequence[nn.Module], sets: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Entropies and best inverse temperatures of sets whose largest item has not the largest logit.

    Rows for which no temperature above 0 beats uniform weights are left out: they have no optimum to learn from.
    """
    entropies, betas = [], []
    for seed, model in enumerate(models):
        for size in SIZES:
            for batch in batches(size, sets, seed):
                logits, largest = logits_and_largest(model, batch)
                wrong = logits.argmax(-1) != largest
                best = best_inverse_temperature(logits[wrong], largest[wrong])
                entropies.append(entropy(logits[wrong].double())[best > 1e-3])
                betas.append(best[best > 1e-3])
    return torch.cat(entropies).numpy(), torch.cat(betas).numpy()


def attention_figure(softmaxes: dict[str, nn.Module], sets: int = 32, shown: int = 16) -> Figure:
    """Figures 2 and 6: attention over the 16 largest items of 32 sets, as the number of items doubles."""
    figure, panels = new_figure(1.25 * len(SIZES), 2.6 * len(softmaxes), len(softmaxes), len(SIZES))
    for row, (name, model) in zip(panels, softmaxes.items(), strict=True):
        recorder = Recorder(model, what=("weights",))
        for axes, size in zip(row, SIZES, strict=True):
            batch = next(batches(size, sets, seed=0))
            recorder.run(batch["x"])
            weights = recorder[0]["weights"][:, 0, 0]
            order = batch["x"][0][..., 0].argsort(1)[:, -shown:]
            image = axes.imshow(
                weights.gather(1, order).numpy(), vmin=0, vmax=1, aspect="auto", interpolation="nearest"
            )
            axes.set(xticks=[], yticks=[], title=f"{size:,}")
        row[0].set_ylabel(name)
    figure.colorbar(image, ax=panels, label="attention", shrink=0.8)
    return figure


def entropy_figure() -> Figure:
    """Figure 4: entropy of softmax at temperature theta of ten logits lambda^0 ... lambda^9."""
    spread, theta = torch.linspace(0, 1, 201, dtype=torch.float64), torch.logspace(-2, 1, 201, dtype=torch.float64)
    logits = spread.unsqueeze(1) ** torch.arange(10)
    values = torch.stack([entropy(logits, torch.full((len(spread),), float(1 / t))) for t in theta])
    figure, axes = new_figure(5.5, 4)
    mesh = axes.pcolormesh(spread.numpy(), theta.numpy(), values.numpy(), shading="auto")
    axes.set(yscale="log", xlabel="lambda (logits are its powers)", ylabel="temperature theta")
    figure.colorbar(mesh, label="entropy in nats")
    return figure


def fit_figure(entropies: NDArray[np.float64], betas: NDArray[np.float64], own: Sequence[float]) -> Figure:
    """Figure 5: the best temperature against the entropy, with the published and the refitted polynomial."""
    figure, axes = new_figure(6, 4)
    few = np.random.default_rng(0).permutation(len(betas))[:4000]
    axes.scatter(entropies[few], 1 / betas[few], s=2, alpha=0.2, color="0.4", label="best theta of a set")
    grid = np.linspace(0.5, float(entropies.max()), 300)
    for label, coefficients in (("published", PUBLISHED), ("refitted", own)):
        beta = np.maximum(np.polyval(coefficients, grid), 1.0)
        axes.plot(grid, 1 / beta, label=label)
    axes.set(xlabel="entropy H at theta = 1, in nats", ylabel="theta", ylim=(0, 1.5))
    axes.legend()
    return figure


def published(row: str, size: int) -> str:
    """A cell of the paper's Table 1."""
    return str(PAPER[row][f"size_{size}"])


def by_seed(scores: pd.DataFrame, measure: str, size: int) -> dict[int, float]:
    """Accuracy in % of each seed."""
    own = scores[(scores["measure"] == measure) & (scores["size"] == size)]
    return dict(zip(own["seed"].tolist(), (100 * own["accuracy"]).tolist(), strict=True))


def p_value(one: Mapping[int, float], other: Mapping[int, float]) -> str:
    """Of a paired t-test over seeds; "" where there is none."""
    found = paired(one, other).p if len(one) > 1 else None
    return "" if found is None else f"{found:.1g}"


def table(scores: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds at every size beside the paper's rows, and p-values of paired t-tests against the baseline."""
    rows: dict[str, list[str]] = {}
    by = {measure: {size: by_seed(scores, measure, size) for size in SIZES} for measure in MEASURES}
    for measure in MEASURES:
        means = [mean_over_seeds(list(by[measure][size].values()), bounds=(0, 100)) for size in SIZES]
        rows[f"{measure}, here"] = [f"{mean.value:.1f}" for mean in means]
        rows[f"{measure}, 95 % interval"] = [
            "" if mean.low is None else f"{mean.low:.1f} to {mean.high:.1f}" for mean in means
        ]
        if measure in ROWS:
            rows[f"{measure}, paper"] = [published(ROWS[measure], size) for size in SIZES]
    for measure in MEASURES[1:]:
        rows[f"p-value of {measure}, here"] = [p_value(by["baseline"][size], by[measure][size]) for size in SIZES]
    rows["p-value of adaptive, paper"] = [published("p-value", size) for size in SIZES]
    return pd.DataFrame(rows, index=[f"{size:,}" for size in SIZES]).T.rename_axis("accuracy in %")


def beside_the_paper(scores: pd.DataFrame) -> list[str]:
    """One sentence a measure: at which sizes the paper's mean lies outside the interval measured here."""
    told = []
    for measure, row in ROWS.items():
        outside = []
        for size in SIZES:
            mean = mean_over_seeds(list(by_seed(scores, measure, size).values()), bounds=(0, 100))
            paper = PAPER[row][f"size_{size}"].mean
            if mean.low is None or mean.high is None or paper is None:
                return []
            if not mean.low <= paper <= mean.high:
                outside.append(f"{size:,} ({paper:g} there, {mean.value:.1f} here)")
        where = "lies in it at every size"
        if outside:
            where = f"lies outside at {len(outside)} of {len(SIZES)} sizes: {', '.join(outside)}"
        told.append(f"{measure.capitalize()}: the paper's mean {where}.")
    return told


def evaluate(folders: Sequence[Path], out: Path, sets: int, fit_sets: int, command: str) -> None:
    """Everything of the paper that can be had from the newest checkpoints, as a page with pictures."""
    # Read once: a run that trains on beside this gives all softmaxes the same weights.
    trained = [read_trained(folder) for folder in folders]
    steps = sorted({one.step for one in trained})
    print(f"{len(trained)} seeds, trained for {' or '.join(f'{step:,}' for step in steps)} steps")
    entropies, betas = mistaken([one.model() for one in trained], fit_sets)
    own = fit_beta(entropies, betas)
    listed = ",".join(f"{value:.4f}" for value in own)
    rules: dict[str, DictConfig] = {
        "baseline": softmax_config("softmax"),
        "adaptive": softmax_config("adaptive_temperature"),
        "adaptive, refitted": softmax_config("adaptive_temperature", f"softmax.coefficients=[{listed}]"),
    }
    first: dict[str, SetAttention] = {}
    rows: list[dict[str, Any]] = []
    for seed, one in enumerate(trained):
        swapped: dict[str, Any] = {measure: one.model(rule) for measure, rule in rules.items()}
        first = first or swapped
        for size in SIZES:
            count = sets_of(size, sets)
            for measure, value in accuracies(swapped, size, count, seed).items():
                rows.append({"seed": seed, "measure": measure, "size": size, "sets": count, "accuracy": value})
        print(f"seed {seed}: evaluated", flush=True)
    scores = pd.DataFrame(rows)
    write_text(out / "accuracies.csv", scores.to_csv(index=False))
    save_figure(attention_figure({name: first[name] for name in MEASURES[:2]}), out / "figure_2_and_6.png")
    save_figure(entropy_figure(), out / "figure_4.png")
    save_figure(fit_figure(entropies, betas, own), out / "figure_5.png")
    text = [
        '# "softmax is not enough": max retrieval beyond the trained sizes',
        origin(command),
        f"{len(folders)} seeds, {' or '.join(f'{step:,}' for step in steps)} of 100,000 steps on sets of 5 to 16 items "
        f"(Adam, 1e-3, L2 penalty whose gradient is 1e-3 w); {sets:,} test sets of each size ({sets // 8:,} of the "
        "largest) for each seed. "
        "Every number by seed is in [accuracies.csv](accuracies.csv).",
        "## Table 1",
        table(scores).to_markdown(disable_numparse=True, stralign="right"),
        "Intervals are Student's over seeds. " + " ".join(beside_the_paper(scores)),
        "## Figures 2 and 6: attention over the 16 largest items of 32 sets (seed 0), as their number doubles",
        "![Attention](figure_2_and_6.png)",
        "## Figure 4: entropy against temperature",
        "![Entropy](figure_4.png)",
        "## Figure 5: the polynomial, fitted again",
        f"{len(betas):,} sets of 16 to 16,384 items, whose largest item has not the largest logit, of all seeds. "
        "To use it:",
        f"```\nsoftmax=adaptive_temperature softmax.coefficients=[{listed}]\n```",
        "![Fit](figure_5.png)",
    ]
    write_text(out / "README.md", "\n\n".join(text) + "\n")
    print(f"written: {out}")


def main(arguments: argparse.Namespace) -> None:
    """Trains what is missing, unless told only to evaluate."""
    options = [f"threads={arguments.threads}"] if arguments.threads else []
    overrides = ["experiment=max_retrieval", *options]
    folders = [
        folder_of(arguments.runs, "max_retrieval", "softmax", seed, overrides) for seed in range(arguments.seeds)
    ]
    if arguments.what == "all":
        together = [*overrides, f"seeds={arguments.seeds}"]
        left = 100_000 - min(read_summary(folder).get("steps", 0) for folder in folders)
        if left:
            seconds = left * speed_of([*together, "data.epoch_steps=100"]).per_step
            tell_duration(
                f"{left:,} steps of {arguments.seeds} seeds together, then half an hour of evaluation", seconds
            )
            if not train(together, arguments.runs):
                sys.exit(1)
    command = " ".join(["python -m scripts.reproduce.max_retrieval", *arguments.typed])
    evaluate(folders, arguments.out, arguments.sets, arguments.fit_sets, command)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("all", "evaluate"), default="all")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("results/max_retrieval"), help="folder of the page")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sets", type=int, default=1000, help="test sets of each size")
    parser.add_argument("--fit-sets", type=int, default=60, help="sets of each size and seed for the fit of Figure 5")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of the training")
    parsed = parser.parse_args()
    parsed.typed = sys.argv[1:]
    with refusals():
        main(parsed)

"""Measures the cost of diagnostics compared with the training that they watch, and of probes compared with SGD.

Shapes: P representations, n scenes, d features.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from lab.bench.cases import Case
from lab.callbacks.diagnostics.base import Diagnostic
from lab.callbacks.diagnostics.gradient_norms import gradient_norms
from lab.config.compose import CONFIGS, compose_config
from lab.datasets.drawn import DrawnDigits, DrawnGarments
from lab.datasets.tasks.main import MainTask
from lab.datasets.vision import VisionData
from lab.models.compact_vit import CompactViT
from lab.observation.observe import observe
from lab.observation.probes import Targets, probe_accuracy

EPOCH_SAMPLES = 60_000
GRADIENT_NORMS_EVERY = 50
# The 7-layer, 4-head ViT: z, q, k and v of every head, at the CLS token and as the mean over tokens.
HEADS, PROBED, WIDTH, TOKENS = 28, 28 * 4 * 2, 64, 197
FULL_SCENES = 4000
# Classes of each latent of the main task: indicators and their colours, target location, both targets, label.
CLASSES = {"a": 2, "b": 2, "c": 2, "d": 2, "e": 2, "f": 10, "g": 10, "h": 10}
SGD_EPOCHS, SGD_BATCH = 70, 256


def every_diagnostic(folder: Path) -> list[Diagnostic]:
    """All diagnostics of a ViT that have a config, as their configs set them."""
    found = []
    for path in sorted((CONFIGS / "callbacks").glob("*.yaml")):
        config = compose_config([f"callbacks=[{path.stem}]", f"paths.run='{folder}'"])
        made = [instantiate(node) for node in config.callbacks.values()]
        # Of texts, which a ViT does not read.
        textual = ("exact_match", "induction_heads")
        found += [one for one in made if isinstance(one, Diagnostic) and len(made) == 1 and one.name not in textual]
    return found


def cost_of_looking(case: Case, step_seconds: list[float], model: CompactViT) -> dict[str, list[float]]:
    """Share of an epoch's training time that all diagnostics take at their default cadence, and when none is due."""
    sizes = {"train_size": 1000, "test_size": 200}
    sources = {"digits": DrawnDigits(**sizes), "garments": DrawnGarments(**sizes)}
    data = VisionData(MainTask(), sources, batch_size=case.batch)
    data.setup()
    steps = EPOCH_SAMPLES / case.batch
    epoch = steps * statistics.median(step_seconds)
    with TemporaryDirectory() as folder:
        diagnostics = every_diagnostic(Path(folder))
        if case.quick:
            for one in diagnostics:
                one.scenes = min(one.scenes, 64)
        device = torch.device(case.device)
        if device.type == "cuda":  # the first call also loads its kernels
            observe(model, data, diagnostics, device)
        started = time.perf_counter()
        found = observe(model, data, diagnostics, device)
        for one, findings in zip(diagnostics, found, strict=True):
            one.keep(findings, 1, 1)
        look = time.perf_counter() - started
        started = time.perf_counter()
        for one, findings in zip(diagnostics, found, strict=True):
            one.draw_found(findings)
        pictures = (time.perf_counter() - started) / diagnostics[0].pictures_every_n_epochs
    gradient_norms(model)  # for the same reason
    started = time.perf_counter()
    gradient_norms(model)
    norms = (time.perf_counter() - started) * steps / GRADIENT_NORMS_EVERY
    nobody: Any = None
    trainer: Any = SimpleNamespace(is_global_zero=True, current_epoch=0, callbacks=diagnostics)
    for one in diagnostics:
        one.every_n_epochs = 10**9
    started = time.perf_counter()
    for one in diagnostics:
        one.on_train_epoch_end(trainer, nobody)
    off = time.perf_counter() - started
    return {
        "all diagnostics / training": [(look + pictures + norms) / epoch],
        "gradient norms / training": [norms / epoch],
        "none due / training": [off / epoch],
    }


def planted(representations: int, scenes: int, width: int) -> tuple[Tensor, Targets]:
    """Random representations that hold each target to some degree, as those of a trained model do."""
    make = torch.Generator().manual_seed(0)
    labels = {name: torch.randint(size, (scenes,), generator=make) for name, size in CLASSES.items()}
    features = torch.randn(representations, scenes, width, generator=make)
    for values in labels.values():
        codes = torch.randn(representations, int(values.max()) + 1, width, generator=make) / width**0.5
        features += torch.rand(representations, 1, 1, generator=make) * 2 * codes[:, values]
    return features, Targets.of(labels)


def time_of_probes(case: Case) -> dict[str, list[float]]:
    """Seconds of the batched solves, how much quicker they are than SGD, and how far their accuracies differ."""
    representations = 16 if case.quick else PROBED
    features, targets = planted(representations, case.batch, WIDTH)
    few, theirs = planted(1, 200, WIDTH)
    probe_accuracy(few.to(case.device), theirs)  # on a GPU the first call also loads its kernels
    started = time.perf_counter()
    accuracy_PT = probe_accuracy(features.to(case.device), targets)
    batched = time.perf_counter() - started
    sample, seconds, apart = (0, representations // 2, representations - 1), [], []
    for row in sample:
        for column in (0, len(CLASSES) - 1):
            started = time.perf_counter()
            alone = sgd_probe(features[row].to(case.device), targets.labels[column].to(case.device))
            seconds.append(time.perf_counter() - started)
            apart.append(100 * abs(alone - float(accuracy_PT[row, column])))
    one_by_one = statistics.mean(seconds) * representations * len(CLASSES)
    del features
    heads = 1 if case.quick else HEADS
    scenes = 500 if case.quick else FULL_SCENES
    whole = 0.0
    for _ in range(heads):
        full, full_targets = planted(1, scenes, WIDTH * TOKENS)
        started = time.perf_counter()
        probe_accuracy(full.to(case.device), full_targets)
        whole += time.perf_counter() - started
    return {
        f"{representations} representations, {case.batch:,} scenes": [batched],
        f"whole representation of {heads} heads, {scenes:,} scenes": [whole],
        f"SGD one by one, as {len(seconds)} fits tell, / batched": [one_by_one / batched],
        f"largest difference to SGD of {len(apart)} fits": [max(apart)],
    }


def sgd_probe(features: Tensor, labels: Tensor) -> float:
    """Held-out accuracy of one probe on one target, by 70 epochs of Adam as in A.12; features are standardised."""
    cut = len(labels) * 3 // 4
    x = (features - features[:cut].mean(0)) / features[:cut].std(0)
    probe = nn.Linear(x.shape[1], int(labels.max()) + 1, device=x.device)
    optimizer = torch.optim.Adam(probe.parameters(), lr=1e-3, fused=True)
    for _ in range(SGD_EPOCHS):
        for rows in torch.randperm(cut, device=x.device).split(SGD_BATCH):
            loss = nn.functional.cross_entropy(probe(x[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return float((probe(x[cut:]).argmax(1) == labels[cut:]).float().mean())

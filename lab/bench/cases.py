"""Cases and rows of the benchmark: a case runs in one process, a row is one of its numbers.

Both hold plain values only, so that they can be sent from one process to another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from typing import Any

# Groups that are measured on a GPU alone.
ON_A_GPU = ("windows",)
# Measured where no others are asked for.
SOFTMAXES = ("softmax", "norm_softmax", "learnable_temperature", "adaptive_temperature")
# Models of other libraries: a ViT-Ti/16 at 224 pixels, and a small GPT-2 on texts of 256 tokens, whose library is an
# optional extra.
VIT, GPT2 = "ViT-Ti of timm", "GPT-2 of transformers"
PATHS = ("fused", "explicit")
PRECISIONS = ("float32", "bfloat16")
MODES = ("eager", "compile")
HEADS, HEAD_DIM = 4, 64  # the compact ViT's
# Sequence lengths: compact ViT at patches of 14, 7 and 4 pixels (+ CLS), then image sizes beyond the papers'.
TOKENS = (17, 65, 197, 577, 1025)
# Sequence lengths of local attention: the compact ViT's, then longer ones, for which windows are made.
WINDOWED = (197, 1025, 4097)
# Group -> samples a step, and with --quick.
BATCH_SIZES = {
    "compose": (512, 256),
    "train": (64, 8),
    "ratio": (64, 8),
    "attention": (16, 4),
    "replace": (8, 2),
    "seeds": (4392, 4392),
    "diagnostics": (64, 8),
    "probes": (20_000, 1000),
    "gather": (1000, 100),
    "windows": (16, 4),
}
GROUPS = tuple(BATCH_SIZES)
# Groups whose batch size is given by the task.
FIXED_SIZE = ("seeds",)


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        group: one of GROUPS.
        quantity: what is timed; "" where the group says it all.
        softmax: its name, in ``configs/softmax`` or that of a class; "" where there is none.
        path: "fused" or "explicit" attention; "" where there is none.
        precision: "float32" or "bfloat16" (autocast).
        mode: "eager" or "compile" (torch.compile).
        tokens: sequence length N; 0 where it is the model's own.
        batch: samples a step.
        device: "cpu" or "cuda".
        threads: CPU threads.
        seconds: how long to measure, warm-up not counted.
        quick: small image banks and few rounds.
    """

    group: str
    quantity: str = ""
    softmax: str = ""
    path: str = ""
    precision: str = "float32"
    mode: str = "eager"
    tokens: int = 0
    batch: int = 1
    device: str = "cpu"
    threads: int = 1
    seconds: float = 1.0
    quick: bool = False

    def setting(self) -> dict[str, Any]:
        """Returns the values of the case that a row of the table repeats."""
        names = ("group", "softmax", "path", "precision", "mode", "tokens", "batch")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        shape = [f"N={self.tokens}"] if self.tokens else []
        words = [self.group, self.quantity, self.softmax, self.path, self.precision, self.mode, *shape]
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Row:
    """One number of the table: median and quartiles over ``rounds`` timed rounds.

    ``peak_mib`` is the process's largest resident set during the timed rounds (GPU: the most that torch had
    allocated), ``growth_mib`` the part of it that was not there before the case built anything. ``error``
    tells why there is no number.
    """

    group: str
    quantity: str
    softmax: str
    path: str
    precision: str
    mode: str
    tokens: int
    batch: int
    unit: str
    median: float | None = None
    lower_quartile: float | None = None
    upper_quartile: float | None = None
    rounds: int = 0
    peak_mib: float | None = None
    growth_mib: float | None = None
    error: str = ""


def cases(
    groups: Sequence[str],
    device: str,
    threads: int,
    seconds: float,
    batch: int | None = None,
    quick: bool = False,
    precisions: Sequence[str] = PRECISIONS,
    softmaxes: Sequence[str] | None = None,
) -> Iterator[Case]:
    """The cases of these groups, in the order of the table; ``batch`` None takes each group's own size.

    ``softmaxes`` None takes each group's own, too; of others, those that a group cannot measure are left out.
    """
    for group in groups:
        if group in ON_A_GPU and device != "cuda":
            continue
        size = size_of(group, quick) if batch is None or group in FIXED_SIZE else batch
        for setting in _settings(group, quick, precisions, softmaxes):
            yield Case(group, **setting, batch=size, device=device, threads=threads, seconds=seconds, quick=quick)


def size_of(group: str, quick: bool = False) -> int:
    """A group's own batch size."""
    return BATCH_SIZES[group][quick]


def heeding(key: str) -> list[str]:
    """Lists the groups whose cases let one choose ``key``: "softmax", "precision" or the like."""
    return [group for group in GROUPS if any(key in setting for setting in _settings(group, False, PRECISIONS))]


def _settings(
    group: str, quick: bool, precisions: Sequence[str], asked: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    softmaxes = asked or (SOFTMAXES[:2] if quick else SOFTMAXES)
    modes = MODES[:1] if quick else MODES
    if group == "compose":
        yield from ({"quantity": quantity} for quantity in ("composition", "draws and composition"))
    elif group == "train":
        for softmax, path, precision, mode in product(softmaxes, PATHS, precisions, modes):
            yield {"softmax": softmax, "path": path, "precision": precision, "mode": mode}
    elif group == "ratio":
        others = [softmax for softmax in asked or ["norm_softmax"] if softmax != "softmax"]
        for softmax, precision, mode in product(others, precisions, modes):
            yield {"softmax": softmax, "path": "fused", "precision": precision, "mode": mode}
    elif group == "attention":
        for tokens, softmax, path, precision in product(TOKENS[:2] if quick else TOKENS, softmaxes, PATHS, precisions):
            yield {"softmax": softmax, "path": path, "precision": precision, "tokens": tokens}
    elif group == "replace":
        there = (VIT, GPT2) if find_spec("transformers") else (VIT,)
        for model, softmax in product(there, asked or ["softmax"]):
            yield {"quantity": model, "softmax": softmax}
    elif group == "seeds":
        for softmax, mode in product(asked or SOFTMAXES[:2], modes):
            yield {"quantity": "steps", "softmax": softmax, "mode": mode}
        for softmax, mode in product(asked or ["norm_softmax"], modes):
            yield {"quantity": "runs", "softmax": softmax, "mode": mode}
    elif group == "diagnostics":
        yield from ({"softmax": softmax} for softmax in asked or ["softmax"])
    elif group in ("probes", "gather"):
        yield {}
    elif group == "windows":
        for tokens, precision in product(WINDOWED[:2] if quick else WINDOWED, precisions):
            yield {"path": "fused", "precision": precision, "tokens": tokens}

"""Reads the command line of the benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from lab.bench.cases import FIXED_SIZE, GROUPS, ON_A_GPU, PRECISIONS, SOFTMAXES, cases, heeding
from lab.bench.report import number
from lab.config.arguments import Parser
from lab.console import MOST_THREADS, LabError
from lab.datasets.sizes import MOST_SAMPLES
from lab.files import check_writable

# bfloat16 below this share of float32's speed is emulated, since the processor has no 16-bit arithmetic: a table of
# that takes a day and tells nothing.
EMULATED = 0.25
# Most seconds of one measurement: an hour.
_MOST_SECONDS = 3600


def parse(arguments: Sequence[str] | None = None, description: str | None = None) -> argparse.Namespace:
    """Reads the command line; exits with one sentence if it asks for something impossible."""
    parser = Parser("python -m lab.bench", description=description)
    parser.add_argument("--quick", action="store_true", help="fewer settings, short measurements, small batches")
    parser.add_argument(
        "--only", nargs="+", choices=GROUPS, metavar="GROUP", help=f"groups to measure, of {', '.join(GROUPS)}"
    )
    parser.add_argument(
        "--softmax",
        nargs="+",
        metavar="NAME",
        help="measures these in place of each group's own: names as in python -m lab.train softmax=NAME, or rules and "
        "normalisers of your own, as my_rules.Mine",
    )
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, help="default: float32, and bfloat16 where the machine has it"
    )
    parser.add_argument(
        "--batch-size", type=int, help="batch size of all groups but seeds (default: 512 composed, 64 trained, ...)"
    )
    parser.add_argument("--threads", type=int, default=None, help="CPU threads (default: torch's)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seconds-per-measurement", type=float, help="default 6, with --quick 0.5")
    parser.add_argument(
        "--out",
        type=Path,
        help="path of the saved tables without ending (default: results/benchmark/<what ran>)",
    )
    options = parser.parse_args(arguments)
    if options.batch_size is not None and not 1 <= options.batch_size <= MOST_SAMPLES:
        parser.error(f"--batch-size must be from 1 to {MOST_SAMPLES}, got {options.batch_size}")
    if options.threads is not None and not 1 <= options.threads <= MOST_THREADS:
        parser.error(f"--threads must be from 1 to {MOST_THREADS}, got {options.threads}")
    if options.seconds_per_measurement is None:
        options.seconds_per_measurement = 0.5 if options.quick else 6.0
    if not 0 <= options.seconds_per_measurement <= _MOST_SECONDS:
        parser.error(
            f"--seconds-per-measurement must be from 0 to {_MOST_SECONDS}, got {options.seconds_per_measurement}"
        )
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here; leave the option out to measure on the CPU")
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cpu" and options.only and set(options.only) <= set(ON_A_GPU):
        parser.error(f"--only {' '.join(options.only)} is measured only on a GPU: FlexAttention is a kernel only there")
    options.threads = options.threads or torch.get_num_threads()
    options.softmax = list(dict.fromkeys(options.softmax or [])) or None
    options.only = [group for group in GROUPS if not options.only or group in options.only]
    _check_used(options, parser)
    if options.softmax:
        _check_softmaxes(options.softmax, parser)
    if options.out is None:
        options.out = Path("results/benchmark") / default_name(options)
    elif options.out.suffix in (".json", ".csv", ".md"):
        options.out = options.out.with_suffix("")
    if options.out.exists() or not options.out.name:
        what = "folder" if options.out.is_dir() else "file"
        parser.error(f"--out {options.out} is a {what}: give a path for new tables, without ending, as in results/mine")
    try:
        check_writable(options.out.parent, "--out:")
    except LabError as error:
        parser.error(str(error))
    return options


def _check_used(options: argparse.Namespace, parser: Parser) -> None:
    """Refuses an option that none of the chosen groups uses, and options that leave nothing to measure."""
    sized = [group for group in GROUPS if group not in FIXED_SIZE]
    for name, value, groups in (
        ("--batch-size", options.batch_size, sized),
        ("--precision", options.precision, heeding("precision")),
        ("--softmax", options.softmax, heeding("softmax")),
    ):
        if value is not None and not set(options.only) & set(groups):
            parser.error(f"{name} changes nothing in {' '.join(options.only)}: it applies to {', '.join(groups)}")
    if not list(cases(options.only, options.device, 1, 0.0, quick=options.quick, softmaxes=options.softmax)):
        parser.error(
            f"nothing to measure: {' '.join(options.only)} {'with --quick ' * options.quick}has no measurement of "
            f"{', '.join(options.softmax or SOFTMAXES)}"
        )


def _check_softmaxes(names: Sequence[str], parser: Parser) -> None:
    from lab.bench.softmaxes import check_softmax  # here: it takes two seconds to load

    for name in names:
        try:
            check_softmax(name)
        except (LabError, ValueError, OSError) as error:
            why = str(error).removeprefix(f"softmax={name} ").removeprefix(f"softmax._target_={name} ")
            parser.error(f"--softmax {name}: {why}")


def default_name(options: argparse.Namespace) -> str:
    """Name for the files that says what was measured, so that ``--quick`` never replaces a whole table."""
    parts = [options.device]
    if len(options.only) < len(GROUPS):
        parts += options.only
    softmaxes = options.softmax or []
    # No disk takes a name of more than 255 bytes.
    parts += softmaxes if len("_".join(softmaxes)) <= 100 else [f"{len(softmaxes)}_softmaxes"]
    parts += options.precision or []
    if options.batch_size is not None:
        parts.append(f"batch{options.batch_size}")
    return "_".join([*parts, "quick"] if options.quick else parts)


def choose_precisions(wanted: Sequence[str] | None, gflops: dict[str, float], quick: bool) -> tuple[list[str], str]:
    """The precisions to measure, and a sentence if bfloat16 is left out because it is only emulated here."""
    if wanted:
        return [precision for precision in PRECISIONS if precision in wanted], ""
    if quick:
        return ["float32"], ""
    if gflops["bfloat16"] < EMULATED * gflops["float32"]:
        return ["float32"], (
            f"bfloat16, which this machine emulates ({number(gflops['bfloat16'])} GFLOP/s against "
            f"{number(gflops['float32'])} in float32); --precision float32 bfloat16 measures it all the same"
        )
    return list(PRECISIONS), ""

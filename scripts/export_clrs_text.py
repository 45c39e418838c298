"""Exports CLRS-Text as JSON Lines, which `data/problems=folder` trains on; runs in an environment of its own.

    python3 -m venv clrs && clrs/bin/pip install dm-clrs==2.0.3      # brings JAX and TensorFlow
    clrs/bin/python scripts/export_clrs_text.py --out data/clrs_text

The generator is `clrs/_src/clrs_text` of google-deepmind/clrs (Apache-2.0), with the sizes, numbers of samples and
seeds of its `generate_clrs_text.py`. A line has the fields of the data set on the Hugging Face Hub: text, question,
answer, algo_name, length, use_hints. Each split and algorithm has its own file, such as `train-bfs.jsonl`, which is
written whole or not at all; the same command goes on with the files that are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

VERSION = "2.0.3"
SPLITS = ("train", "validation")


def generator() -> ModuleType:
    """The package `clrs`.

    Raises:
        SystemExit: if it is missing.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        import clrs  # type: ignore[import-not-found]
        from absl import logging  # type: ignore[import-not-found]
    except ImportError as error:
        sys.exit(f"this needs an environment of its own with the generator: pip install dm-clrs=={VERSION} ({error})")
    logging.set_verbosity(logging.ERROR)
    return clrs


def published(clrs: ModuleType) -> dict[str, tuple[dict[str, list[int]], int, list[int]]]:
    """Sizes by algorithm, samples per size and seed, and seeds of each split, as in `generate_clrs_text.py`.

    Raises:
        SystemExit: if this version of the package keeps them elsewhere.
    """
    own = clrs.clrs_text.generate_clrs_text
    try:
        return {
            split: (
                getattr(own, f"_DEFAULT_{name}_ALGOS_AND_LENGTHS"),
                getattr(own, f"_DEFAULT_{name}_NUMBER_OF_SAMPLES"),
                getattr(own, f"_DEFAULT_{name}_SEEDS"),
            )
            for split, name in zip(SPLITS, ("TRAIN", "VAL"), strict=True)
        }
    except AttributeError as error:
        sys.exit(f"this version of dm-clrs is not known ({error}): pip install dm-clrs=={VERSION}")


def lines(
    clrs: ModuleType,
    algorithm: str,
    sizes: Iterable[int],
    samples: int,
    seeds: Iterable[int],
    decimals: int | None,
    hints: bool,
) -> Iterator[dict[str, Any]]:
    """Yields the problems of one algorithm, by size and seed.

    Args:
        clrs: the package.
        algorithm: one of the thirty of CLRS-Text.
        sizes: of the problems.
        samples: problems of each size and seed.
        seeds: of the sampler.
        decimals: how many decimals numbers are cut to; None leaves them whole.
        hints: ask for the trace of the algorithm, too.
    """
    for size in sizes:
        for seed in seeds:
            sampler, _ = clrs.build_sampler(
                algorithm, num_samples=-1, seed=seed, length=size, track_max_steps=False, truncate_decimals=decimals
            )
            for _ in range(samples):
                question, answer = clrs.clrs_text.clrs_utils.format_clrs_example(
                    algorithm, sampler.next(batch_size=1), use_hints=hints
                )
                yield {
                    "text": question + answer,
                    "question": question,
                    "answer": answer,
                    "algo_name": algorithm,
                    "length": size,
                    "use_hints": hints,
                }


def write(path: Path, problems: Iterable[dict[str, Any]]) -> int:
    """Writes a file, which appears whole or not at all, and returns its number of lines."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    count = 0
    try:
        with draft.open("w", encoding="utf-8") as file:
            for problem in problems:
                file.write(json.dumps(problem, ensure_ascii=False) + "\n")
                count += 1
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return count


def export(arguments: argparse.Namespace) -> None:
    """Writes the files that are missing, and says how long each took."""
    clrs = generator()
    plan = {split: own for split, own in published(clrs).items() if split in arguments.splits}
    known = sorted({name for sizes, _, _ in plan.values() for name in sizes})
    if unknown := sorted(set(arguments.algorithms or ()) - set(known)):
        sys.exit(f"--algorithms {' '.join(unknown)}: there is no such algorithm; valid: {', '.join(known)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    for split, (sizes, samples, seeds) in plan.items():
        for algorithm in arguments.algorithms or sizes:
            path = arguments.out / f"{split}-{algorithm}.jsonl"
            if path.exists():
                print(f"there already: {path}")
                continue
            began = time.monotonic()
            count = write(
                path,
                lines(
                    clrs,
                    algorithm,
                    arguments.sizes or sizes[algorithm],
                    arguments.samples or samples,
                    arguments.seeds or seeds,
                    arguments.decimals,
                    arguments.hints,
                ),
            )
            size = path.stat().st_size / 1e6
            print(f"written: {path}: {count:,} problems, {size:.1f} MB, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{time.monotonic() - start:.0f} s in all")


def number(least: int) -> Any:
    """Returns an argparse type for whole numbers of at least ``least``."""

    def read(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} must be at least {least}")
        return value

    read.__name__ = "whole number"
    return read


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, required=True, help="folder of the files")
    made.add_argument("--splits", nargs="+", choices=SPLITS, default=list(SPLITS))
    made.add_argument("--algorithms", nargs="+", metavar="NAME", help="of the thirty; all by default")
    made.add_argument("--sizes", nargs="+", type=number(4), metavar="N", help="by default those published")
    made.add_argument("--samples", type=number(1), help="problems of a size and seed: by default 10,000 and 125")
    made.add_argument("--seeds", nargs="+", type=number(0), help="by default 0, and of validation 3 14 35 81 94")
    made.add_argument("--decimals", type=number(1), default=3, help="that numbers are cut to: 3")
    made.add_argument("--hints", action="store_true", help="ask for the trace of the algorithm, too")
    return made


if __name__ == "__main__":
    export(parser().parse_args())

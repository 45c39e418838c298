"""Applies diagnostics to a trained model after the fact: to a checkpoint of a run or to a model of another library.

    python -m lab.inspect run=runs/reasoning/norm_softmax/seed=0 'diagnostics=[attention_entropy,linear_probes]'
    python -m lab.inspect run=... 'diagnostics=[linear_probes]' linear_probes.scenes=20000 'linear_probes.full=[z]'
    python -m lab.inspect model=hf:gpt2 text=book.txt 'diagnostics=[attention_entropy,sink_values]'
    python -m lab.inspect model=timm:vit_tiny_patch16_224 images=photos 'diagnostics=[attention_maps]'
    python -m lab.inspect model=hf:google/gemma-2b layers=1 'diagnostics=[head_entropy]'

Tables and pictures go to ``<run>/inspect/step_<n>``, or ``inspect/<model>``, or to the folder of ``out=``; earlier
results there are replaced only with ``force=true``. The name of every file written is printed, and so are small tables.
Further options: ``device=cuda``, ``threads=2``, ``softmax=log_length softmax.form=log_n`` (another softmax, swapped in
without training), ``--config-dir my`` (your own configs, ``my/callbacks/...``).

For a run: its newest checkpoint is looked at, or ``checkpoint=1170`` (steps), or ``checkpoint=best``;
``gradient_norms`` uses training batches, the other diagnostics the validation set; for more scenes than the
run validated on, add ``data.validation_size=20000``; ``trust=my_rules`` lists modules that the run's ``config.yaml``
may name besides the lab's (somebody else may have written that file, so it may name no others).

For a model: ``text=`` (words, a file, a folder of *.txt) or ``images=`` (a folder), else random inputs; ``tokens=128``
per input, ``inputs=16``; ``weights=false`` (random weights, from the model's config), ``layers=1`` (only its first
layers), ``seed=0``, ``kind=CLIPTextModel`` (a class of transformers). A model that is neither a folder nor in the
library's cache is downloaded by the library.
"""

from __future__ import annotations

import sys

if __name__ == "inspect":  # Python's own module of this name was meant: the folder of this file leads the path
    sys.exit(
        "lab/ leads Python's path here, and lab/inspect.py hides Python's own inspect: start a command of the lab as a "
        "module, from another folder, as in python -m lab.train experiment=reasoning"
    )

from pathlib import Path

import yaml

from lab.config.arguments import tell_version
from lab.config.compose import CONFIGS
from lab.config.look_arguments import look_arguments
from lab.console import import_from_here, noted_if_slow, refusals
from lab.runs.stored_config import check_there
from lab.training.memory import keep_freed_memory


def _usage() -> str:
    """Returns the text of ``--help``: the module's docstring and the names of all diagnostics."""
    ready = [path.stem for path in sorted((CONFIGS / "callbacks").glob("*.yaml")) if _looks(path)]
    return f"{(__doc__ or '').replace('``', '').strip()}\n\ndiagnostics: {', '.join(ready)}"


def _looks(path: Path) -> bool:
    """Tells whether a callbacks config is a diagnostic's: one of the lab's, which writes into the run's folder."""
    own = (yaml.safe_load(path.read_text()) or {}).get(path.stem) or {}
    return own.get("folder") == "${paths.run}" and str(own["_target_"]).startswith("lab.callbacks.diagnostics.")


@refusals()
def main() -> None:
    """Runs the command line."""
    if any(argument in ("--help", "-h") for argument in sys.argv[1:]):
        print(_usage())
        return
    tell_version(sys.argv[1:])
    import_from_here()
    # What was typed is checked before anything heavy is loaded.
    options = look_arguments(sys.argv[1:])
    if "run" in options:
        check_there(options["run"])
    keep_freed_memory()
    with noted_if_slow("loading PyTorch"):
        import torch

        from lab.runs.outcome import Ending
        from lab.training.inspect_model import inspect_model
        from lab.training.inspection import inspect
    if (threads := options.pop("threads", None)) is not None:
        torch.set_num_threads(threads)
    options.setdefault("device", "cuda" if torch.cuda.is_available() else "cpu")
    with Ending().told():
        (inspect_model if "model" in options else inspect)(**options)


if __name__ == "__main__":
    main()

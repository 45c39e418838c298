"""Looks into a trained model: any diagnostics, on a checkpoint or on a model of another library, after the fact.

    python -m lab.inspect run=runs/reasoning/norm_softmax/seed=0 'diagnostics=[attention_entropy,linear_probes]'
    python -m lab.inspect run=... 'diagnostics=[linear_probes]' linear_probes.scenes=20000 'linear_probes.full=[z]'
    python -m lab.inspect model=hf:gpt2 text=book.txt 'diagnostics=[attention_entropy,sink_values]'
    python -m lab.inspect model=timm:vit_tiny_patch16_224 images=photos 'diagnostics=[attention_maps]'
    python -m lab.inspect model=hf:google/gemma-2b layers=1 'diagnostics=[head_entropy]'

Tables and pictures go to ``<run>/inspect/step_<n>``, or ``inspect/<model>``, or to ``out=``; what is there is kept
unless ``force=true``. Every file that is written is named, and small tables are printed. Further options:
``device=cuda``, ``threads=2``, ``softmax=log_length softmax.form=log_n`` (swapped in, nothing trained),
``--config-dir my`` (configs of one's own, ``my/callbacks/...``).

Of a run: ``gradient_norms`` looks at training batches, the others at the validation set; for more scenes than the run
validated on, add ``data.validation_size=20000``; ``trust=my_rules`` (modules that the run's ``config.yaml`` may name
beside the lab's: what it says is data, which somebody else may have written).

Of a model: ``text=`` (words, a file, a folder of *.txt) or ``images=`` (a folder), else random inputs; ``tokens=128``
of an input, ``inputs=16``; ``weights=false`` (random ones, of its config), ``layers=1`` (its first), ``seed=0``,
``kind=CLIPTextModel`` (of transformers). What is in no folder and not in the library's cache is downloaded by the
library.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from lab.config.compose import CONFIGS
from lab.config.look_arguments import look_arguments
from lab.console import import_from_here, patience, refusals
from lab.training.memory import keep_freed_memory


def _usage() -> str:
    """Returns what ``--help`` prints: the text above, and the diagnostics there are."""
    ready = [path.stem for path in sorted((CONFIGS / "callbacks").glob("*.yaml")) if _looks(path)]
    return f"{(__doc__ or '').replace('``', '').strip()}\n\ndiagnostics: {', '.join(ready)}"


def _looks(path: Path) -> bool:
    """Tells whether a callbacks config is of a diagnostic, which keeps what it finds in the run's folder."""
    own = (yaml.safe_load(path.read_text()) or {}).get(path.stem) or {}
    return own.get("folder") == "${paths.run}" and str(own["_target_"]).startswith("lab.callbacks.diagnostics.")


def main() -> None:
    """The command line."""
    if any(argument in ("--help", "-h") for argument in sys.argv[1:]):
        print(_usage())
        return
    import_from_here()
    with refusals():
        told = look_arguments(sys.argv[1:])
        # What was typed is checked above, before anything heavy is loaded.
        keep_freed_memory()
        with patience("loading PyTorch"):
            import torch

            from lab.runs.outcome import Ending
            from lab.training.inspect_model import inspect_model
            from lab.training.inspection import inspect
        if (threads := told.pop("threads", None)) is not None:
            torch.set_num_threads(threads)
        told.setdefault("device", "cuda" if torch.cuda.is_available() else "cpu")
        with Ending().told():
            (inspect_model if "model" in told else inspect)(**told)


if __name__ == "__main__":
    main()

"""The laboratory: softmax temperature rules, attention, models, training and measurement.

    import lab

    (summary,) = lab.run(["experiment=reasoning", "softmax=norm_softmax", "seed=3"])
    runs, metrics = lab.load_runs("runs/reasoning")

The names of ``__all__`` are for users. Each is imported when it is first asked for: ``import lab`` loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.attention.functional import attend, attend_explicit
    from lab.attention.rule import TemperatureRule
    from lab.console import LabError
    from lab.observation.observe import observe
    from lab.observation.recorder import Recorder
    from lab.report.frames import load_runs
    from lab.train import run

    __version__: str

__all__ = [
    "LabError",
    "Recorder",
    "TemperatureRule",
    "__version__",
    "attend",
    "attend_explicit",
    "load_runs",
    "observe",
    "run",
]

_MODULE_OF = {
    "LabError": "lab.console",
    "Recorder": "lab.observation.recorder",
    "TemperatureRule": "lab.attention.rule",
    "attend": "lab.attention.functional",
    "attend_explicit": "lab.attention.functional",
    "load_runs": "lab.report.frames",
    "observe": "lab.observation.observe",
    "run": "lab.train",
}


def __getattr__(name: str) -> Any:
    value: Any
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    elif name == "__version__":
        value = import_module("importlib.metadata").version("eureka-lab")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # not asked for again
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

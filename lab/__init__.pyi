from .attention.functional import attend, attend_explicit
from .attention.rule import TemperatureRule
from .console import LabError
from .models.replace import replace_softmax, restore_softmax
from .observation.look import look
from .observation.observe import observe
from .observation.recorder import Recorder
from .report.frames import load_runs
from .train import run
from .training.load import read_trained

__version__: str

__all__ = [
    "LabError",
    "Recorder",
    "TemperatureRule",
    "__version__",
    "attend",
    "attend_explicit",
    "load_runs",
    "look",
    "observe",
    "read_trained",
    "replace_softmax",
    "restore_softmax",
    "run",
]

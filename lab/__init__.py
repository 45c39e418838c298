"""The laboratory: softmax temperature rules, attention, models, training and measurement.

    import lab

    (summary,) = lab.run(["experiment=reasoning", "softmax=norm_softmax", "seed=3"])
    runs, metrics = lab.load_runs("runs/reasoning")

The names in ``__all__`` are for users. Each is imported when it is first used, so that ``import lab`` does not load
torch. ``__init__.pyi`` says which module each name comes from.
"""

import lazy_loader

from lab.console import end_imports_quietly

end_imports_quietly()

__version__ = "0.2.0"

__getattr__, _, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = [*_names, "__version__"]
__dir__ = __all__.copy

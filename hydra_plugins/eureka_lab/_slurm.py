"""``hydra/launcher=submitit_slurm``: Hydra accepts launchers only from ``hydra_plugins``."""

from __future__ import annotations

from lab.sweeps import launcher


class SlurmLauncher(launcher.SlurmLauncher):
    """Subclass of :class:`lab.sweeps.launcher.SlurmLauncher` in a package from which Hydra accepts it."""

"""``hydra/launcher=submitit_slurm``: Hydra takes launchers from ``hydra_plugins`` alone."""

from __future__ import annotations

from lab.sweeps import launcher


class SlurmLauncher(launcher.SlurmLauncher):
    """:class:`lab.sweeps.launcher.SlurmLauncher`, by the name that Hydra accepts."""

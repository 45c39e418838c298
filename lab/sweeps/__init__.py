"""Sweeps, which are many runs of one command: plans, SLURM jobs, searches, and what the runs are doing."""

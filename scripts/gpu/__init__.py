"""Kit that runs everything that waits for a GPU by one command: scripts/gpu/all.sh."""

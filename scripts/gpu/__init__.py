"""Kit that does all that waits for a GPU, without anything typed: scripts/gpu/all.sh."""

"""Many seeds of a small model trained as one batched model; each ends as its single run would."""

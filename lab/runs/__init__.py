"""A run folder and its files: name, lock, configuration, summary, metrics, checkpoints; how to find and read them."""

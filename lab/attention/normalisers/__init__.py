"""One normaliser a file: what becomes of the logits."""

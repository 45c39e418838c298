"""Normalisers, one a file: each turns logits into attention weights."""

"""Looks into a model: the recorder, and statistics of what it reads. Arrays in, arrays out."""

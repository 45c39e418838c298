"""Looks into a model: the recorder, and numbers made of what it reads. Arrays in, arrays out."""

"""Layouts of the papers' figures: a function each, which a figure's file names. Runs in, a figure out."""

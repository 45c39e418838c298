"""Layouts of the papers' figures: functions from runs to a figure, which the figure's YAML file names."""

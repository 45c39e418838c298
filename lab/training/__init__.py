"""Trains what a composed config names, one seed or many together, and leaves a run folder behind."""

"""Interventions on gradients: one a file, each is called with the model before an optimiser step."""

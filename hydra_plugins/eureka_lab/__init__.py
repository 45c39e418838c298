"""Launchers of the lab, where Hydra looks for them. It imports no module with an underscore by itself."""

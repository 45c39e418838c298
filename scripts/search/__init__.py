"""Searches for settings; each writes down all it tried."""

"""Composes configurations, reads overrides, and checks both before any work."""

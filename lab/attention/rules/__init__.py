"""Temperature rules: one a file, each maps (query, key) to an inverse temperature per query."""

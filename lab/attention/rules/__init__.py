"""Temperature rules, one a file: each maps queries and keys to an inverse temperature per query."""

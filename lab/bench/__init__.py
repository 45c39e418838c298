"""The benchmark: measures each case in a process of its own and reports a table."""

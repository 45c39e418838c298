"""The benchmark: measures one case a process and reports a table."""

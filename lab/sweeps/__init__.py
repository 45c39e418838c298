"""Many runs of one command: what a sweep plans to run, written down for those who look at it."""

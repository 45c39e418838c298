"""One task a file: a sampler of scenes and a rule that gives the label."""

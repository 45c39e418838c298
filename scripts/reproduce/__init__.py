"""Reproductions of published experiments: each script trains, resumes, and writes its page of results."""

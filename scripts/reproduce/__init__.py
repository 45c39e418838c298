"""Published experiments again: each script trains, resumes, and writes its page of results."""

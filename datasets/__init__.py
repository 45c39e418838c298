"""Image sources, tasks, scene composition and data modules."""

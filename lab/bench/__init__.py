"""What `python -m lab.bench` measures, one measurement a process, and how it reports it."""

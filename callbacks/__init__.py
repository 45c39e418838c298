"""What watches a run: each file one Lightning callback."""

"""Ranks that are processes, over MPI: the group, its messages, and who sums what."""

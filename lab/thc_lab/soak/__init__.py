"""Faults on a live job, for an hour: `make soak`."""

"""Hosts of a testbed: how commands get to them, and what is asked of the keeper there."""

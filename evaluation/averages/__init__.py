"""Averages of n workers in one process, by THC and by its peers, and their errors."""

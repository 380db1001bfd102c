"""The time of a DDP step by scheme and bandwidth."""

"""Averages over a mesh: exact within its fast dimension, compressed on each shard over the slow one."""

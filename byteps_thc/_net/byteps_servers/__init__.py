"""Codes and sums over BytePS's own servers (the paper's THC-colocated)."""

"""Extern objects and functions of the architectures, as Python."""

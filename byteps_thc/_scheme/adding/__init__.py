"""Codes that servers and switches add: lookup tables, clamping, random rounding, compressors of host and GPU."""

"""Codes that ranks decode: blocks of 64 with scales of their own."""

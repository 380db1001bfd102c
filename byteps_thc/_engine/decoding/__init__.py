"""Ranks that decode each other's codes: the pieces of their gradients."""

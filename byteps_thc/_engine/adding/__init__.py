"""Codes that servers or a switch add: pieces of gradients, and residuals of error feedback."""

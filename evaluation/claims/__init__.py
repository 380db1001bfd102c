"""The claims of docs/evaluation.md: a module each, which ends in CLAIM = Claim(...), and its ranks."""

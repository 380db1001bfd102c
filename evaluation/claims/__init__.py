"""The claims of evaluation/claims.md: a module each, which ends in CLAIM = Claim(...), and its ranks."""

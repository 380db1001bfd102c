"""The `thc compare` command: ways to average a user's own gradients, side by side."""

WORKERS = 4  # stand-ins: the last steps of a script

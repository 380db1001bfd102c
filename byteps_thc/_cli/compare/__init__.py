"""The `thc compare` command: ways to average a user's own gradients, side by side."""

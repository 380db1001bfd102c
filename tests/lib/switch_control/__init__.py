"""Interpreters of what the control plane emits: the real tools' commands, done to a switch of the P4 model."""

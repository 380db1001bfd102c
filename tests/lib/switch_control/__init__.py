"""Interpreters of the control plane's scripts: commands of the real tools, for a switch of the P4 model."""

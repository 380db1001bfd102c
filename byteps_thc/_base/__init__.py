"""Foundations of all rooms: errors, settings, environment, limits, the compiled modules, torch, the wire format."""

"""Hosts of a testbed: sessions with the agent on each, and namespaces of this machine in their place."""

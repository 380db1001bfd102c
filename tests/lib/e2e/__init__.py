"""End-to-end tests of switches: worker and switch processes in network namespaces."""

"""`thc demo-switch`: the demo with P4 programs as the aggregators, in network namespaces."""

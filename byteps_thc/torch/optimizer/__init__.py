"""DistributedOptimizer, and the hooks that tell it of every gradient."""

"""What averages the gradients of a DistributedOptimizer: BytePS's push_pull, or THC."""

"""THC, tensor homomorphic compression for BytePS and PyTorch (NSDI 2024)."""

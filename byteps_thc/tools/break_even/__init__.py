"""Below which link bandwidth THC is faster than uncompressed gradients, for this host's speed (`thc break-even`)."""

"""The demo: a small GPT trained by several workers, uncompressed, with Uniform THC and with THC (`thc demo`)."""

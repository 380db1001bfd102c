"""Streams of gradients that are each sent in a fixed order, as BytePS's servers and thc-ps require."""

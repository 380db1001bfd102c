"""The collective engines on a device: gradients, codes and sums stay in its memory, and no call waits for it."""

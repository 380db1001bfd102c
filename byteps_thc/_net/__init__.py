"""How norms, codes and sums travel between the workers; see transport.py for the interface."""

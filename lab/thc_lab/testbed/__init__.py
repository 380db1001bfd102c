"""`thc testbed`: a training with its servers, its switch and its hosts, from one description."""

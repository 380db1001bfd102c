"""THC's computations: settings, lookup tables, wire format, compressors of the host and of GPUs."""

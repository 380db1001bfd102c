"""What THC computes: settings, lookup tables, wire format, compressors of the host and of GPUs."""

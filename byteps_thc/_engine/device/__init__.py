"""Whether gradients are compressed on a device, and the check of its kernels."""

"""What the GPU kernels take; apart from byteps_thc._scheme.gpu, which cannot be imported without Triton."""

#: coordinates: what a program of the kernels holds
MAX_GPU_ROTATION_BLOCK = 16384

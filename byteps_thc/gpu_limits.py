"""What the GPU kernels take; apart from byteps_thc.gpu, which cannot be imported without Triton."""

#: widths of codes
GPU_CODE_BITS = (1, 2, 3, 4, 8)
#: coordinates: what a program of the kernels holds
MAX_GPU_ROTATION_BLOCK = 16384

"""THC's kernels on GPUs, in Triton (`pip install 'triton>=3.6'`), with the same bits as the CPU's.

GpuCompressor and its partitions serve gradients that servers and switches average.
block_batch.BlockBatch serves ranks that decode.
"""

from byteps_thc._scheme.errors import ConfigurationError

try:
    import triton  # noqa: F401
except ImportError as error:
    raise ConfigurationError("GPU kernels need Triton: pip install 'triton>=3.6'") from error

from byteps_thc._scheme.gpu.compressor import DevicePartition, GpuCompressor

__all__ = ["DevicePartition", "GpuCompressor"]

"""THC's kernels on GPUs, in Triton (`pip install byteps_thc[gpu]`), with the same bits as the CPU's.

GpuCompressor is byteps_thc.Compressor for device tensors; `kernels` has the kernels as plain functions.
pipeline/device/ has the engine that uses it.
"""

from byteps_thc.errors import ConfigurationError

try:
    import triton  # noqa: F401
except ImportError as error:
    raise ConfigurationError("GPU kernels need Triton: pip install 'byteps_thc[gpu]'") from error

from byteps_thc.gpu.batch import DeviceBatch
from byteps_thc.gpu.compressor import DevicePartition, GpuCompressor

__all__ = ["DeviceBatch", "DevicePartition", "GpuCompressor"]

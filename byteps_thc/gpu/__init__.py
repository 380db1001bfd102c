"""THC's kernels on GPUs, in Triton (`pip install 'triton>=3.6'`), with the same bits as the CPU's.

GpuCompressor and its DeviceBatch are the way to them: pipeline/device/ has the engine that uses it. `kernels` has the
launches, which batches and the operators of byteps_thc.ops share.
"""

from byteps_thc.errors import ConfigurationError

try:
    import triton  # noqa: F401
except ImportError as error:
    raise ConfigurationError("GPU kernels need Triton: pip install 'triton>=3.6'") from error

from byteps_thc.gpu.batch import DeviceBatch
from byteps_thc.gpu.compressor import GpuCompressor

__all__ = ["DeviceBatch", "GpuCompressor"]

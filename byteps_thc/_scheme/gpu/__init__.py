"""Parts of both schemes' GPU kernels, in Triton (`pip install 'triton>=3.6'`), with the same bits as the CPU's."""

from byteps_thc._base.errors import ConfigurationError

try:
    import triton  # noqa: F401
except ImportError as error:
    raise ConfigurationError("GPU kernels need Triton: pip install 'triton>=3.6'") from error

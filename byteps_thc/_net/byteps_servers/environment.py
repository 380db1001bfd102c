"""Environment variables of BytePS that the servers route depends on. BytePS reads them when it is initialised."""

from __future__ import annotations

import os
from collections.abc import Mapping

from byteps_thc._native import _core
from byteps_thc._scheme.config import ResolvedConfig
from byteps_thc._scheme.errors import ConfigurationError

_DEFAULT_PARTITION_BYTES = 4096000  # BytePS's own default
_LARGEST_PARTITION_BYTES = 1 << 30


def sum_bytes(resolved: ResolvedConfig) -> int:
    """Bytes of a coordinate in the tensor of sums at BytePS's server: uint8, or int32 when sums need 16 bits."""
    return 1 if resolved.value_bits == 8 else 4


def prepare_environment(resolved: ResolvedConfig) -> None:
    """Set the variables that are not set, and check those that are; to be called before BytePS is initialised.

    BYTEPS_THREADPOOL_SIZE: threads that run compressors; BytePS has none unless it is set. BYTEPS_MIN_COMPRESS_BYTES:
    smaller tensors are not compressed. BYTEPS_PARTITION_BYTES: larger tensors are cut. Raises ConfigurationError.
    """
    largest = _core.padded_size(resolved.config.partition_coordinates, resolved.config.rotation_block)
    needed_bytes = largest * sum_bytes(resolved)
    if needed_bytes > _LARGEST_PARTITION_BYTES:
        raise ConfigurationError(f"partition_bytes={resolved.config.partition_bytes} is too large for BytePS's servers")
    defaults = {
        "BYTEPS_THREADPOOL_SIZE": 2,
        "BYTEPS_MIN_COMPRESS_BYTES": 0,
        "BYTEPS_PARTITION_BYTES": max(needed_bytes, _DEFAULT_PARTITION_BYTES),
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, str(value))
    check_environment(os.environ, smallest_bytes=None, largest_bytes=needed_bytes)


def check_environment(environment: Mapping[str, str], *, smallest_bytes: int | None, largest_bytes: int) -> None:
    """Raise ConfigurationError unless BytePS would compress tensors of these sizes, each in one piece."""
    if _number(environment, "BYTEPS_THREADPOOL_SIZE", 0) < 1:
        raise ConfigurationError("BytePS runs compressors in BYTEPS_THREADPOOL_SIZE threads: set it to 1 or more")
    if _number(environment, "BYTEPS_ENABLE_ASYNC", 0):
        raise ConfigurationError(
            "BYTEPS_ENABLE_ASYNC adds gradients up over steps; THC's sums are of one step: unset it"
        )
    least = _number(environment, "BYTEPS_MIN_COMPRESS_BYTES", 1 << 16)
    if smallest_bytes is not None and least > smallest_bytes:
        raise ConfigurationError(
            f"BYTEPS_MIN_COMPRESS_BYTES={least} leaves partitions of {smallest_bytes} bytes uncompressed: set it to 0"
        )
    limit = _number(environment, "BYTEPS_PARTITION_BYTES", _DEFAULT_PARTITION_BYTES)
    if limit < largest_bytes:
        raise ConfigurationError(
            f"BYTEPS_PARTITION_BYTES={limit} would cut a partition of {largest_bytes} bytes: raise it, the same for "
            "all workers, or lower ThcConfig.partition_bytes"
        )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{name} must be a whole number, not {text!r}") from None

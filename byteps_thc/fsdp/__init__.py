"""FSDP2 (torch.distributed.fsdp.fully_shard): compressed reduce-scatter, gathers and replicas (HSDP)."""

import byteps_thc._base.needs_torch  # noqa: F401
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.servers import NetworkConfig
from byteps_thc.fsdp.compressed_all_gather import GatherCompression, compress_all_gather
from byteps_thc.fsdp.compressed_reduce_scatter import (
    CompressedReduceScatter,
    FsdpCompression,
    compress,
    compress_reduce_scatter,
)
from byteps_thc.fsdp.replicas import compress_replicas

__all__ = [
    "CompressedReduceScatter",
    "CompressionPolicy",
    "FsdpCompression",
    "GatherCompression",
    "NetworkConfig",
    "compress",
    "compress_all_gather",
    "compress_reduce_scatter",
    "compress_replicas",
]

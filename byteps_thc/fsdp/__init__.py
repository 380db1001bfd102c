"""FSDP2 (torch.distributed.fsdp.fully_shard): compressed reduce-scatter, and compressed replicas (HSDP)."""

from byteps_thc.engines.network import NetworkConfig
from byteps_thc.engines.policy import CompressionPolicy
from byteps_thc.fsdp.handle import FsdpCompression
from byteps_thc.fsdp.replicas import compress_replicas
from byteps_thc.fsdp.shards import CompressedReduceScatter, compress_reduce_scatter

__all__ = [
    "CompressedReduceScatter",
    "CompressionPolicy",
    "FsdpCompression",
    "NetworkConfig",
    "compress_reduce_scatter",
    "compress_replicas",
]

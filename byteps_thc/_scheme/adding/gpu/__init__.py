"""GPU kernels for gradients that servers and switches average: GpuCompressor and its partitions."""

from byteps_thc._scheme.adding.gpu.compressor import DevicePartition, GpuCompressor

__all__ = ["DevicePartition", "GpuCompressor"]

"""Run a program on kernels that are compiled for a GPU and emulated (ptx_emulator.py).

    python evaluation/emulated.py sm_90 PROGRAM [OPTIONS]

Tensors are on the CPU. The last line names the emulated kernels.
"""

import runpy
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
from ptx_emulator import Kernel
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend

from byteps_thc._scheme.adding.gpu import compressor


class EmulatedDriver:
    """Triton's driver of a GPU, whose machine code is PTX."""

    def __init__(self, arch: str) -> None:
        self.launched = set[str]()
        target, properties = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32), {"max_shared_mem": 163 << 10}
        self.get_current_target, self.get_current_device = (lambda: target), (lambda: 0)
        self.get_current_stream = lambda _device: 0
        self.utils = SimpleNamespace(
            get_device_properties=lambda _device: properties,
            load_binary=lambda name, ptx, shared, _device: (None, (name, ptx.decode(), shared), 0, 0, 1024),
        )

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """Return the launcher of a compiled kernel."""
        given = [kind != "constexpr" for kind in source.signature.values()]
        kernels: dict[str, Kernel] = {}

        def launch(programs: int, *arguments: Any) -> None:
            name, ptx, shared = arguments[3]  # after the grid's other sizes and the stream
            if name not in kernels:
                kernels[name] = Kernel(ptx, threads=32 * metadata.num_warps, shared=shared)
            values = [value for value, is_given in zip(arguments[8:], given, strict=True) if is_given]
            arrays = [_bytes(value) for value in values if isinstance(value, Tensor)]
            kernels[name].run(programs, [*map(_bits, values)], arrays)
            self.launched.add(name)

        return launch


def _bits(value: Tensor | float) -> int:
    if isinstance(value, Tensor):
        return value.data_ptr()
    return int(np.float32(value).view(np.uint32)) if isinstance(value, float) else value


def _bytes(tensor: Tensor) -> Any:
    assert tensor.is_contiguous()
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def main() -> None:
    arch, program, *sys.argv[1:] = sys.argv[1:]
    driver = EmulatedDriver(arch)
    triton.runtime.driver.set_active(driver)
    CUDABackend.make_cubin = lambda _self, ptx, *_: ptx.encode()
    vars(compressor)["INTERPRETED"] = True  # GpuCompressor then takes the CPU for a device
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        print("emulated:", *sorted(driver.launched))


if __name__ == "__main__":
    main()

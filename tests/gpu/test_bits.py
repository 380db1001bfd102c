"""Kernels and programs of this folder in Triton's interpreter: the CPU's bits, without tolerance."""

from collections.abc import Callable

import pytest


def test_every_kernel_has_the_bits_of_the_cpu(interpret: Callable[..., str]) -> None:
    printed = interpret("kernel_bits.py")
    assert "DIFFERENT" not in printed
    assert printed.count("same bits: ") >= 21
    for check in ("check_encode", "check_decode"):
        assert check in printed


def test_messages_of_ranks_that_decode_have_the_bits_of_those_in_host_memory(interpret: Callable[..., str]) -> None:
    """Three launches for a bucket, two for rows; exact parameters are in them."""
    printed = interpret("block_bits.py")
    assert "DIFFERENT" not in printed
    for check in ("round", "not_finite", "gather", "agreement", "refusals", "corruption"):
        assert f"same bits: check_{check} " in printed


def test_gpu_compressor_goes_through_rounds_as_compressor_does(interpret: Callable[..., str]) -> None:
    assert "same bits" in interpret("compressor_bits.py")


@pytest.mark.slow
def test_rows_with_scales_have_the_bits_of_those_in_host_memory(interpret: Callable[..., str]) -> None:
    assert "same bits: 150 rows" in interpret("rows_bits.py")


def test_the_host_makes_few_calls_whatever_parameters_and_ranks_there_are(interpret: Callable[..., str]) -> None:
    """Three launches and two collectives for a bucket, two and one for a group of FSDP2."""
    printed = interpret("host_calls.py")
    assert printed.count(": 3 launches, 2 collectives") == 3
    assert printed.count(": 2 launches, 1 collectives") == 2


def test_streams_wait_for_each_other_only_where_they_share_memory(interpret: Callable[..., str]) -> None:
    assert interpret("stream_order.py").count("in order: ") == 3


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_device_engine_goes_through_steps_as_the_engine_in_host_memory_does(
    interpret: Callable[..., str], ranks: int
) -> None:
    assert f"same bits: {ranks} ranks" in interpret("engine_bits.py", "--ranks", f"{ranks}")


def test_engine_with_servers_has_the_bits_of_the_one_in_host_memory(interpret: Callable[..., str]) -> None:
    """Two ranks and a thc-ps, which in the end loses packets; tests/engine has more."""
    printed = interpret("network_bits.py")
    assert printed.count("ok: ") == 4
    assert "same bits with servers" in printed


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])  # of 2
def test_tiles_that_are_not_finite_with_all_bits(interpret: Callable[..., str], part: int) -> None:
    printed = interpret("block_bits.py", "--large", "--only", "not_finite", "--part", f"{part}/2")
    assert "DIFFERENT" not in printed
    assert "9 of 9 cases" in printed


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", [0, 4])  # of 8: the interpreter takes minutes for one, a GPU does all
def test_odd_sizes_blocks_formats_and_alignments(interpret: Callable[..., str], part: int) -> None:
    assert "DIFFERENT" not in interpret("kernel_bits.py", "--large", "--part", f"{part}/8")


def test_cpu_tensors_need_the_interpreter(run_python: Callable[..., str]) -> None:
    program = """
from byteps_thc import ServerCodes
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._scheme.adding.gpu import GpuCompressor

for config, device in ((ServerCodes(), "cpu"), (ServerCodes(rotation_block=32768), "cuda")):
    try:
        GpuCompressor(config, workers=2, worker=0, device=device)
    except ConfigurationError as error:
        print(error)
"""
    cpu, block = run_python("-c", program, TRITON_INTERPRET="0").splitlines()
    assert "use byteps_thc.Compressor" in cpu
    assert "use at most 16384" in block


def test_the_current_gpu_has_the_name_that_its_tensors_give_it(run_python: Callable[..., str]) -> None:
    """Else engines would copy gradients of that GPU, and refuse FSDP2's. No GPU is asked for memory."""
    program = """
import torch
from byteps_thc import ServerCodes
from byteps_thc._scheme.adding.gpu import GpuCompressor, compressor

class Stop(Exception):
    pass

def of(table, device):
    print(device)
    raise Stop

torch.cuda.current_device = lambda: 1
compressor.DeviceTable.of = of
for device in ({}, {"device": "cuda"}, {"device": torch.device("cuda", 2)}):
    try:
        GpuCompressor(ServerCodes(), workers=2, worker=0, **device)
    except Stop:
        pass
"""
    assert run_python("-c", program, TRITON_INTERPRET="0").split() == ["cuda:1", "cuda:1", "cuda:2"]


@pytest.mark.slow
def test_buckets_meshes_and_rows_have_the_bits_of_numpy(interpret: Callable[..., str]) -> None:
    assert "same bits: 4 checks" in interpret("many_ranks.py")

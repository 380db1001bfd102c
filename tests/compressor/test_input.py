"""Input that Compressor takes and refuses."""

import numpy as np
import pytest
import torch

from byteps_thc import Compressor, ServerCodes
from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._native._core import checksum

X = np.random.default_rng(0).standard_normal(1000).astype(np.float32)


@pytest.fixture
def compressor():
    return Compressor(ServerCodes(), workers=1, worker=0)


def codes(compressor, gradient, **options):
    partition = compressor.partition("w", X.size)
    return compressor.encode(partition, compressor.measure(partition, gradient, round=1, **options)).tobytes()


@pytest.fixture
def partition(compressor):
    return compressor.partition("w", X.size)


def test_torch_tensors_are_read_in_place(compressor):
    tensor = torch.from_numpy(X.copy()).requires_grad_()
    assert codes(compressor, tensor) == codes(compressor, X)
    assert codes(compressor, tensor.detach().reshape(10, 100)) == codes(compressor, X)
    assert codes(compressor, tensor.detach().half()) == codes(compressor, X.astype(np.float16))
    brain = tensor.detach().bfloat16()
    assert codes(compressor, brain) == codes(compressor, brain.float())
    assert codes(compressor, brain) == codes(compressor, brain.view(torch.uint16).numpy(), bfloat16=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_decode_writes_into_a_tensor(compressor, partition, dtype):
    gradient, out = torch.from_numpy(X).to(dtype), torch.zeros(1000, dtype=dtype)
    compressor.encode(partition, compressor.measure(partition, gradient, round=1))
    aggregate = np.full(partition.padded, compressor.table.granularity, np.uint8)
    compressor.decode(partition, aggregate, np.ones(1, np.uint8), out)
    compressor.encode(partition, compressor.measure(partition, gradient, round=1))
    expected = np.zeros(1000, np.float32)
    compressor.decode(partition, aggregate, np.ones(1, np.uint8), expected)
    assert expected.any()
    assert torch.equal(out, torch.from_numpy(expected).to(dtype))


@pytest.mark.parametrize(
    ("gradient", "reason"),
    [
        (X.astype(np.float64), "is float64, not float32 or float16: pass .astype"),
        (X.astype(np.uint16), "bfloat16=True"),
        (X.astype(">f4"), "is >f4, not float32"),
        (X[::2], "not C-contiguous"),
        (X.tolist(), "is a list"),
        (torch.zeros(10, dtype=torch.float64), "torch.float64"),
        (torch.zeros(10, 10).t()[:, :5], "not contiguous"),
        (torch.zeros(10, device="meta"), "on meta"),
        (torch.zeros(10).to_sparse(), "not contiguous"),
    ],
)
def test_wrong_gradients_are_refused(compressor, partition, gradient, reason):
    with pytest.raises(InputError, match=reason):
        compressor.measure(partition, gradient, round=1)


def test_a_partition_keeps_its_size(compressor, partition):
    compressor.measure(partition, X, round=1)
    with pytest.raises(InputError, match="gradient of 'w' has 10 coordinates, not 1000"):
        compressor.measure(partition, X[:10], round=2)


def test_a_checksum_is_of_a_contiguous_array():
    with pytest.raises(InputError, match="not C-contiguous"):
        checksum(X[::-1])


@pytest.mark.parametrize("bad", [-1, 1 << 32, 1.5])
def test_keys_have_32_bits(compressor, partition, bad):
    with pytest.raises(InputError, match="tensor must be an integer of 32 bits"):
        compressor.partition("w", 10, tensor=bad)
    with pytest.raises(InputError, match="round must be an integer of 32 bits"):
        compressor.measure(partition, X, round=bad)


def test_stages_come_in_order(compressor, partition):
    aggregate, ones, out = np.zeros(partition.padded, np.uint8), np.ones(1, np.uint8), np.zeros_like(X)
    with pytest.raises(InputError, match="without a gradient"):
        compressor.encode(partition, partition.norms)
    norms = compressor.measure(partition, X, round=1)
    with pytest.raises(InputError, match="is measured"):
        compressor.decode(partition, aggregate, ones, out)
    compressor.encode(partition, norms)
    with pytest.raises(InputError, match="is encoded"):
        compressor.encode(partition, norms)


def test_wrong_exchange_buffers_are_refused(compressor, partition):
    compressor.measure(partition, X, round=1)
    for bad in (np.zeros(2, np.float32), partition.norms.astype(np.float64), [1.0]):
        with pytest.raises(InputError, match="max_norms must be float32"):
            compressor.encode(partition, bad)
    compressor.encode(partition, partition.norms)
    good, ones, out = np.zeros(partition.padded, np.uint8), np.ones(1, np.uint8), np.zeros_like(X)
    read_only = np.zeros_like(X)
    read_only.flags.writeable = False
    for aggregate, contributions, target, reason in [
        (good.astype(np.uint16), ones, out, "aggregate must be uint8"),
        (good[:-1], ones, out, "aggregate must be uint8"),
        (good, np.ones(2, np.uint8), out, "contributions must be uint8"),
        (good, ones.astype(np.float32), out, "contributions must be uint8"),
        (good, ones, out[:-1], "out must be"),
        (good, ones, read_only, "writable"),
        (np.zeros(2 * good.size, np.uint8)[::2], ones, out, "not contiguous"),
    ]:
        with pytest.raises(InputError, match=reason):
            compressor.decode(partition, aggregate, contributions, target)


@pytest.mark.parametrize("size", [0, 1, 63, 65])
def test_tiny_gradients(compressor, size):
    partition = compressor.partition("w", size)
    assert compressor.sizes(size) == (len(partition.norms), partition.padded)
    compressor.encode(partition, compressor.measure(partition, X[:size], round=1))
    chunks = 1 if partition.padded else 0
    out = np.full(size, np.nan, np.float32)
    compressor.decode(partition, np.zeros(partition.padded, np.uint8), np.ones(chunks, np.uint8), out)
    assert np.isfinite(out).all()


@pytest.mark.parametrize(
    ("workers", "worker", "message"),
    [
        (2, 2, "worker must be in 0 .. 1, not 2"),
        (2, -1, "worker must be in 0 .. 1, not -1"),
        (0, 0, "workers must be in 1 .. 1024, not 0"),
        (1025, 0, "workers must be in 1 .. 1024, not 1025"),
    ],
)
def test_worker_ids_are_checked(workers, worker, message):
    with pytest.raises(ConfigurationError, match=message):
        Compressor(ServerCodes(), workers=workers, worker=worker)


def test_partitions_on_arrays_of_the_caller():
    compressor = Compressor(ServerCodes(error_feedback=True), workers=1, worker=0)
    blocks, padded = compressor.sizes(100)
    residual, norms, codes = np.zeros(100, np.float32), np.zeros(blocks, np.float32), np.zeros(padded // 2, np.uint8)
    partition = compressor.partition("g", 100, residual=residual, norms=norms, codes=codes)
    gradient = np.arange(100, dtype=np.float32)
    assert compressor.measure(partition, gradient, round=0) is norms
    compressor.encode(partition, norms)
    assert residual.any()
    assert codes.any()
    for wrong in ({"residual": residual[1:]}, {"norms": norms[1:]}, {"codes": codes[::2]}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} must be"):
            compressor.partition("h", 100, **wrong)
    with pytest.raises(ConfigurationError, match="a residual needs error feedback"):
        Compressor(ServerCodes(error_feedback=False), workers=1, worker=0).partition("g", 100, residual=residual)

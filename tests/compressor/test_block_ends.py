"""Rotation blocks that end at tensors: their places, and the error of every tensor."""

import itertools

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from server_oracle import ServerOracle

from byteps_thc import Compressor, ServerCodes
from byteps_thc._scheme.block_plan import END_MULTIPLE, OWN_BLOCKS_COORDINATES, BlockPlan, block_ends, ends_array

WORKERS = 4
#: Tensors of a bucket, and the scale of their gradients.
TENSORS = [(12_800, 1.0), (2048, 1e-3), (30_080, 0.1), (1152, 1e-4), (3072, 1.0), (9216, 1e-2)]
SIZE = sum(size for size, _ in TENSORS)

_PARTS = st.lists(st.tuples(st.integers(0, 300), st.sampled_from([1, 7, 64, 127, 1000, 1024, 1100, 20_000])))


def spans_of(sizes: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(itertools.accumulate(sizes, initial=0)))


@given(parts=_PARTS)
def test_blocks_mix_large_tensors_only_in_groups_of_their_own(parts: list[tuple[int, int]]) -> None:
    position, tensors = 0, []
    for gap, size in parts:
        tensors.append((position + gap, position + gap + size))
        position += gap + size
    ends = block_ends(tensors)
    assert list(ends) == sorted({*ends})
    assert all(end % END_MULTIPLE == 0 for end in ends)
    inside = BlockPlan(ends).within(slice(0, position)).ends
    edges = np.cumsum([0, *reference.block_sizes(position, 8192, inside)]).tolist()
    large = [tensor for tensor in tensors if tensor[1] - tensor[0] >= OWN_BLOCKS_COORDINATES]
    for start, stop in itertools.pairwise(edges):
        mixed = [tensor for tensor in tensors if tensor[0] < stop and start < tensor[1]]
        if len(mixed) > 1 and {*mixed} & {*large}:
            assert stop - start <= END_MULTIPLE
    assert len(ends) <= 4 * len(large) + 2 * position // OWN_BLOCKS_COORDINATES


def test_ends_lie_in_what_travels_exactly_and_tiny_tensors_share_blocks() -> None:
    assert block_ends([(0, 4096), (4196, 9000)]) == (4096,)
    assert block_ends([(0, 4097), (4225, 9000)]) == (4224,)
    assert block_ends([(0, 4097), (4098, 9000)]) == (4096, 4224), "a group of its own"
    assert block_ends(spans_of([4096, 300, 4096])) == (4096, 4352, 4480), "a small one between large ones"
    assert block_ends(spans_of([1] * 1000)) == (), "all together are one"
    assert len(block_ends(spans_of([100] * 1000))) <= 2 * 100_000 // OWN_BLOCKS_COORDINATES
    assert block_ends([]) == block_ends([(0, 70_000)]) == ()


def errors_by_tensor(config: ServerCodes, ends: tuple[int, ...], rounds: int) -> np.ndarray:
    """NMSE of the last round's average of a bucket with `ends`, of every tensor."""
    random = np.random.default_rng(5)
    scales = np.repeat([scale for _, scale in TENSORS], [size for size, _ in TENSORS]).astype(np.float32)
    oracle = ServerOracle(config, WORKERS)
    for round in range(rounds):
        gradients = [(random.standard_normal(SIZE) * scales).astype(np.float32) for _ in range(WORKERS)]
        average = oracle.average(gradients, round=round, plan=BlockPlan(ends))
    exact = np.mean(gradients, axis=0)
    spans = spans_of([size for size, _ in TENSORS])
    return np.array([np.square(average - exact)[slice(*s)].sum() / np.square(exact)[slice(*s)].sum() for s in spans])


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("block", [1024, 8192])
def test_every_tensor_errs_as_much_as_alone(feedback: bool, block: int) -> None:
    """In a bucket without ends, tensors of small gradients drown in the error of their neighbours."""
    config = ServerCodes(bits=4, error_feedback=feedback, rotation_block=block)
    ends = block_ends(spans_of([size for size, _ in TENSORS]))
    mixed, apart = (errors_by_tensor(config, where, 3 if feedback else 1) for where in ((), ends))
    assert len(ends) == len(TENSORS) - 1
    assert 0.01 < apart.min() < apart.max() < 0.03, "about that of normal vectors"
    assert mixed[[1, 3]].min() > 100, "noise, where the gradients are a thousandth of their neighbours'"


def test_a_bucket_s_norms_and_codes_are_as_many_as_before_but_for_some_blocks() -> None:
    compressor = Compressor(ServerCodes(bits=4, error_feedback=False), workers=WORKERS, worker=0)
    ends = block_ends(spans_of([82_944, 20_736, 62_208] * 8))
    size = 8 * (82_944 + 20_736 + 62_208)
    (blocks, padded), (more, same) = compressor.sizes(size), compressor.sizes(size, BlockPlan(ends))
    assert same == padded
    assert (more - blocks) * 8 < 2.5e-4 * padded * 12 / 8, "bytes: a norm each way, codes of 4 bits and sums of 8"
    assert ends_array(()) is None

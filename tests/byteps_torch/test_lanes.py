"""Division of parameters into lanes: every parameter once, the same order everywhere, even shares."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from byteps_thc import ServerCodes
from byteps_thc._engine.parameters import weights_of_all_embeddings
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._scheme.block_plan import BlockPlan, RowSpan
from byteps_thc.torch.lanes.lane import make_lanes
from byteps_thc.torch.optimizer.place import NamedParameter


def parameters_of(sizes, dtype=torch.float32):
    return [NamedParameter(f"p{i}", torch.zeros(size, dtype=dtype), i) for i, size in enumerate(sizes)]


def names(lane):
    return [[p.name for p in layout.parameters] for layout in lane.buffers]


def test_lane_0_has_the_first_layers_and_each_lane_sends_backwards():
    lanes = make_lanes(parameters_of([2000, 2000, 2000, 2000]), 2, CompressionPolicy())
    assert [names(lane) for lane in lanes] == [[["p1"], ["p0"]], [["p3"], ["p2"]]]


def test_small_parameters_of_a_lane_share_the_last_buffer():
    lanes = make_lanes(parameters_of([3000, 10, 2000, 20, 5000, 30]), 2, CompressionPolicy())
    assert [names(lane) for lane in lanes] == [[["p2"], ["p0"], ["p3", "p1"]], [["p4"], ["p5"]]]


def test_an_excluded_parameter_has_a_buffer_of_its_own_that_is_not_compressed():
    (lane,) = make_lanes(parameters_of([3000, 10, 2000]), 1, CompressionPolicy(exclude=("p0",)))
    assert names(lane) == [["p2"], ["p0"], ["p1"]]
    assert [buffer.compressed for buffer in lane.buffers] == [True, False, False]
    assert [name.partition("[")[0] for name, *_ in lane.pieces(ServerCodes())] == ["p2"]


def test_rows_with_scales_are_cut_with_their_parameter():
    embedding = NamedParameter("words", torch.zeros(9000, 9), 0)
    config = ServerCodes(partition_bytes=64 << 10, rotation_block=4096)
    (lane,) = make_lanes([embedding, *parameters_of([2000])], 1, CompressionPolicy(rows=("words",)))
    pieces = [(coordinates, plan) for name, coordinates, plan in lane.pieces(config) if name.startswith("words")]
    assert sum(coordinates for coordinates, _ in pieces) == 81_000
    assert [plan.rows for _, plan in pieces] == [
        (RowSpan(0, coordinates, 9, sum(before for before, _ in pieces[:i]) % 9),)
        for i, (coordinates, _) in enumerate(pieces)
    ]
    assert [plan for name, _, plan in lane.pieces(config) if not name.startswith("words")] == [BlockPlan()]


def test_embeddings_are_found_by_their_weights():
    words, bag, tied = nn.Embedding(10, 4), nn.EmbeddingBag(10, 4), nn.Linear(4, 10)
    tied.weight = words.weight
    found = weights_of_all_embeddings()
    assert {id(words.weight), id(bag.weight), id(tied.weight)} <= found
    assert id(tied.bias) not in found


def test_small_parameters_of_different_dtypes_do_not_share():
    parameters = [*parameters_of([10]), NamedParameter("half", torch.zeros(10, dtype=torch.float16), 1)]
    (lane,) = make_lanes(parameters, 1, CompressionPolicy())
    assert names(lane) == [["half"], ["p0"]]


def test_fewer_lanes_than_asked_for_when_there_is_too_little():
    assert len(make_lanes(parameters_of([5000]), 4, CompressionPolicy(bypass_elements=1))) == 1
    assert make_lanes([], 2, CompressionPolicy(bypass_elements=1)) == []


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.integers(1, 8), st.integers(0, 2000))
def test_every_parameter_is_in_one_buffer_and_lanes_are_even(sizes, lanes, bypass_elements):
    made = make_lanes(parameters_of(sizes), lanes, CompressionPolicy(bypass_elements=bypass_elements))
    indices = sorted(p.index for lane in made for layout in lane.buffers for p in layout.parameters)
    assert indices == list(range(len(sizes)))
    assert len({layout.key for lane in made for layout in lane.buffers}) == sum(len(lane.buffers) for lane in made)
    fair = sum(sizes) / lanes
    for lane in made:
        elements = [p.tensor.numel() for layout in lane.buffers for p in layout.parameters]
        assert sum(elements) <= fair + max(elements)
    # Forward order: all of a lane comes before all of the next one.
    firsts = [min(p.index for layout in lane.buffers for p in layout.parameters) for lane in made]
    lasts = [max(p.index for layout in lane.buffers for p in layout.parameters) for lane in made]
    assert all(last < first for last, first in zip(lasts[:-1], firsts[1:], strict=True))

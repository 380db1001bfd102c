"""Bytes of averages over a node's cards, and times on GPUs: against counted messages, and the tables of docs."""

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from gpu_times import BUCKET, CLUSTERS, COPIED_BYTES_PER_S, EXPOSED_S, Kernels, break_even, limits, times
from link_bytes import link_bytes

from byteps_thc._scheme.decoding.settings import RankCodes

DDP = (Path(__file__).parents[2] / "docs/ddp.md").read_text()
#: bytes of a coordinate by default: a code of 4 bits, and one of an average
CODE, AVERAGE = 4 / 8, 4 / 8
#: from, to, bytes per parameter
Message = tuple[int, int, float]


def ring(ranks: Sequence[int], passes: int, element_bytes: float) -> Iterator[Message]:
    """Each rank hands shards to the next one: one pass gathers, two reduce all."""
    for step in range(passes * (len(ranks) - 1)):
        del step
        for place, rank in enumerate(ranks):
            yield rank, ranks[(place + 1) % len(ranks)], element_bytes / len(ranks)


def to_all(ranks: Sequence[int], element_bytes: float) -> Iterator[Message]:
    """Each rank has something for every other one."""
    for sender in ranks:
        for receiver in ranks:
            if sender != receiver:
                yield sender, receiver, element_bytes / len(ranks)


def busiest(nodes: Sequence[int], messages: Iterator[Message]) -> float:
    """Bytes that the node sends to others which sends most; ranks are numbered node by node."""
    node_of = [node for node, ranks in enumerate(nodes) for _ in range(ranks)]
    sent = [0.0] * len(nodes)
    for sender, receiver, size in messages:
        if node_of[sender] != node_of[receiver]:
            sent[node_of[sender]] += size
    return max(sent)


def between_nodes(nodes: int, ranks: int) -> Iterator[Message]:
    """Each shard, a part of the parameters, among the ranks that have it."""
    for shard in range(ranks):
        holders = [node * ranks + shard for node in range(nodes)]
        for sender, receiver, size in (*to_all(holders, CODE), *ring(holders, 1, AVERAGE)):
            yield sender, receiver, size / ranks


@pytest.mark.parametrize("nodes", [[2, 2], [8] * 4, [1] * 4, [3, 1, 4]])
def test_messages_counted_one_by_one(nodes: list[int]) -> None:
    ranks = range(sum(nodes))
    computed, direct = link_bytes(nodes), link_bytes(nodes, ring=False)
    assert computed.fp32 == pytest.approx(busiest(nodes, ring(ranks, 2, 4)))
    assert computed.bf16 == pytest.approx(busiest(nodes, ring(ranks, 2, 2)))
    assert computed.flat == pytest.approx(busiest(nodes, iter([*to_all(ranks, CODE), *ring(ranks, 1, AVERAGE)])))
    assert direct.flat == pytest.approx(busiest(nodes, iter([*to_all(ranks, CODE), *to_all(ranks, AVERAGE)])))
    if len(set(nodes)) == 1:
        messages = between_nodes(len(nodes), nodes[0])
        assert computed.two_levels == direct.two_levels == pytest.approx(busiest(nodes, messages))


def test_one_node_sends_nothing_to_others() -> None:
    assert link_bytes([8]) == link_bytes([])
    assert link_bytes([8]).fp32 == 0


def test_bits_each_way() -> None:
    sent = link_bytes([2, 2], RankCodes(bits=4, down_bits=7), ring=False)
    assert sent.flat == pytest.approx((4 + 7) / 8)
    assert sent.two_levels == pytest.approx((4 + 7) / 8 / 2)


def test_the_table_of_the_docs() -> None:
    rows = re.findall(r"^\| (\d+) x (\d+) \| ([\d.| ]+) \|$", DDP, re.MULTILINE)
    assert len(rows) >= 8
    for nodes, ranks, cells in rows:
        sent = link_bytes([int(ranks)] * int(nodes))
        computed = [sent.fp32, sent.bf16, sent.flat, sent.two_levels]
        assert [f"{value:.1f}" for value in computed] == cells.split(" | ")
        assert sent.two_levels < sent.bf16  # two levels send less in any case


ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| (?:servers: (encode, no[^|]+)|ranks: ([^|]+)) \| \d+ \| ([\d.]+) \|",
    (ROOT / "byteps_thc/_scheme/gpu/README.md").read_text(),
    re.MULTILINE,
)
KERNELS = Kernels({servers or f"blocks, {ranks}": float(number) for servers, ranks, number in ROWS})


def test_the_tables_of_the_docs() -> None:
    page = (ROOT / "docs/gpu.md").read_text()
    for row in (*times(KERNELS), *limits(KERNELS)):
        assert f"| {' | '.join(row)} |" in page
    assert f"about {5 * round(2e5 * KERNELS.bucket_s(BUCKET, 8))} us" in page


def test_thc_is_faster_below_the_limit_alone() -> None:
    for cluster, _, _ in CLUSTERS:
        found = []
        for exposed_s in EXPOSED_S:
            thc_s = partial(cluster.thc_s, KERNELS, exposed_s)
            limit = break_even(thc_s, cluster.bf16_s)
            assert thc_s(0.9 * limit) < cluster.bf16_s(0.9 * limit)
            assert thc_s(1.1 * limit) > cluster.bf16_s(1.1 * limit)
            found.append(limit)
        assert all(more > less for more, less in itertools.pairwise(found))


def test_kernels_wait_for_memory_or_for_instructions() -> None:
    few = Kernels({name: 1e-3 if name.startswith("blocks") else 50.0 for name in KERNELS.instructions})
    assert few.encode_s(BUCKET) * COPIED_BYTES_PER_S > 4.5 * BUCKET
    assert KERNELS.encode_s(BUCKET) > few.encode_s(BUCKET)
    assert KERNELS.recode_s(BUCKET, 64) > few.recode_s(BUCKET, 64)

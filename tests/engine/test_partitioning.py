"""How buffers are cut into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from byteps_thc._scheme.shares import even_spans


@given(size=st.integers(0, 100_000), largest=st.integers(64, 20_000), multiple=st.sampled_from([64, 1024, 8192]))
def test_spans_are_few_and_even(size: int, largest: int, multiple: int) -> None:
    spans = even_spans(size, largest, multiple)
    edges = [0, *(span.stop for span in spans)]
    assert [span.start for span in spans] == edges[:-1]
    assert edges[-1] == size
    lengths = [span.stop - span.start for span in spans]
    assert all(0 < length <= largest for length in lengths)
    if lengths[1:]:
        assert max(lengths[:-1]) - min(lengths[:-1]) <= multiple
    if largest % multiple == 0:
        assert len(spans) == -(-size // largest), "no more than the limit needs"
        assert all(length % multiple == 0 for length in lengths[:-1])
        assert not lengths or max(lengths) - lengths[-1] < 2 * multiple


@given(size=st.integers(0, 20_000_000), servers=st.integers(1, 64), block=st.sampled_from([64, 8192, 1 << 20]))
def test_each_server_has_as_many_spans(size: int, servers: int, block: int) -> None:
    alone, spans = even_spans(size, 1 << 20, block), even_spans(size, 1 << 20, block, servers)
    assert len(alone) <= len(spans) < len(alone) + servers
    lengths = [span.stop - span.start for span in spans]
    assert sum(lengths) == size
    assert all(0 < length <= 1 << 20 for length in lengths)
    if size >= 1 << 16 and block <= 8192:
        assert max(lengths) - min(lengths) < 2 * block
        assert len(spans) % servers == 0 or size // (len(spans) + 1) < 1 << 16, "shorter ones would cost more"


def test_a_model_of_a_million_is_shared_by_four_servers() -> None:
    assert len(even_spans(1_100_000, 1 << 20, 8192, servers=4)) == 4


def test_a_bucket_of_ddp_has_no_short_last_piece() -> None:
    """Six layers of 1024 x 1024 with biases: with pieces of 8 MiB there would be a fourth one of 24 KiB."""
    lengths = [span.stop - span.start for span in even_spans(6 * (1024 * 1024 + 1024), 9 << 18, 8192)]
    assert len(lengths) == 3
    assert max(lengths) - min(lengths) < 2 * 8192

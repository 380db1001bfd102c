"""How buffers are cut into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from byteps_thc.pipeline.partitioning import even_spans


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


def test_a_bucket_of_ddp_has_no_short_last_piece() -> None:
    """Six layers of 1024 x 1024 with biases: with pieces of 8 MiB there would be a fourth one of 24 KiB."""
    lengths = [span.stop - span.start for span in even_spans(6 * (1024 * 1024 + 1024), 9 << 18, 8192)]
    assert len(lengths) == 3
    assert max(lengths) - min(lengths) < 2 * 8192

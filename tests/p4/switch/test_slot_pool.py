"""The slot pool of thc-ps, by which the packet tests' reference answers, from Python."""

import numpy as np
import pytest
from _core_test import SlotOutcome, SlotPool

from byteps_thc._scheme.errors import ConfigurationError, InputError


def test_binding_refuses_a_payload_of_another_length():
    table = np.arange(16, dtype=np.uint16)
    settings = {"bits": 4, "slots": 2, "norm_slots": 1, "codes_per_packet": 1024, "workers": 1, "value_bits": 8}
    pool = SlotPool(table, quorum=1, **settings)
    packet = {"round": 1, "worker": 0, "retransmit": False, "partition": 0, "chunk": 0, "count": 128}
    with pytest.raises(InputError, match="expected 64 bytes, got 63"):
        pool.contribute(slot=1, payload=bytes(63), **packet)
    reply = pool.contribute(slot=1, payload=bytes([0x12] * 64), **packet)
    assert (reply.outcome, reply.contributions, reply.bitmap) == (SlotOutcome.COMPLETED, 1, 1)
    assert reply.result == bytes([1, 2] * 64)
    assert pool.contribute(slot=2, payload=bytes(64), **packet).outcome == SlotOutcome.INVALID
    with pytest.raises(ConfigurationError, match="quorum"):
        SlotPool(table, quorum=2, **settings)

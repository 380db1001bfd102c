"""The externs of v1model, as simple_switch does them."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thc_p4_model.checksums import CRC16, crc32, csum16, identity, ones_complement_sum, xor_words
from thc_p4_model.externs.counters import CounterArray
from thc_p4_model.externs.data import bits_of, bytes_of, plain
from thc_p4_model.externs.registers import IndexedRegister
from thc_p4_model.externs.runtime import DirectCounter, FunctionBinder, PassState
from thc_p4_model.interfaces import CallInfo, ExternInfo, P4Error
from thc_p4_model.packet import PacketIn
from thc_p4_model.tables import Entry

LOG = logging.getLogger("thc_p4_model")
DROP_PORT = 511
MAX_DIGESTS = 1024

ALGORITHMS: Mapping[str, Callable[[bytes], int]] = {
    "crc32": crc32,
    "crc16": CRC16,
    "csum16": csum16,
    "xor16": lambda data: xor_words(data, 2),
    "identity": identity,
    # Without a configuration from the control plane bmv2's custom CRCs are the standard ones.
    "crc32_custom": crc32,
    "crc16_custom": CRC16,
}


@dataclass(eq=False)
class V1State(PassState):
    """The packet in progress, and the program's requests for the time after this pass."""

    gress: str = "ingress"
    packet: PacketIn = field(default_factory=lambda: PacketIn(b""))
    checksum_error: bool = False
    clone_session: int | None = None
    clone_fields: int | None = None
    resubmit_fields: int | None = None
    recirculate_fields: int | None = None
    truncate_bytes: int | None = None
    digest: tuple[int, Any] | None = None
    """The last request in this pass."""
    digests: deque[tuple[int, Any]] = field(default_factory=lambda: deque(maxlen=MAX_DIGESTS))
    """(receiver, data) for the control plane; the oldest is lost if the control plane is slow."""

    def begin(self, gress: str, packet: PacketIn, packet_bytes: int) -> None:
        """A pass starts."""
        self.number += 1
        self.gress = gress
        self.packet = packet
        self.packet_bytes = packet_bytes
        self.clone_session = self.clone_fields = self.resubmit_fields = self.recirculate_fields = None
        self.truncate_bytes = self.digest = None


class V1DirectCounter(DirectCounter):
    """`direct_counter`: the table counts by itself at every match; `count()` adds nothing, as in simple_switch."""

    def hit(self, entry: Entry) -> None:
        """Count the packet."""
        entry.packets += 1
        entry.bytes += self.state.packet_bytes

    def count(self) -> None:
        """Allowed, without effect."""


def algorithm(call: CallInfo, name: str) -> Callable[[bytes], int]:
    """A hash function by its name in P4."""
    if name not in ALGORITHMS:
        raise P4Error(call.location, f"hash algorithm {name} is not supported by the model")
    return ALGORITHMS[name]


def bind_mark_to_drop(_: V1State, __: CallInfo) -> Callable[[Any], None]:
    """`void mark_to_drop(inout standard_metadata_t standard_metadata)`."""

    def mark_to_drop(standard: Any) -> None:
        standard.egress_spec = DROP_PORT
        standard.mcast_grp = 0

    return mark_to_drop


def bind_hash(_: V1State, call: CallInfo) -> Callable[..., int]:
    """`void hash(out O result, in HashAlgorithm algo, in T base, in D data, in M max)`: base + hash % max."""
    data_bytes = bytes_of(call.params[3].type)
    mask = (1 << call.params[0].type.width) - 1

    def hash_(algo: str, base: int, data: Any, maximum: int) -> int:
        return (base + algorithm(call, algo)(data_bytes(data)) % (maximum or 1)) & mask

    return hash_


def bind_random(state: V1State, call: CallInfo) -> Callable[[int, int], int]:
    """`void random(out T result, in T lo, in T hi)`, both ends included."""

    def random(low: int, high: int) -> int:
        if low > high:
            raise P4Error(call.location, f"random: low {low} is greater than high {high}")
        return state.random.randint(low, high)

    return random


def _checksum(state: V1State, call: CallInfo, with_payload: bool) -> Callable[[Any, str], int]:
    """A function from (data, algorithm) to the checksum in the width of the checksum argument."""
    data_type = call.params[1].type
    bits, data_bytes = bits_of(data_type), bytes_of(data_type)
    mask = (1 << call.params[2].type.width) - 1

    def checksum(data: Any, algo: str) -> int:
        if algo == "csum16" and not with_payload:
            value, width = bits(data)
            return (0xFFFF - ones_complement_sum(value << (-width % 16))) & mask
        covered = data_bytes(data)
        if with_payload:
            covered += state.packet.rest()
        return algorithm(call, algo)(covered) & mask

    return checksum


def bind_update_checksum(state: V1State, call: CallInfo) -> Callable[..., int]:
    """`void update_checksum(in bool condition, in T data, inout O checksum, HashAlgorithm algo)`."""
    compute = _checksum(state, call, call.name.endswith("_with_payload"))
    return lambda condition, data, checksum, algo: compute(data, algo) if condition else checksum


def bind_verify_checksum(state: V1State, call: CallInfo) -> Callable[..., None]:
    """`void verify_checksum(in bool condition, in T data, in O checksum, HashAlgorithm algo)`."""
    compute = _checksum(state, call, call.name.endswith("_with_payload"))

    def verify_checksum(condition: bool, data: Any, checksum: int, algo: str) -> None:
        if condition and compute(data, algo) != checksum:
            state.checksum_error = True

    return verify_checksum


def bind_clone(state: V1State, call: CallInfo) -> Callable[..., None]:
    """`clone(in CloneType type, in bit<32> session)` and `clone_preserving_field_list(..., bit<8> index)`."""

    def clone(kind: str, session: int, index: int | None = None) -> None:
        _expect_gress(state, call, "ingress" if kind == "I2E" else "egress")
        state.clone_session = session
        state.clone_fields = index

    return clone


def bind_resubmit(state: V1State, call: CallInfo) -> Callable[[int], None]:
    """`void resubmit_preserving_field_list(bit<8> index)`."""

    def resubmit(index: int) -> None:
        _expect_gress(state, call, "ingress")
        state.resubmit_fields = index

    return resubmit


def bind_recirculate(state: V1State, call: CallInfo) -> Callable[[int], None]:
    """`void recirculate_preserving_field_list(bit<8> index)`."""

    def recirculate(index: int) -> None:
        _expect_gress(state, call, "egress")
        state.recirculate_fields = index

    return recirculate


def _expect_gress(state: V1State, call: CallInfo, gress: str) -> None:
    if state.gress != gress:
        raise P4Error(call.location, f"{call.name} has an effect in {gress} only")


def bind_truncate(state: V1State, _: CallInfo) -> Callable[[int], None]:
    """`void truncate(in bit<32> length)`, in bytes; the least of several."""

    def truncate(length: int) -> None:
        state.truncate_bytes = length if state.truncate_bytes is None else min(length, state.truncate_bytes)

    return truncate


def bind_digest(state: V1State, call: CallInfo) -> Callable[[int, Any], None]:
    """`void digest(in bit<32> receiver, in T data)`: one per pass, the last, sent at the end of ingress."""
    data_type = call.params[1].type

    def digest(receiver: int, data: Any) -> None:
        _expect_gress(state, call, "ingress")
        state.digest = receiver, plain(data_type, data)

    return digest


def bind_assert(_: V1State, call: CallInfo) -> Callable[[bool], None]:
    """`void assert(in bool check)`; `assume` is the same here."""

    def assert_(check: bool) -> None:
        if not check:
            raise P4Error(call.location, f"{call.name} failed")

    return assert_


def bind_log_msg(_: V1State, call: CallInfo) -> Callable[..., None]:
    """`void log_msg(string msg, in T data)`: `{}` stands for the next item of the data."""

    def log_msg(message: str, data: Any = ()) -> None:
        items = list(plain(call.params[1].type, data).values()) if len(call.params) > 1 else []
        LOG.info("%s: %s", call.location, _filled(message, items))

    return log_msg


def _filled(message: str, items: Sequence[Any]) -> str:
    """The message, each `{}` replaced by the next item as long as items last; other braces stay as they are."""
    first, *parts = message.split("{}")
    given = [str(item) for item in items[: len(parts)]]
    return first + "".join(item + part for item, part in zip(given + ["{}"] * len(parts), parts, strict=False))


CLASSES: Mapping[str, Callable[[ExternInfo, Any], Any]] = {
    "register": IndexedRegister,
    "counter": CounterArray,
    "direct_counter": V1DirectCounter,
}

FUNCTIONS: Mapping[str, FunctionBinder] = {
    "mark_to_drop": bind_mark_to_drop,
    "hash": bind_hash,
    "random": bind_random,
    "update_checksum": bind_update_checksum,
    "update_checksum_with_payload": bind_update_checksum,
    "verify_checksum": bind_verify_checksum,
    "verify_checksum_with_payload": bind_verify_checksum,
    "clone": bind_clone,
    "clone_preserving_field_list": bind_clone,
    "resubmit_preserving_field_list": bind_resubmit,
    "recirculate_preserving_field_list": bind_recirculate,
    "truncate": bind_truncate,
    "digest": bind_digest,
    "assert": bind_assert,
    "assume": bind_assert,
    "log_msg": bind_log_msg,
}

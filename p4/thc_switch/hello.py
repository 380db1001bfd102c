"""HELLO: from bytes to a checked configuration, with thc-ps's answers (byteps_thc/csrc/thc/hello.cc)."""

from collections.abc import Sequence
from dataclasses import dataclass

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.wire.layout import CODE_BITS, MAX_CODES_PER_PACKET, MAX_WORKERS, MIN_CODES_PER_PACKET, VALUE_BITS
from byteps_thc._scheme.adding.tables import LookupTable
from thc_switch import limits
from thc_switch.description import JobDescription
from thc_switch.wire import ConfigField, ErrorReason, Header, HelloPayload

_VALUE_BYTES = 2
_FIXED_BYTES = Header.SIZE_BYTES + HelloPayload.SIZE_BYTES
#: p and cost of a table do not travel; any valid ones give the same LookupTable values.
_UNKNOWN_P, _UNKNOWN_COST = 0.5, 0.0


@dataclass(frozen=True)
class Refusal:
    """Contents of an ERROR message."""

    reason: ErrorReason
    field: ConfigField = ConfigField.NONE
    worker_bitmap: int = 0
    job_value: int = 0


@dataclass(frozen=True)
class JobConfig:
    """Settings that a job's workers share; settings_hash, arithmetic, slots_asked: None before the first has joined."""

    num_workers: int
    code_bits: int
    value_bits: int
    table: LookupTable
    codes_per_packet: int
    quorum: int
    settings_hash: int | None
    arithmetic: int | None
    slots_asked: int | None

    @classmethod
    def of_job(cls, job: JobDescription) -> "JobConfig":
        """Return the configuration of an installed job."""
        return cls(
            num_workers=job.num_workers,
            code_bits=limits.CODE_BITS,
            value_bits=limits.VALUE_BITS,
            table=job.table,
            codes_per_packet=limits.CODES_PER_PACKET,
            quorum=job.contributions if job.upstream is None else job.num_workers,
            settings_hash=None,
            arithmetic=None,
            slots_asked=None,
        )


@dataclass(frozen=True)
class Hello:
    """A valid HELLO. run: 0: not told."""

    nonce: int
    run: int
    config: JobConfig


def pack_payload(fields: HelloPayload, values: Sequence[int]) -> bytes:
    """Return fields and lookup table as wire bytes; OverflowError if a number does not fit."""
    return fields.pack() + b"".join(value.to_bytes(_VALUE_BYTES, "big") for value in values)


def unpack_payload(payload: bytes, code_bits: int) -> tuple[HelloPayload, tuple[int, ...]]:
    """Return the fixed fields and the table of a HELLO for codes of that many bits; ValueError for another length."""
    expected_bytes = HelloPayload.SIZE_BYTES + (_VALUE_BYTES << code_bits)
    if len(payload) != expected_bytes:
        raise ValueError(f"HELLO of {code_bits}-bit codes needs {expected_bytes} bytes, got {len(payload)}")
    table = payload[HelloPayload.SIZE_BYTES :]
    starts = range(0, len(table), _VALUE_BYTES)
    return HelloPayload.unpack(payload), tuple(int.from_bytes(table[i : i + _VALUE_BYTES], "big") for i in starts)


def parse_hello(header: Header, datagram: bytes) -> Hello | Refusal | None:
    """Check all fields of a HELLO that do not depend on the job. None: its length is wrong."""
    if len(datagram) < _FIXED_BYTES:
        return None
    if header.code_bits not in CODE_BITS:
        return Refusal(ErrorReason.BAD_CONFIG, ConfigField.CODE_BITS)
    try:
        payload, values = unpack_payload(datagram[Header.SIZE_BYTES :], header.code_bits)
    except ValueError:
        return None
    if field := _bad_field(header, payload):
        return Refusal(ErrorReason.BAD_CONFIG, field)
    table = _table(header.code_bits, values)
    if table is None or table.hash != payload.table_hash:
        return Refusal(ErrorReason.BAD_CONFIG, ConfigField.TABLE)
    if table.granularity != payload.granularity:
        return Refusal(ErrorReason.BAD_CONFIG, ConfigField.GRANULARITY)
    if payload.granularity * header.num_workers >> header.value_bits:
        return Refusal(ErrorReason.OVERFLOW, ConfigField.GRANULARITY)
    config = JobConfig(
        num_workers=header.num_workers,
        code_bits=header.code_bits,
        value_bits=header.value_bits,
        table=table,
        codes_per_packet=payload.codes_per_packet,
        quorum=payload.quorum,
        settings_hash=payload.settings_hash,
        arithmetic=payload.arithmetic,
        slots_asked=payload.slots,
    )
    return Hello(payload.nonce, payload.run, config)


def difference(hello: JobConfig, job: JobConfig) -> Refusal | None:
    """Return a CONFIG_MISMATCH about the first field in which a HELLO differs from its job."""
    fields: tuple[tuple[ConfigField, object, object], ...] = (
        (ConfigField.NUM_WORKERS, hello.num_workers, job.num_workers),
        (ConfigField.ARITHMETIC, hello.arithmetic, job.arithmetic),
        (ConfigField.CODE_BITS, hello.code_bits, job.code_bits),
        (ConfigField.VALUE_BITS, hello.value_bits, job.value_bits),
        (ConfigField.GRANULARITY, hello.table.granularity, job.table.granularity),
        (ConfigField.TABLE, hello.table.values, job.table.values),
        (ConfigField.CODES_PER_PACKET, hello.codes_per_packet, job.codes_per_packet),
        (ConfigField.QUORUM, hello.quorum, job.quorum),
        (ConfigField.SETTINGS, hello.settings_hash, job.settings_hash),
        (ConfigField.SLOTS, hello.slots_asked, job.slots_asked),
    )
    for field, ours, theirs in fields:
        if theirs is not None and ours != theirs:
            is_number = isinstance(theirs, int) and field is not ConfigField.SETTINGS
            return Refusal(ErrorReason.CONFIG_MISMATCH, field, job_value=int(str(theirs)) if is_number else 0)
    return None


def _bad_field(header: Header, payload: HelloPayload) -> ConfigField | None:
    checks = (
        (ConfigField.NUM_WORKERS, 1 <= header.num_workers <= MAX_WORKERS),
        (ConfigField.WORKER_ID, header.worker_id < header.num_workers),
        (ConfigField.VALUE_BITS, header.value_bits in VALUE_BITS),
        (ConfigField.QUORUM, 1 <= payload.quorum <= header.num_workers),
        (ConfigField.GRANULARITY, payload.granularity >= 1),
        (ConfigField.SLOTS, payload.slots != 1),  # at least one for norms and one for codes
        (ConfigField.CODES_PER_PACKET, MIN_CODES_PER_PACKET <= payload.codes_per_packet <= MAX_CODES_PER_PACKET),
    )
    return next((field for field, valid in checks if not valid), None)


def _table(code_bits: int, values: tuple[int, ...]) -> LookupTable | None:
    try:
        return LookupTable(code_bits, values[-1], _UNKNOWN_P, values, _UNKNOWN_COST)
    except ConfigurationError:
        return None

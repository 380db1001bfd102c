"""A leaf's link to its root: it joins as worker `rack` of a job whose workers are racks (protocol.md, "Racks").

It has no clock and no timers: repeated HELLOs of its workers make it repeat its own.
"""

import logging
from dataclasses import replace

from byteps_thc._base.wire.fnv1a import fnv1a_64
from byteps_thc._base.wire.layout import CONTEST_MS
from thc_switch import frames, limits
from thc_switch.allocation import JobAllocation, norm_slots_of
from thc_switch.description import SwitchDescription
from thc_switch.frames import Datagram
from thc_switch.hello import JobConfig, Refusal, pack_payload
from thc_switch.upstream_description import CODE_BITS, UpstreamDescription
from thc_switch.wire import (
    ChallengePayload,
    ConfigField,
    ErrorPayload,
    ErrorReason,
    Header,
    HelloPayload,
    MessageType,
    WelcomePayload,
)

#: Shortest interval between HELLOs to the root, for any number of workers.
_REPEAT_S = 0.1
#: Silence of the root that is logged.
_ANSWER_S = 3.0
#: Workers repeat HELLO more often than this.
_FORGOTTEN_S = 5.0
#: Fields in which the root compares racks, which mean nothing to workers.
_OF_RACKS = (ConfigField.NUM_WORKERS, ConfigField.QUORUM, ConfigField.WORKER_ID, ConfigField.CODE_BITS)

_log = logging.getLogger(__name__)


class RootLink:
    """One job of a leaf at its root. nonce: random, of this incarnation of the leaf."""

    def __init__(self, allocation: JobAllocation, switch: SwitchDescription, nonce: int) -> None:
        upstream = allocation.job.upstream
        assert upstream is not None
        self._job = allocation.job
        self._slots = allocation.slots
        self._switch = switch
        self._upstream = upstream
        self._nonce = nonce
        self._cookie = 0
        self._may_be_challenged = False
        self._config: JobConfig | None = None
        self._run = 0
        self._is_refused_for_another = False
        self._unanswered_since_s: float | None = None
        self._last_asked_s = 0.0
        self._contest_since_s: float | None = None
        #: whether the root has not answered for seconds
        self.is_silent = False
        #: None: the root has not let this leaf in
        self.welcome: WelcomePayload | None = None
        #: of the root's job, once it is known
        self.epoch = 0

    @property
    def racks(self) -> int:
        """Number of racks that the root adds."""
        return len(self._upstream.ranges)

    @property
    def name(self) -> str:
        """Name of the link in logs."""
        return f"job {self._job.job_id}, rack {self._upstream.rack}, root {self._upstream.ip}:{self._upstream.udp_port}"

    def is_from_root(self, datagram: Datagram) -> bool:
        """Whether a datagram comes from the root's address."""
        return (datagram.src_ip, datagram.src_port) == (self._upstream.ip, self._upstream.udp_port)

    def settled(self, now_s: float) -> JobConfig | None:
        """Return the root's configuration, which a worker's HELLO must match; None if waiting workers are gone."""
        if self.welcome is None and now_s - self._last_asked_s > _FORGOTTEN_S:
            return None
        return self._config

    def is_taken(self, run: int, now_s: float) -> bool:
        """Whether workers of another run wait or have joined, and the root has not refused them for a third run."""
        is_in_vain = self.welcome is None and self._is_refused_for_another
        return self.settled(now_s) is not None and run != self._run and not is_in_vain

    def is_of(self, run: int) -> bool:
        """Whether the root was told this run, and no other."""
        return self._config is None or run == self._run

    def ask(self, config: JobConfig, run: int, now_s: float) -> list[bytes]:
        """Return the frames of a HELLO for workers of this training; none if the last one was just sent."""
        if self._unanswered_since_s is None or now_s - self._last_asked_s > _FORGOTTEN_S:
            self._unanswered_since_s, self.is_silent = now_s, False
        elif now_s - self._last_asked_s < _REPEAT_S:
            return []
        elif now_s - self._unanswered_since_s > _ANSWER_S and not self.is_silent:
            self.is_silent = True
            _log.warning("%s: no answer for %g s; is thc-ps up, and can it reach the switch?", self.name, _ANSWER_S)
        self._config, self._run, self._last_asked_s = self.settled(now_s) or config, run, now_s
        self._may_be_challenged = True
        return self._say_hello()

    def take_challenge(self, header: Header, payload: bytes) -> list[bytes] | None:
        """Return the HELLO with the root's cookie; None if nothing was asked.

        Once for each question, because a root that rejects cookies would get questions without end.
        """
        is_challenge = self._answers_hello(header) and len(payload) == ChallengePayload.SIZE_BYTES
        if not is_challenge or not self._may_be_challenged:
            return None
        self._may_be_challenged = False
        self._heard()
        self._cookie = ChallengePayload.unpack(payload).cookie
        return self._say_hello()

    def take_welcome(self, header: Header, payload: bytes) -> Refusal | None:
        """Note that the root lets this leaf in; return a Refusal for the workers if its job does not fit the switch."""
        if not self._answers_hello(header) or len(payload) != WelcomePayload.SIZE_BYTES:
            return None
        self.welcome = welcome = WelcomePayload.unpack(payload)
        self.epoch = header.epoch
        if problem := self._problem_of(welcome):
            field, what = problem
            _log.error("%s: %s", self.name, what)
            return Refusal(ErrorReason.BAD_CONFIG, field)
        _log.info("%s: joined, epoch %08x, %d slots", self.name, header.epoch, welcome.slots)
        return None

    def take_refusal(self, header: Header, error: ErrorPayload, now_s: float) -> Refusal | None:
        """Return a Refusal for the waiting workers after an ERROR about HELLO; None: nothing, or not yet."""
        if not self._answers_hello(header):
            return None
        self._heard()
        reason = ErrorReason(error.reason) if error.reason in list(ErrorReason) else ErrorReason.BAD_CONFIG
        if reason in (ErrorReason.DUPLICATE_WORKER, ErrorReason.OTHER_TRAINING):
            self._is_refused_for_another = reason is ErrorReason.OTHER_TRAINING
            if self._contest_since_s is None:
                self._contest_since_s = now_s
            if now_s - self._contest_since_s < CONTEST_MS / 1e3:
                return None
        field = ConfigField(error.field) if error.field in list(ConfigField) else ConfigField.NONE
        _log.error("%s: refused, %s %s (the job has %d)", self.name, reason.name, field.name, error.job_value)
        if field in _OF_RACKS:
            return Refusal(reason)
        largest_rack = max(len(workers) for workers in self._upstream.ranges)
        divisor = largest_rack if field is ConfigField.GRANULARITY else 1
        return Refusal(reason, field, job_value=error.job_value // divisor)

    def answer_probe(self, header: Header) -> list[bytes] | None:
        """Return ALIVE; None if PROBE is about an earlier process, whose place may be taken."""
        if not self.is_of_incarnation(header):
            return None
        return [self._frame(replace(header, message_type=MessageType.ALIVE).pack())]

    def is_of_incarnation(self, header: Header) -> bool:
        """Whether a message is about the root's present job."""
        return self.welcome is not None and header.epoch == self.epoch

    def goodbye(self) -> list[bytes]:
        """Return the frames that tell the root that this rack is done."""
        if self.welcome is None:
            return []
        return [self._frame(self._header(MessageType.GOODBYE, epoch=self.epoch).pack())]

    def _heard(self) -> None:
        self._unanswered_since_s, self.is_silent = None, False

    def _answers_hello(self, header: Header) -> bool:
        asked = self._header(MessageType.HELLO)
        is_answer = (header.round, header.partition, header.chunk) == (asked.round, asked.partition, asked.chunk)
        return self._config is not None and self.welcome is None and is_answer

    def _problem_of(self, welcome: WelcomePayload) -> tuple[ConfigField, str] | None:
        if welcome.shards != 1:
            advice = "a switch knows one epoch: start the root with --threads 1"
            return ConfigField.NONE, f"it has {welcome.shards} threads, and {advice}"
        if not 2 <= welcome.slots <= self._slots or welcome.norm_slots != norm_slots_of(welcome.slots):
            what = (
                f"its job has {welcome.slots} slots, {welcome.norm_slots} of them for norms, and the description gives "
                f"the job {self._slots} on this switch: start the root with thc-ps --slots {self._slots}, or set slots"
            )
            return ConfigField.SLOTS, what
        if limits.CODES_PER_PACKET % max(welcome.codes_multiple, 1):
            return ConfigField.NONE, f"it takes multiples of {welcome.codes_multiple} codes: use thc-ps as the root"
        return None

    def _say_hello(self) -> list[bytes]:
        assert self._config is not None
        table = self._upstream.table(self._config.table.granularity)
        payload = HelloPayload(
            table_hash=table.hash,
            nonce=self._nonce,
            run=self._run,
            cookie=self._cookie,
            granularity=table.granularity,
            codes_per_packet=self._config.codes_per_packet,
            slots=self._config.slots_asked or 0,
            quorum=len(self._upstream.ranges),
            arithmetic=self._config.arithmetic or 0,
            settings_hash=rack_settings_hash(self._config, self._upstream),
        )
        return [self._frame(self._header(MessageType.HELLO).pack() + pack_payload(payload, table.values))]

    def _header(self, message_type: MessageType, epoch: int = 0) -> Header:
        nonce = self._nonce if message_type is MessageType.HELLO else 0
        return Header(
            message_type=message_type,
            code_bits=CODE_BITS,
            value_bits=limits.VALUE_BITS,
            worker_id=self._upstream.rack,
            num_workers=len(self._upstream.ranges),
            job_id=self._job.job_id,
            epoch=epoch,
            round=nonce & 0xFFFFFFFF,
            partition=nonce >> 32 & 0xFFFF,
            chunk=nonce >> 48,
        )

    def _frame(self, payload: bytes) -> bytes:
        return frames.build(frames.to_station(self._switch, self._upstream, payload))


def rack_settings_hash(config: JobConfig, upstream: UpstreamDescription) -> int:
    """Return the settings_hash of a leaf, which keeps racks apart if settings, table or the other racks differ.

    The lower 32 bits of FNV-1a 64 over settings_hash (32 bits, big-endian), table_hash (64), num_workers (8) and the
    bitmap of the racks' first workers (64).
    """
    first_workers = sum(1 << rack.start for rack in upstream.ranges)
    words = (config.settings_hash or 0).to_bytes(4, "big") + config.table.hash.to_bytes(8, "big")
    words += bytes([config.num_workers]) + first_workers.to_bytes(8, "big")
    return fnv1a_64(words) & 0xFFFFFFFF

"""Headers of what the agent is told and what it answers."""

from __future__ import annotations

from dataclasses import replace

from byteps_thc._scheme.wire.layout import Flag, Header, MessageType
from thc_switch import frames
from thc_switch.frames import Datagram
from thc_switch.hello import JobConfig


def answer_frames(datagram: Datagram, payload: bytes) -> list[bytes]:
    """Return the frames that say this to whom a datagram is from."""
    return [frames.build(datagram.answer(payload))]


def reply_header(request: Header, message_type: MessageType) -> Header:
    """Return the header of an answer to a message."""
    return replace(
        request, message_type=message_type, flags=0, contributions=0, switch_pass=0, switch_step=0, switch_state=0
    )


def is_clean(header: Header) -> bool:
    """Whether fields that no packet of a worker may set are zero."""
    internal = header.switch_pass | header.switch_step | header.switch_state
    return not (header.flags & ~int(Flag.RETRANSMIT) or header.contributions or internal)


def agrees_with(header: Header, config: JobConfig) -> bool:
    """Whether a worker's header says of its job what the job is."""
    ours = (header.code_bits, header.value_bits, header.num_workers)
    return ours == (config.code_bits, config.value_bits, config.num_workers) and header.worker_id < config.num_workers

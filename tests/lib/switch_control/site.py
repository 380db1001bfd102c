"""A switch of the P4 model with its agent, and messages of workers."""

import itertools
from dataclasses import dataclass, replace
from typing import Any

from byteps_thc._base.wire.layout import UDP_PORT
from byteps_thc._scheme.adding.tables import LookupTable
from thc_p4_model.switch import Switch
from thc_switch import Deployment, SwitchAgent, allocate, frames
from thc_switch.controls import SlotCheck
from thc_switch.frames import Datagram
from thc_switch.targets.model import ModelControl
from thc_switch.wire import ErrorPayload, Header, HelloPayload, MessageType, WelcomePayload

HOST_MAC = bytes.fromhex("020000009999")


@dataclass
class Reply:
    header: Header
    payload: WelcomePayload | ErrorPayload

    @property
    def error(self) -> ErrorPayload:
        assert isinstance(self.payload, ErrorPayload)
        return self.payload

    @property
    def welcome(self) -> WelcomePayload:
        assert isinstance(self.payload, WelcomePayload)
        return self.payload


class Site:
    """A switch with its agent, and workers' messages to it."""

    def __init__(self, deployment: Deployment, switch: Switch) -> None:
        self.deployment, self.switch = deployment, switch
        self.control = ModelControl(switch)
        self.agent = SwitchAgent(deployment, self.control, new_epoch=itertools.count(1000).__next__)
        self.now_s = 100.0

    def datagram(self, payload: bytes, job: int = 0, worker: int = 0) -> Datagram:
        """Return a worker's datagram to the switch."""
        sender = self.deployment.jobs[job].workers[worker]
        return Datagram(
            src_mac=HOST_MAC,
            dst_mac=bytes.fromhex(self.deployment.switch.mac.replace(":", "")),
            src_ip=sender.ip,
            dst_ip=self.deployment.switch.ip,
            src_port=sender.udp_port,
            dst_port=UDP_PORT,
            payload=payload,
        )

    def send(self, payload: bytes, job: int = 0, worker: int = 0, **addresses: Any) -> Reply | None:
        sender = self.deployment.jobs[job].workers[worker]
        datagram = replace(self.datagram(payload, job, worker), **addresses)
        request = frames.build(datagram)
        self.switch.process(sender.port, request)
        answers = self.agent.handle(request, self.now_s)
        if not answers:
            return None
        (frame,) = answers
        answer = frames.parse(frame)
        assert answer is not None
        assert answer == datagram.answer(answer.payload)
        header = Header.unpack(answer.payload)
        kind = WelcomePayload if header.message_type == MessageType.WELCOME else ErrorPayload
        assert len(answer.payload) == Header.SIZE_BYTES + kind.SIZE_BYTES
        return Reply(header, kind.unpack(answer.payload[Header.SIZE_BYTES :]))

    def hello_bytes(self, job: int = 0, worker: int = 0, table: LookupTable | None = None, **changes: Any) -> bytes:
        description = self.deployment.jobs[job]
        table = table or description.table
        header = {
            "message_type": MessageType.HELLO,
            "code_bits": table.bits,
            "value_bits": 8,
            "worker_id": worker,
            "num_workers": len(description.workers),
            "job_id": description.job_id,
        }
        payload = {
            "table_hash": table.hash,
            "nonce": 1 + worker,
            "granularity": table.granularity,
            "codes_per_packet": 1024,
            "quorum": description.contributions,
            "settings_hash": 77,
        }
        for name, value in changes.items():
            is_header = name in Header.__dataclass_fields__ and name not in HelloPayload.__dataclass_fields__
            (header if is_header else payload)[name] = value
        values = b"".join(value.to_bytes(2, "big") for value in table.values)
        return Header(**header).pack() + HelloPayload(**payload).pack() + values

    def hello(self, worker: int = 0, job: int = 0, **changes: Any) -> Reply:
        reply = self.send(self.hello_bytes(job, worker, **changes), job, worker)
        assert reply is not None
        return reply

    def join_all(self, job: int = 0) -> int:
        """All workers say HELLO; returns the epoch."""
        epochs = {self.hello(worker, job).header.epoch for worker in range(len(self.deployment.jobs[job].workers))}
        assert len(epochs) == 1
        return epochs.pop()

    def goodbye(self, worker: int, joined_epoch: int, job: int = 0, **changes: Any) -> Reply | None:
        description = self.deployment.jobs[job]
        header = Header(
            message_type=MessageType.GOODBYE,
            code_bits=4,
            value_bits=8,
            worker_id=worker,
            num_workers=len(description.workers),
            job_id=description.job_id,
            epoch=joined_epoch,
        )
        return self.send(replace(header, **changes).pack(), job, worker)

    def open_epoch(self, job: int = 0) -> int | None:
        return self.control.open_epoch(allocate(self.deployment)[job])

    def send_codes(self, worker: int, epoch: int, slot: int = 20) -> int | None:
        """A CODES packet of a worker, through the switch; returns the reason of an ERROR that answers it."""
        description = self.deployment.jobs[0]
        sender = description.workers[worker]
        header = Header(
            message_type=MessageType.CODES,
            code_bits=4,
            value_bits=8,
            worker_id=worker,
            num_workers=len(description.workers),
            job_id=description.job_id,
            payload_count=1024,
            epoch=epoch,
            round=1,
            slot=slot,
        )
        datagram = self.datagram(header.pack() + bytes(512), worker=worker)
        for _, frame in self.switch.process(sender.port, frames.build(datagram)):
            answer = frames.parse(frame)
            assert answer is not None
            if Header.unpack(answer.payload).message_type == MessageType.ERROR:
                return ErrorPayload.unpack(answer.payload[Header.SIZE_BYTES :]).reason
        return None

    def rounds(self, job: int = 0) -> list[int]:
        allocation = allocate(self.deployment)[job]
        return self.control.read_register(SlotCheck.full_name("highest_round"), allocation.first_slot, allocation.slots)

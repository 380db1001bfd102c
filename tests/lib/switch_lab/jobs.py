"""Workers and training jobs as packet tests see them, and the frames that workers send."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from thc_scapy import FLAGS, PORT, TYPES, VERSION, Thc, ThcHello

from byteps_thc._scheme.adding.server_codes import ResolvedCodes, ServerCodes
from byteps_thc._scheme.adding.tables import LookupTable
from byteps_thc._scheme.arithmetic import arithmetic_version
from thc_switch.upstream_description import UpstreamDescription

SERVICE_IP = "10.0.255.254"
SERVICE_MAC = "02:00:00:00:ff:fe"
CODE_BITS = 4
VALUE_BITS = 8
CODES_PER_PACKET = 1024
NORMS_PER_PACKET = CODES_PER_PACKET * VALUE_BITS // 32

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Endpoint = tuple[str, int]


@dataclass(frozen=True)
class Worker:
    """One worker: its addresses and the switch port its cable is in."""

    worker_id: int
    mac: str
    ip: str
    udp_port: int
    switch_port: int

    @property
    def endpoint(self) -> Endpoint:
        return self.ip, self.udp_port


@dataclass(frozen=True)
class Job:
    """A training job. Slots 0 .. norm_slots - 1 take norms. The epoch is known once the workers have joined."""

    job_id: int
    workers: tuple[Worker, ...]
    quorum: int
    slots: int
    thc: ServerCodes
    epoch: int = 0
    upstream: UpstreamDescription | None = None
    """set for a switch that is the leaf of one rack; `workers` has the workers of all racks"""

    @classmethod
    def make(
        cls,
        job_id: int,
        workers: int,
        switch_ports: Sequence[int],
        *,
        quorum: int | None = None,
        slots: int = 16,
        granularity: int | None = None,
    ) -> "Job":
        """A job whose workers are spread over the ports. granularity: None: the paper's for 8, else the smallest."""
        members = tuple(
            Worker(
                worker_id=worker,
                mac=f"02:00:00:00:{job_id & 0xFF:02x}:{worker + 1:02x}",
                ip=f"10.0.{job_id & 0xFF}.{worker + 1}",
                udp_port=40000 + worker,
                switch_port=switch_ports[worker % len(switch_ports)],
            )
            for worker in range(workers)
        )
        granularity = granularity or (30 if workers <= 8 else 15)
        thc = ServerCodes(granularity=granularity, p=1 / 32, value_bits=VALUE_BITS)
        return cls(job_id, members, quorum or workers, slots, thc)

    def with_epoch(self, epoch: int) -> "Job":
        return dataclasses.replace(self, epoch=epoch)

    @cached_property
    def resolved(self) -> ResolvedCodes:
        return self.thc.resolve(len(self.workers))

    @property
    def table(self) -> LookupTable:
        return self.resolved.table

    @property
    def norm_slots(self) -> int:
        return 1 if self.slots < 16 else self.slots // 8

    @property
    def first_code_slot(self) -> int:
        return self.norm_slots

    def sum(self, codes: Sequence[Bytes]) -> bytes:
        """Return the aggregate of codes by the definition."""
        return np.sum([self.table.array[row] for row in codes], axis=0).astype(np.uint8).tobytes()

    def header(self, worker: Worker, kind: str, **fields: int) -> Thc:
        """The header this worker puts before a payload; `fields` set or spoil fields."""
        values: dict[str, int] = {
            "version": VERSION,
            "message_type": TYPES[kind],
            "code_bits": CODE_BITS,
            "value_bits": VALUE_BITS,
            "worker_id": worker.worker_id,
            "num_workers": len(self.workers),
            "job_id": self.job_id,
            "epoch": self.epoch,
        }
        return Thc(**(values | fields))

    def codes(self, worker: Worker, codes: Bytes, *, retransmit: bool = False, **fields: int) -> Packet:
        """A CODES frame of unpacked codes."""
        packed = (codes[0::2] << 4 | codes[1::2]).tobytes()
        defaults = {"slot": self.first_code_slot, "round": 1, "payload_count": len(codes)}
        defaults["flags"] = FLAGS["retransmit"] if retransmit else 0
        return frame(worker, self.header(worker, "codes", **(defaults | fields)) / Raw(packed))

    def norms(self, worker: Worker, norms: Floats, *, retransmit: bool = False, **fields: int) -> Packet:
        defaults = {"slot": 0, "round": 1, "payload_count": len(norms)}
        defaults["flags"] = FLAGS["retransmit"] if retransmit else 0
        return frame(worker, self.header(worker, "norm", **(defaults | fields)) / Raw(norms.astype(">f4").tobytes()))

    def hello(self, worker: Worker, nonce: int, cookie: int = 0, run: int = 0) -> Packet:
        """A HELLO frame with the configuration of the job. cookie: from CHALLENGE, if the aggregator sent one."""
        hello = ThcHello(
            table_hash=self.table.hash,
            nonce=nonce,
            cookie=cookie,
            run=run,
            granularity=self.table.granularity,
            codes_per_packet=CODES_PER_PACKET,
            slots=self.slots,
            quorum=self.quorum,
            settings_hash=self.resolved.shared_hash,
            arithmetic=arithmetic_version(),
            values=list(self.table.values),
        )
        return frame(worker, self.header(worker, "hello", epoch=0) / hello)


def frame(worker: Worker, message: Packet) -> Packet:
    """The message on its way from the worker to the aggregator."""
    return (
        Ether(src=worker.mac, dst=SERVICE_MAC)
        / IP(src=worker.ip, dst=SERVICE_IP, flags="DF")
        / UDP(sport=worker.udp_port, dport=PORT)
        / message
    )

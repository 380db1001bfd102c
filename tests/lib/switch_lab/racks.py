"""A switch as the leaf of a rack, below a root that the reference plays."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from thc_scapy import PORT, TYPES, Thc, ThcHello, ThcWelcome

from byteps_thc._scheme.adding.tables import LookupTable
from switch_lab.jobs import CODES_PER_PACKET, SERVICE_IP, SERVICE_MAC, Bytes, Endpoint, Floats, Job, Worker
from switch_lab.lab import datagram_of
from switch_lab.reference import Limits, Reference
from switch_lab.targets.switch import SwitchTarget
from switch_lab.targets.target import PortFrame
from thc_switch.upstream_description import CODE_BITS, UpstreamDescription

#: Addresses of no worker of any job (`Job.make`), nor of the fence's.
ROOT_IP, ROOT_MAC = "10.1.254.1", "02:00:00:01:fe:01"
ROOT_EPOCH = 0x70000001
#: Two racks of two.
RACKS = "0-1,2-3"
LEAF = Worker(0, SERVICE_MAC, SERVICE_IP, PORT, 0)
OTHER_LEAF = Worker(1, "02:00:00:01:fe:02", "10.1.254.2", PORT, 0)

#: A datagram that left the switch, and to whom.
Sent = tuple[Endpoint, bytes]


@dataclass(frozen=True)
class RootJob(Job):
    """The job at the root, whose workers are racks."""

    @property
    def table(self) -> LookupTable:
        assert self.upstream is not None
        return self.upstream.table(self.resolved.table.granularity)


class RackLab:
    """Workers 0 and 1 of four behind the switch; `root` has the sums of workers 2 and 3 from elsewhere."""

    def __init__(self, target: SwitchTarget) -> None:
        self.target = target
        self.root_port = target.front_ports[-1]
        upstream = UpstreamDescription(ip=ROOT_IP, mac=ROOT_MAC, port=self.root_port, racks=RACKS, rack=0)
        self.job = dataclasses.replace(Job.make(1, 4, target.front_ports), upstream=upstream)
        self.root_job = RootJob(1, (LEAF, OTHER_LEAF), 2, self.job.slots, self.job.thc, ROOT_EPOCH, upstream)
        self.root = Reference([self.root_job], Limits(tells_last=True))
        target.install([self.job])

    @property
    def workers(self) -> tuple[Worker, ...]:
        return self.job.workers[:2]

    def join(self) -> "RackLab":
        """Both workers join, and the leaf joins the root."""
        welcomes = self.from_root(self.welcome(self.hello(self.workers[0])[0]))
        welcomes += self.hello(self.workers[1])
        assert [to for to, _ in welcomes] == [worker.endpoint for worker in self.workers]
        (epoch,) = {Thc(datagram).epoch for _, datagram in welcomes}
        self.job = self.job.with_epoch(epoch)
        return self

    def hello(self, worker: Worker, nonce: int = 1, run: int = 0) -> list[Sent]:
        return self.send(worker.switch_port, self.job.hello(worker, nonce, run=run))

    def welcome(self, asked: Sent, **fields: int) -> Packet:
        to, datagram = asked
        hello = Thc(datagram)
        assert (to, hello.message_type) == ((ROOT_IP, PORT), TYPES["hello"])
        answer = self.answer(hello, "welcome", epoch=ROOT_EPOCH)
        slots, norm_slots = self.job.slots, self.job.norm_slots
        shape = {"slots": slots, "norm_slots": norm_slots, "window_bytes": 1 << 16, "shards": 1, "codes_multiple": 1}
        return answer / ThcWelcome(**(shape | fields))

    def answer(self, request: Thc, kind: str, **fields: int) -> Thc:
        """A header that answers another one."""
        answer = request.copy()
        answer.remove_payload()
        answer.message_type = TYPES[kind]
        for name, value in fields.items():
            setattr(answer, name, value)
        return answer

    def push(self, codes: Sequence[Bytes], **fields: int) -> list[Sent]:
        """Let both workers send; return the datagrams that leave because of the last."""
        for worker in self.workers[:-1]:
            assert self.codes(worker, codes[worker.worker_id], **fields) == []
        return self.codes(self.workers[-1], codes[self.workers[-1].worker_id], **fields)

    def codes(self, worker: Worker, codes: Bytes, **fields: int) -> list[Sent]:
        return self.send(worker.switch_port, self.job.codes(worker, codes, **fields))

    def norms(self, worker: Worker, norms: Floats, **fields: int) -> list[Sent]:
        return self.send(worker.switch_port, self.job.norms(worker, norms, **fields))

    def other_rack(self, codes: Sequence[Bytes], **fields: int) -> list[Sent]:
        """The other rack's sum reaches the root; return the root's answers to this leaf."""
        total = np.sum([self.job.table.array[row] for row in codes[2:]], axis=0).astype(np.uint8)
        defaults = {"slot": self.job.first_code_slot, "round": 1, "payload_count": CODES_PER_PACKET}
        header = self.root_job.header(OTHER_LEAF, "codes", code_bits=CODE_BITS, **(defaults | fields))
        return self._to_leaf(self.root.handle(bytes(header / Raw(total.tobytes())), OTHER_LEAF.endpoint).replies)

    def other_racks_norms(self, norms: Floats) -> list[Sent]:
        fields = {"code_bits": CODE_BITS, "round": 1, "payload_count": len(norms)}
        message = bytes(self.root_job.header(OTHER_LEAF, "norm", **fields) / Raw(norms.astype(">f4").tobytes()))
        return self._to_leaf(self.root.handle(message, OTHER_LEAF.endpoint).replies)

    def at_root(self, sent: list[Sent]) -> list[Sent]:
        """Pass datagrams of the switch to the root; return its answers to this leaf."""
        answers: list[Sent] = []
        for to, datagram in sent:
            assert to == (ROOT_IP, PORT)
            answers += self._to_leaf(self.root.handle(datagram, LEAF.endpoint).replies)
        return answers

    def down(self, answers: list[Sent]) -> list[Sent]:
        return [sent for _, datagram in answers for sent in self.from_root(Thc(datagram))]

    def from_root(self, message: Packet, **outside: object) -> list[Sent]:
        """A message from the root; `outside` changes its addresses."""
        addresses = {"src_ip": ROOT_IP, "src_port": PORT, "port": self.root_port} | outside
        frame = (
            Ether(src=ROOT_MAC, dst=SERVICE_MAC)
            / IP(src=addresses["src_ip"], dst=SERVICE_IP, flags="DF")
            / UDP(sport=addresses["src_port"], dport=PORT)
            / message
        )
        return self.send(int(str(addresses["port"])), frame)

    def send(self, port: int, frame: Packet) -> list[Sent]:
        """Send a frame; return the datagrams that leave, in the order of their addressees."""
        return sorted(self._decode(sent) for sent in self.target.exchange(port, bytes(frame)))

    def _to_leaf(self, replies: Sequence[Sent]) -> list[Sent]:
        return [reply for reply in replies if reply[0] == LEAF.endpoint]

    def _decode(self, sent: PortFrame) -> Sent:
        """Check the outside, and return addressee and datagram."""
        port, raw = sent
        packet = Ether(raw)
        to = (packet[IP].dst, packet[UDP].dport)
        places = {worker.endpoint: (worker.mac, worker.switch_port) for worker in self.workers}
        places[ROOT_IP, PORT] = (ROOT_MAC, self.root_port)
        assert (packet.src, packet.dst, port) == (SERVICE_MAC, *places[to])
        assert (packet[IP].src, packet[UDP].sport, packet[UDP].chksum) == (SERVICE_IP, PORT, 0)
        assert packet[IP].len == packet[UDP].len + 20 <= len(raw) - 14
        header = IP(bytes(packet[IP])[:20])
        del header.chksum
        assert IP(bytes(header)).chksum == packet[IP].chksum, "wrong IPv4 header checksum"
        return to, datagram_of(raw)


def hello_of(sent: Sent) -> ThcHello:
    return Thc(sent[1])[ThcHello]

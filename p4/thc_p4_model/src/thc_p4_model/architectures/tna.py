"""Tofino: pipes with their own state, a traffic manager between ingress and egress, loopback ports.

A port is `pipe << 7 | local port`. Every pass parses the packet anew behind its intrinsic metadata; nothing else goes
from ingress to egress or around a loopback.
"""

import random
from typing import Any

from thc_p4_model.architectures.tna_pipe import NO_PORT, EgressCopy, IngressResult, Pipe
from thc_p4_model.blocks import controls_use
from thc_p4_model.errors import ControlError, PacketError
from thc_p4_model.externs.runtime import ExternRuntime
from thc_p4_model.externs.tna import CLASSES, FUNCTIONS
from thc_p4_model.externs.tna_state import MirrorRequest, TnaState
from thc_p4_model.interfaces import P4Error, Package, Program
from thc_p4_model.rules_tna import check_tree, phv_bits
from thc_p4_model.switch import Arrival, Output, Switch

DEFAULT_TABLE_SIZE = 512
RECIRCULATION_PORT = {"tna": 68, "t2na": 6}
"""Local port of every pipe that is always in loopback mode."""
PORT_METADATA_BYTES = {"tna": 8, "t2na": 24}


class TnaSwitch(Switch):
    """A Tofino 1 or 2, as the program's architecture says, with 1, 2 or 4 pipes."""

    def __init__(self, program: Program, *, pipes: int = 1, seed: int = 0, **limits: Any) -> None:
        """seed: of Random. limits: see Switch."""
        if pipes not in (1, 2, 4):
            raise ControlError(f"a Tofino has 1, 2 or 4 pipes, not {pipes}")
        target = "t2na" if "ghost_intrinsic_metadata_t" in program.types else "tna"
        numbers = random.Random(seed)
        states = [TnaState(numbers, port_metadata_bytes=PORT_METADATA_BYTES[target]) for _ in range(pipes)]
        instances = [
            program.instantiate(ExternRuntime(state, CLASSES, FUNCTIONS, DEFAULT_TABLE_SIZE)) for state in states
        ]
        super().__init__(instances, **limits)
        check_tree(program.tree)
        for number in range(pipes):
            phv_bits(self.pipeline(number))
        drops_parser_errors = not controls_use(program.tree, "ingress_intrinsic_metadata_from_parser_t", "parser_err")
        self._pipes = [
            Pipe(self.pipeline(number), state, program.types, target, drops_parser_errors)
            for number, state in enumerate(states)
        ]
        self._loopback = {pipe << 7 | RECIRCULATION_PORT[target] for pipe in range(pipes)}

    def pipeline(self, pipe: int) -> Package:
        """The program of a pipe: pipe0's in all pipes if it is the only one given."""
        main = self._instances[pipe].main
        name = f"pipe{pipe}" if "pipe1" in main.args else "pipe0"
        package = main.args.get(name)
        if not isinstance(package, Package):
            raise P4Error(main.location, f"package {main.type_name} has no {name}")
        return package

    def set_loopback(self, port: int, loopback: bool = True) -> None:
        """Make it a recirculation port: packets that leave a port in loopback mode return to its ingress."""
        with self.lock:
            self._check_port(port)
            if loopback:
                self._loopback.add(port)
            else:
                self._loopback.discard(port)

    def loopback_ports(self) -> list[int]:
        """Ports in loopback mode; every pipe's own recirculation port is, from the start."""
        with self.lock:
            return sorted(self._loopback)

    def take_digests(self) -> list[tuple[str, Any]]:
        """(name of the Digest, data) of the digests since the last call."""
        with self.lock:
            digests = [digest for pipe in self._pipes for digest in pipe.state.digests]
            for pipe in self._pipes:
                pipe.state.digests.clear()
            return digests

    def _check_port(self, port: int) -> None:
        if not 0 <= port < len(self._pipes) << 7 or port == NO_PORT:
            raise ControlError(f"no port {port}: the switch has {len(self._pipes)} pipes of 128 numbers each")

    def _run(self, arrival: Arrival) -> list[Output]:
        pipe = self._pipes[arrival.port >> 7]
        result = pipe.ingress(arrival.port, arrival.data, arrival.carried, self._now_ns())
        if result is None:
            self.statistics.parser_errors += 1
            self.statistics.dropped += 1
            return []
        passes = arrival.passes + 1
        outputs: list[Output] = []
        if result.mirror is not None:
            for copy in self._mirrored(result.mirror, arrival.data, passes):
                outputs += self._run_egress(copy)
        if result.dropped:
            self.statistics.dropped += 1
        elif result.resubmit is not None:
            self._return_to_ingress(arrival.port, arrival.data, "resubmitted", passes, result.resubmit)
        else:
            outputs += self._forward(result, passes)
        return outputs

    # Traffic manager.

    def _forward(self, result: IngressResult, passes: int) -> list[Output]:
        copies = self._copies(result, passes)
        if not copies:
            self.statistics.dropped += 1
        outputs: list[Output] = []
        for copy in copies:
            outputs += self._send(copy.port, copy.data, passes) if result.tm.bypass_egress else self._run_egress(copy)
        return outputs

    def _copies(self, result: IngressResult, passes: int) -> list[EgressCopy]:
        tm, data = result.tm, result.data
        if tm.copy_to_cpu:
            raise PacketError("copy_to_cpu is not supported by the model: send to the CPU port by a multicast group")
        copies = []
        if tm.ucast_egress_port != NO_PORT:
            copies.append(EgressCopy(tm.ucast_egress_port, data, passes, queue=tm.qid))
        for group in (tm.mcast_grp_a, tm.mcast_grp_b):
            nodes = self.replication.copies(group, tm.rid, tm.level1_exclusion_id, tm.level2_exclusion_id)
            last_rid = None
            for node in nodes:
                copies.append(EgressCopy(node.port, data, passes, node.rid, node.rid != last_rid, tm.qid))
                last_rid = node.rid
        return copies

    def _mirrored(self, request: MirrorRequest, data: bytes, passes: int) -> list[EgressCopy]:
        session = self.replication.mirror(request.session)
        if session is None:
            return []
        self.statistics.cloned += 1
        copy = (request.header + data)[: session.max_bytes]
        copies = [] if session.port is None else [EgressCopy(session.port, copy, passes)]
        if session.group is not None:
            copies += [EgressCopy(node.port, copy, passes, node.rid) for node in self.replication.copies(session.group)]
        return copies

    def _run_egress(self, copy: EgressCopy) -> list[Output]:
        self._check_destination(copy.port)
        if copy.passes > self._max_passes:
            raise PacketError(f"a packet was mirrored more than {self._max_passes} times")
        sent, frame, mirror = self._pipes[copy.port >> 7].egress(copy, self._now_ns())
        outputs: list[Output] = []
        if sent is None:
            self.statistics.dropped += 1
        else:
            outputs += self._send(copy.port, sent, copy.passes)
        if mirror is not None:
            for mirrored in self._mirrored(mirror, frame, copy.passes + 1):
                outputs += self._run_egress(mirrored)
        return outputs

    def _send(self, port: int, data: bytes, passes: int) -> list[Output]:
        self._check_destination(port)
        if port in self._loopback:
            self._return_to_ingress(port, data, "recirculated", passes)
            return []
        return [(port, data)]

    def _check_destination(self, port: int) -> None:
        if port >> 7 >= len(self._pipes):
            raise PacketError(f"a packet went to port {port}, in pipe {port >> 7} of {len(self._pipes)}")

"""The controls of ingress except JobCheck."""

from collections.abc import Iterator

from byteps_thc._base.wire.layout import UDP_PORT
from thc_switch import limits
from thc_switch.allocation import JobAllocation
from thc_switch.controls.base import Contents, Control, mac_number
from thc_switch.description import Deployment
from thc_switch.plan import ClearRegister, Lpm, MulticastGroup


class PortRole(Control):
    """Selects the treatment of a packet by its ingress port.

    Ports of the home pipe need no entry: `front` is the default. All ports of other pipes have one, because `front`
    would use their own pipe's slots, which nothing maintains.
    """

    INSTANCE = "ThcIngress.port_role"
    TABLES = ("port_role",)

    @classmethod
    def contents(cls, deployment: Deployment) -> Iterator[Contents]:
        """Yield the CPU's port, recirculation ports, and all other ports outside the home pipe."""
        switch = deployment.switch
        yield cls.entry("port_role", {"ingress_port": switch.cpu_port}, "cpu")
        for recirculation in switch.recirculation:
            yield cls.entry("port_role", {"ingress_port": recirculation.port}, "recirculation")
        home_pipe = switch.pipe_of(switch.home_port)
        for port in range(limits.MAX_PORT + 1):
            if switch.pipe_of(port) != home_pipe and port not in switch.internal_ports:
                yield cls.entry("port_role", {"ingress_port": port}, "front_of_other_pipe", port=switch.home_port)


class Service(Control):
    """Packets for the aggregator's own address: ARP answers, and the way to the agent for HELLO and GOODBYE."""

    INSTANCE = "ThcIngress.service"
    TABLES = ("service", "arp_responder")

    @classmethod
    def contents(cls, deployment: Deployment) -> Iterator[Contents]:
        """One service address."""
        ip, mac = int(deployment.switch.ip), mac_number(deployment.switch.mac)
        yield cls.entry("service", {"dst_ip": ip, "dst_port": UDP_PORT}, "accept", mac=mac)
        yield cls.entry("arp_responder", {"target_ip": ip}, "reply", mac=mac)
        yield cls.default("message", "to_cpu", port=deployment.switch.cpu_port)


class SlotCheck(Control):
    """The state of every slot's two versions, in registers; its tables have constant entries.

    Only `highest_round` and `slot_use` must start at zero; other state is overwritten if they call a slot fresh.
    """

    INSTANCE = "ThcIngress.slot_check"

    @classmethod
    def contents(cls, deployment: Deployment) -> Iterator[Contents]:  # noqa: ARG003
        """All slots of the switch."""
        yield ClearRegister(cls.full_name("highest_round"))
        yield ClearRegister(cls.full_name("slot_use"))

    @classmethod
    def clear_job(cls, allocation: JobAllocation) -> tuple[ClearRegister, ...]:
        """Return the operations that forget all rounds of one job."""
        first, slots, versions = allocation.first_slot, allocation.slots, limits.VERSIONS_PER_SLOT
        return (
            ClearRegister(cls.full_name("highest_round"), first, slots),
            ClearRegister(cls.full_name("slot_use"), versions * first, versions * slots),
        )


class PassRow(Control):
    """Selects the register row of a pass: each pipe has 8 / pipes rows, one after the other."""

    INSTANCE = "ThcIngress.pass_row"
    TABLES = ("row",)

    @classmethod
    def contents(cls, deployment: Deployment) -> Iterator[Contents]:
        """One row for each pass; the same in all pipes, because a pass is always done by the same one."""
        pipes = deployment.switch.pipes
        row_words = limits.REGISTER_WORDS // (limits.PASSES // pipes)
        for number in range(1, limits.PASSES + 1):
            yield cls.entry("row", {"pass_number": number}, "set_row", row_base=(number - 1) // pipes * row_words)


class AggregationBlocks(Control):
    """Codes to table values, two codes at a time, in every block's own copies of the lookup table.

    A block adds four codes: `high` looks up its first byte, `low` its second.
    """

    INSTANCE = "ThcIngress.blocks"
    TABLES = tuple(f"lookup_{block}_{half}" for block in range(limits.BLOCKS) for half in ("high", "low"))

    @classmethod
    def contents(cls, deployment: Deployment) -> Iterator[Contents]:
        """256 pairs of codes in each table; none without a job."""
        if not deployment.jobs:
            return
        values = deployment.jobs[0].table.values  # the same for all jobs: Deployment checks it
        for table in cls.TABLES:
            action = table.replace("lookup", "set_values")
            for codes in range(1 << 2 * limits.CODE_BITS):
                first, second = divmod(codes, 1 << limits.CODE_BITS)
                pair = values[first] << limits.VALUE_BITS | values[second]
                yield cls.entry(table, {"codes": codes}, action, values=pair)


class PassControl(Control):
    """Passes 1 .. 8 go round the pipes in a ring so that the last one is in the home pipe, which counts and answers."""

    INSTANCE = "ThcIngress.pass_control"
    TABLES = ("recirculation",)

    @classmethod
    def contents(cls, deployment: Deployment) -> Iterator[Contents]:
        """The recirculation port of each pass's pipe; pass 0 is in the home pipe: a check, or a result."""
        switch = deployment.switch
        ring = [switch.recirculation[-number % switch.pipes].port for number in range(1, limits.PASSES + 1)]
        for number, port in enumerate([switch.home_port, *ring]):
            yield cls.entry("recirculation", {"pass_number": number}, "recirculate_to", port=port)


class Forwarding(Control):
    """Everything that is not for the aggregator is bridged or routed, by static stations and routes.

    Frames to unknown stations are flooded to all ports that are known, once each; egress drops the copy to where the
    frame came from.
    """

    INSTANCE = "ThcIngress.forwarding"
    TABLES = ("ipv4_route", "mac_forward")

    @classmethod
    def contents(cls, deployment: Deployment) -> Iterator[Contents]:
        """Routes, the router itself, stations (workers, roots and other hosts), and the group for floods."""
        switch = deployment.switch
        router = mac_number(switch.mac)
        for route in switch.routes:
            prefix = Lpm(int(route.prefix.network_address), route.prefix.prefixlen)
            next_hop = mac_number(route.next_hop_mac)
            yield cls.entry(
                "ipv4_route", {"dst_ip": prefix}, "route", dst_mac=next_hop, src_mac=router, port=route.port
            )
        yield cls.entry("mac_forward", {"dst_mac": router}, "to_router")
        peers = (peer for job in deployment.jobs for peer in job.peers)
        stations = {station.mac: station.port for station in (*switch.stations, *peers)}
        for mac, port in sorted(stations.items()):
            yield cls.entry("mac_forward", {"dst_mac": mac_number(mac)}, "forward", port=port)
        yield cls.default("mac_forward", "flood", multicast_group=limits.FLOOD_GROUP)
        ports = {
            *stations.values(),
            *(route.port for route in switch.routes),
            *(entry.number for entry in switch.ports),
        }
        yield MulticastGroup(limits.FLOOD_GROUP, tuple((port, 0) for port in sorted(ports)))

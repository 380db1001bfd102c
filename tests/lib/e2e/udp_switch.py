"""A P4 program in this process on a UDP socket of loopback, for workers without network interfaces of their own."""

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from typing import Any

from byteps_thc._base.wire.layout import UDP_PORT
from byteps_thc._net.session import Session, Timeouts, UdpConfig
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_p4_model.ports import UdpPort
from thc_switch.description import Deployment, JobDescription, RecirculationPort, SwitchDescription, WorkerDescription
from thc_switch.software import model_loop

HOST = "127.0.0.1"
#: The programs know the aggregator's packets by their UDP port, so the address must be this test's own.
SWITCH_IP = ".".join(map(str, [127, 64 + (os.getpid() >> 16 & 63), os.getpid() >> 8 & 255, os.getpid() & 255]))
SERVER = f"{SWITCH_IP}:{UDP_PORT}"
SWITCH_MAC = "02:00:00:00:00:01"
FRONT_PORT, CPU_PORT, RECIRCULATION_PORT = 1, 64, 68


def free_udp_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for each in sockets:
        each.bind((HOST, 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def job_of(job_id: int, udp_ports: Sequence[int], config: ServerCodes) -> JobDescription:
    workers = tuple(
        WorkerDescription(ip=IPv4Address(HOST), mac="02:00:7f:00:00:01", udp_port=port, port=FRONT_PORT)
        for port in udp_ports
    )
    return JobDescription(job_id=job_id, workers=workers, slots=64, thc=config)


def sessions_at(udp_ports: Sequence[int], job_id: int, config: ServerCodes, stack: ExitStack) -> list[Session]:
    timeouts = Timeouts(connect_s=30.0, operation_s=60.0)
    common: dict[str, Any] = {"job": job_id, "workers": len(udp_ports), "codes": config, "timeouts": timeouts}
    return [
        stack.enter_context(Session([SERVER], worker=worker, backend=UdpConfig(local=f"{HOST}:{port}"), **common))
        for worker, port in enumerate(udp_ports)
    ]


@contextmanager
def udp_switch(program: str, *jobs: JobDescription) -> Iterator[UdpPort]:
    description = SwitchDescription(
        architecture="v1model" if program == "v1model" else "tofino1",
        ip=IPv4Address(SWITCH_IP),
        mac=SWITCH_MAC,
        cpu_port=CPU_PORT,
        recirculation=(RecirculationPort(port=RECIRCULATION_PORT),),
    )
    deployment = Deployment(switch=description, jobs=jobs)
    front = UdpPort(SWITCH_IP, UDP_PORT, bytes.fromhex(SWITCH_MAC.replace(":", "")))
    stop = threading.Event()
    thread = threading.Thread(target=model_loop(deployment, {FRONT_PORT: front}).run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield front
    finally:
        stop.set()
        thread.join(timeout=10)
        front.close()

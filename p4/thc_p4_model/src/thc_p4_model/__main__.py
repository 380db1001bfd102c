"""Command line of the P4 model: `python -m thc_p4_model --help`."""

import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thc_p4_model import P4Error, compile_program
from thc_p4_model.architectures import TnaSwitch, V1ModelSwitch, architecture_of, new_switch
from thc_p4_model.errors import ControlError, PacketError
from thc_p4_model.interfaces import Program
from thc_p4_model.port_loop import PortLoop
from thc_p4_model.ports import InterfacePort, Port, UdpPort, disable_receive_merging
from thc_p4_model.rules_tna import phv_bits
from thc_p4_model.stf import StfError, run_stf

MAX_UDP_PORT = 65535
SERVICE_MAC = bytes.fromhex("020000000001")

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Run P4_16 programs for v1model, TNA and T2NA.")
console = Console()

ProgramPath = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="P4_16 source.")]
IncludeDirs = Annotated[list[Path] | None, typer.Option("-I", "--include", help="Where to look for #include files.")]
Defines = Annotated[list[str] | None, typer.Option("-D", "--define", help="NAME or NAME=VALUE for the preprocessor.")]
Pipes = Annotated[int, typer.Option(help="Pipes of a Tofino: 1, 2 or 4.")]


@app.command()
def check(program: ProgramPath, include: IncludeDirs = None, define: Defines = None, pipes: Pipes = 1) -> None:
    """Compile a program and check it against the rules of its architecture."""
    compiled = _compile(program, include, define)
    switch = _switch(compiled, pipes)
    console.print(
        f"{program}: {architecture_of(compiled)}, {len(switch.table_names())} tables,"
        f" {len(switch.register_names())} registers, {len(switch.counter_names())} counters",
        markup=False,
        soft_wrap=True,
    )
    if isinstance(switch, TnaSwitch):
        for gress, bits in phv_bits(switch.pipeline(0)).items():
            console.print(f"{gress}: {bits} PHV bits of headers and metadata")


@app.command()
def dump(program: ProgramPath, include: IncludeDirs = None, define: Defines = None) -> None:
    """Print the Python that a program becomes."""
    typer.echo(_compile(program, include, define).source)


@app.command()
def stf(
    program: ProgramPath,
    tests: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="STF files.")],
    include: IncludeDirs = None,
    define: Defines = None,
    pipes: Pipes = 1,
) -> None:
    """Run packet tests, each on a fresh switch."""
    compiled = _compile(program, include, define)
    failed = 0
    for test in tests:
        try:
            packets = run_stf(_switch(compiled, pipes), test)
            _say("green", "passed", f"{test} ({packets} packets)")
        except (StfError, P4Error, PacketError) as error:
            failed += 1
            _say("red", "failed", str(error))
    if failed:
        raise typer.Exit(1)


@app.command()
def run(
    program: ProgramPath,
    port: Annotated[list[str], typer.Option(help="NUMBER=INTERFACE or NUMBER=udp:ADDRESS:PORT; repeat it.")],
    setup: Annotated[Path | None, typer.Option(exists=True, help="STF file with table entries.")] = None,
    duration_s: Annotated[float | None, typer.Option(help="Stop after so many seconds.")] = None,
    include: IncludeDirs = None,
    define: Defines = None,
    pipes: Pipes = 1,
) -> None:
    """Run a program between interfaces or UDP sockets until interrupted."""
    switch = _switch(_compile(program, include, define), pipes)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        if setup is not None:
            run_stf(switch, setup)
        with ExitStack() as stack:
            ports = _open_ports(port, stack)
            PortLoop(switch, ports).run(stop, duration_s)
    except (StfError, P4Error, PacketError, ControlError, OSError) as error:
        _fail(error)
    _report(switch, ports)


def _compile(path: Path, include: list[Path] | None, define: list[str] | None) -> Program:
    defines = dict(item.partition("=")[::2] for item in define or [])
    try:
        return compile_program(path, include or [], {name: value or "1" for name, value in defines.items()})
    except P4Error as error:
        _fail(error)


def _switch(program: Program, pipes: int) -> V1ModelSwitch | TnaSwitch:
    try:
        return new_switch(program) if architecture_of(program) == "v1model" else new_switch(program, pipes=pipes)
    except (P4Error, ControlError) as error:
        _fail(error)


def _open_ports(texts: list[str], stack: ExitStack) -> dict[int, Port]:
    """The ports by number; the stack closes all, also after a later one failed to open."""
    ports: dict[int, Port] = {}
    for text in texts:
        number, _, target = text.partition("=")
        if not number.isdecimal() or not target:
            raise ControlError(f"--port {text}: write NUMBER=INTERFACE or NUMBER=udp:ADDRESS:PORT")
        if int(number) in ports:
            raise ControlError(f"--port {text}: port {number} is given twice")
        port = ports[int(number)] = _open_port(text, target)
        stack.callback(port.close)
    return ports


def _open_port(text: str, target: str) -> Port:
    if not target.startswith("udp:"):
        disable_receive_merging(target)
        return InterfacePort(target)
    address, _, udp_port = target.removeprefix("udp:").rpartition(":")
    if not udp_port.isdecimal() or int(udp_port) > MAX_UDP_PORT:
        raise ControlError(f"--port {text}: the UDP port is a number from 0 to {MAX_UDP_PORT}")
    return UdpPort(address, int(udp_port), SERVICE_MAC)


def _report(switch: V1ModelSwitch | TnaSwitch, ports: dict[int, Port]) -> None:
    table = Table("port", "received", "sent", "send errors")
    for number, port in ports.items():
        statistics = port.statistics
        table.add_row(str(number), str(statistics.received), str(statistics.sent), str(statistics.send_errors))
    console.print(table)
    console.print(switch.statistics)


def _say(style: str, word: str, rest: str) -> None:
    """Print a line, which is not wrapped and no markup: paths may be long, and have brackets."""
    console.print(Text.assemble((word, style), " ", rest), soft_wrap=True)


def _fail(error: Exception) -> NoReturn:
    _say("red", "error", str(error))
    raise typer.Exit(1)


if __name__ == "__main__":
    app()

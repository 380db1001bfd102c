"""`thc switch`: plan, install, watch and serve the jobs of a switch."""

import json as json_format
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from byteps_thc._base.errors import ConfigurationError
from thc_switch.agent import SwitchAgent
from thc_switch.allocation import JobAllocation, allocate
from thc_switch.controls import JobCheck, SlotCheck
from thc_switch.controls import plan as make_plan
from thc_switch.description import Deployment
from thc_switch.plan import ALL_SECTIONS, Operation, RemoveEntries, Section
from thc_switch.serve import serve as serve_interface
from thc_switch.serve import stopped_by_signals
from thc_switch.software import run_bmv2, run_model
from thc_switch.status import SwitchStatus, read_status
from thc_switch.targets import Target, connect, new_model, render

app = typer.Typer(
    help="The switch as aggregator: what its tables hold for a job description, and the agent behind its CPU port.",
    no_args_is_help=True,
)

DescriptionFile = Annotated[Path, typer.Argument(metavar="JOBS.toml", help="Job description (p4/README.md).")]
TargetOption = Annotated[Target, typer.Option("--target", help="How to reach the switch.")]
Only = Annotated[list[Section] | None, typer.Option("--only", help="Only this part of the plan; may be repeated.")]


@app.command()
def plan(
    file: DescriptionFile,
    target: Annotated[Target | None, typer.Option(help="Print what this target would be told.")] = None,
    only: Only = None,
) -> None:
    """Check a job description and print the switch's configuration."""
    deployment = Deployment.load(file)
    wanted = make_plan(deployment)
    if target is None:
        typer.echo("\n".join(wanted.lines(only or ALL_SECTIONS)))
    else:
        typer.echo(render(wanted.operations(only or ALL_SECTIONS), target, deployment.switch), nl=False)


@app.command()
def install(file: DescriptionFile, target: TargetOption, only: Only = None) -> None:
    """Install a job description on a running switch. Its running jobs are closed: their workers say HELLO again."""
    deployment = Deployment.load(file)
    sections = only or ALL_SECTIONS
    operations = list(make_plan(deployment).operations(sections))
    control = new_model(deployment.switch) if target is Target.MODEL else connect(target, deployment.switch)
    control.apply(operations)
    done = ", ".join(section.value for section in sections)
    where = " on a new switch of the P4 model" if target is Target.MODEL else ""
    typer.echo(f"installed {done}{where}: {len(operations)} steps, {len(deployment.jobs)} jobs")


@app.command()
def status(
    file: DescriptionFile,
    target: TargetOption,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the jobs of a running switch, and packet counters by reason."""
    deployment = Deployment.load(file)
    current = read_status(connect(target, deployment.switch), allocate(deployment))
    if json:
        typer.echo(json_format.dumps(asdict(current)))
    else:
        _print_status(current)


@app.command()
def reset(
    file: DescriptionFile,
    job: Annotated[int, typer.Argument(help="job_id.")],
    target: TargetOption,
) -> None:
    """Start a job over: its packets are refused, its slots cleared; the next HELLO gets a new epoch from the agent."""
    deployment = Deployment.load(file)
    allocation = _find_job(deployment, job)
    operations: list[Operation] = [
        RemoveEntries(JobCheck.full_name("job"), "job_id", allocation.job_id),
        *SlotCheck.clear_job(allocation),
    ]
    connect(target, deployment.switch).apply(operations)
    typer.echo(f"job {job} was reset; its workers say HELLO again")


@app.command()
def serve(
    file: DescriptionFile,
    target: TargetOption,
    interface: Annotated[str | None, typer.Option(help="Host's end of the CPU port (default: cpu_interface).")] = None,
    install_first: Annotated[
        bool, typer.Option("--install", help="Install the job description first, as `install` does.")
    ] = False,
) -> None:
    """Answer HELLO and GOODBYE from the CPU port until interrupted."""
    deployment = Deployment.load(file)
    interface = interface or deployment.switch.cpu_interface
    if interface is None:
        raise ConfigurationError(
            "the CPU port's interface is not known: pass --interface, or set cpu_interface in [switch]"
        )
    if target is Target.BFSHELL:
        raise ConfigurationError("every bfshell call takes seconds; serve a Tofino with --target grpc")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    control = connect(target, deployment.switch)
    if install_first:
        control.apply(list(make_plan(deployment).operations(ALL_SECTIONS)))
    agent = SwitchAgent(deployment, control)
    with stopped_by_signals() as stop:
        typer.echo(f"agent ready on {interface}: {len(deployment.jobs)} jobs at {deployment.switch.ip}")
        serve_interface(agent, interface, stop)
    typer.echo(", ".join(f"{count} {what}" for what, count in sorted(agent.counters.items())) or "no frames")


@app.command()
def run(
    file: DescriptionFile,
    port: Annotated[list[str], typer.Option(help="NUMBER=INTERFACE, a front-panel port; repeat it.")],
    target: Annotated[Target, typer.Option(help="model or bmv2: what runs the P4 program.")] = Target.MODEL,
    cpu_interface: Annotated[
        str | None, typer.Option(help="bmv2: the switch's end of the CPU port's cable; cpu_interface is the other.")
    ] = None,
) -> None:
    """Run a switch in software between network interfaces, and its agent, until interrupted. Needs root."""
    deployment = Deployment.load(file)
    interfaces = _parse_ports(port)
    if target not in (Target.MODEL, Target.BMV2):
        raise ConfigurationError(f"{target.value} reaches a switch that runs; run one with --target model or bmv2")
    if target is Target.BMV2 and deployment.switch.architecture != "v1model":
        raise ConfigurationError('bmv2 runs [switch] architecture = "v1model"; the P4 model runs all: --target model')
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with stopped_by_signals() as stop:
        if target is Target.MODEL:
            run_model(deployment, interfaces, stop)
        elif cpu_interface is None:
            raise ConfigurationError("bmv2 needs --cpu-interface, the switch's end of the CPU port's cable")
        else:
            run_bmv2(deployment, interfaces, cpu_interface, stop)


@app.command()
def describe(
    file: DescriptionFile,
    keys: Annotated[list[str], typer.Argument(help="Dotted paths, such as switch.architecture or jobs.0.job_id.")],
) -> None:
    """Print values of a job description, one a line, for scripts."""
    fields = Deployment.load(file).model_dump(mode="json")
    for key in keys:
        value: Any = fields
        for part in key.split("."):
            try:
                value = value[int(part)] if isinstance(value, list) else value[part]
            except (KeyError, IndexError, ValueError, TypeError):
                raise ConfigurationError(f"{file} has no {key}: add it, or read another key") from None
        typer.echo(value if isinstance(value, str) else json_format.dumps(value))


def _parse_ports(texts: list[str]) -> dict[int, str]:
    """Return interfaces by their port numbers."""
    interfaces: dict[int, str] = {}
    for text in texts:
        number, _, interface = text.partition("=")
        if not number.isdecimal() or not interface:
            raise ConfigurationError(f"--port {text}: write NUMBER=INTERFACE, such as 1=veth1")
        if int(number) in interfaces:
            raise ConfigurationError(f"--port {text}: port {number} is given twice")
        interfaces[int(number)] = interface
    return interfaces


def _find_job(deployment: Deployment, job_id: int) -> JobAllocation:
    allocations = allocate(deployment)
    for allocation in allocations:
        if allocation.job_id == job_id:
            return allocation
    known = ", ".join(str(allocation.job_id) for allocation in allocations) or "none"
    raise ConfigurationError(f"job {job_id} is not in the job description; its jobs are {known}")


def _print_status(current: SwitchStatus) -> None:
    jobs = Table("job", "epoch", "slots", "in use", "packets")
    for job in current.jobs:
        epoch = "closed" if job.epoch is None else f"{job.epoch:08x}"
        jobs.add_row(str(job.job_id), epoch, str(job.slots), str(job.slots_used), str(job.packets))
    reasons = Table("packets", "what became of them")
    for name, count in current.reasons.items():
        if count:
            reasons.add_row(str(count), name.replace("_", " "))
    console = Console()
    console.print(jobs)
    console.print(reasons)

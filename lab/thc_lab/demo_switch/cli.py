"""The `thc demo-switch` command."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from thc_lab.demo.cli import Show, train_and_report
from thc_lab.demo.report import COSTS
from thc_lab.demo.settings import SWITCH_DEFAULTS as DEFAULTS
from thc_lab.demo.signals import ended_in_order
from thc_lab.demo_switch.software_switch import SwitchChoice, choose_switches
from thc_lab.demo_switch.switch_network import start_switches
from thc_lab.demo_switch.time_limit import train_within

TIME_LIMIT_S = 180.0


def demo_switch(
    program: Annotated[
        Literal["v1model", "tna"], typer.Option(help="P4 program: v1model (bmv2) or tna (Tofino), of p4/programs.")
    ] = "v1model",
    target: Annotated[
        Literal["auto", "bmv2", "model"],
        typer.Option(
            help="What runs it: bmv2's simple_switch, or the P4 model (pip install ./p4/thc_p4_model); auto: bmv2 if "
            "it is on PATH, and fast enough for --time-limit."
        ),
    ] = "auto",
    workers: Annotated[int, typer.Option(help="Worker processes, each in a network namespace.")] = DEFAULTS.workers,
    steps: Annotated[
        int | None,
        typer.Option(
            help=f"Training steps of each of the three runs, however long they take. Default: {DEFAULTS.steps}, or as "
            "many as --time-limit allows."
        ),
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds for all, without --steps.")] = TIME_LIMIT_S,
    seed: Annotated[int, typer.Option(help="Selects initial parameters, batches and rounding.")] = DEFAULTS.seed,
    out: Annotated[Path, typer.Option(help="Folder for plots and raw numbers.")] = Path("demo-switch-out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the raw numbers instead of the table.")] = False,
    check: Annotated[bool, typer.Option(help="Fail when THC misses its loss or traffic targets.")] = True,
) -> None:
    """Train a small GPT through a switch's P4 program, and compare every sum with thc-ps's. Needs root."""
    settings = replace(DEFAULTS, workers=workers, steps=DEFAULTS.steps if steps is None else steps, seed=seed)
    choices = choose_switches(program, target)
    show = Show(out, as_json=as_json, check=check, view=COSTS)
    if steps is not None:
        start = functools.partial(start_switches, choices[0])
        train_and_report(settings, start, aggregators_of(choices[0]), show)
        return
    with ended_in_order():
        train_within(
            time_limit,
            choices,
            settings,
            show.say,
            lambda chosen, choice, train: show.run(chosen, aggregators_of(choice), train),
        )


def aggregators_of(choice: SwitchChoice) -> str:
    """The switch's name in the report."""
    return f"{choice.description} (software: its times say nothing about hardware)"

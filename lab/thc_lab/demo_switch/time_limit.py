"""Keeps the demo with a switch in software to a time: another switch where one is too slow, or fewer steps."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from thc_lab.demo.launcher import started_network, train
from thc_lab.demo.settings import DemoSettings, Progress, RunResult
from thc_lab.demo_switch.pace import Pace, measure
from thc_lab.demo_switch.software_switch import SwitchChoice
from thc_lab.demo_switch.switch_network import start_switches

#: Fewer show nothing: so many are trained however long they take.
FEWEST_STEPS = 10

#: Shows a run: settings, switch, and the training, whose argument is called after every step.
ShowRun = Callable[[DemoSettings, SwitchChoice, Callable[[Callable[[Progress], None]], list[RunResult]]], None]


def train_within(
    time_limit_s: float,
    choices: Sequence[SwitchChoice],
    settings: DemoSettings,
    say: Callable[[str], None],
    show: ShowRun,
) -> None:
    """Train with the first of the switches that is fast enough, as many of settings.steps as the time allows.

    The time is that from now to the end. `say` gets a sentence about each decision.
    """
    deadline_s = time.monotonic() + time_limit_s
    for choice in choices:
        say(f"Measuring the first steps of {choice.description}, to end after about {time_limit_s:.0f} s.")
        with started_network(settings, functools.partial(start_switches, choice)) as network:
            pace = measure(settings, network)
            steps = pace.steps_within(deadline_s - time.monotonic())
            if 2 * steps < settings.steps and choice is not choices[-1]:
                say(f"{_found(choice, pace, steps, settings.steps)}: too slow")
                continue
            chosen = settings
            if steps < settings.steps:
                chosen = replace(settings, steps=max(steps, FEWEST_STEPS), judge_loss=False)
            say(f"{_found(choice, pace, steps, settings.steps)}: {_decision(chosen)}.")
            show(chosen, choice, functools.partial(train, chosen, network))
            return


def _found(choice: SwitchChoice, pace: Pace, steps: int, wanted: int) -> str:
    return f"{choice.description} makes {pace.steps_per_s:.2f} steps/s, time for {min(steps, wanted)} of {wanted} steps"


def _decision(chosen: DemoSettings) -> str:
    return f"it is used for {chosen.steps}" + ("" if chosen.judge_loss else ", after which losses are not judged")

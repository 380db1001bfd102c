"""A P4 program as a switch in software: a child process in a network namespace, with its agent."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._cli.launch import ENDS_WITH_PARENT, Child
from thc_lab.namespaces import command_inside, with_its_sysfs
from thc_lab.testbed.description import Testbed, assign_workers
from thc_lab.testbed.sections import SwitchAggregator
from thc_lab.testbed.switch import deployment_of, text_of, words_of_run
from thc_switch.description import Deployment
from thc_switch.software import BMV2_PROGRAMS, READY
from thc_switch.targets import require_model

#: Compiling the P4 program in the model takes seconds.
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0

Program = Literal["v1model", "tna"]
Target = Literal["model", "bmv2"]


@dataclass(frozen=True)
class SwitchChoice:
    """A P4 program, and the target that runs it."""

    program: Program
    target: Target

    @property
    def description(self) -> str:
        """The choice in words."""
        runner = "bmv2's simple_switch" if self.target == "bmv2" else "the P4 model"
        return f"{runner} with p4/programs/{self.program}"


def choose_switches(program: Program, target: Target | Literal["auto"]) -> list[SwitchChoice]:
    """Candidates, best first; "auto": bmv2 if installed, then the P4 model. Raises ConfigurationError if none works."""
    missing = [name for name in BMV2_PROGRAMS if shutil.which(name) is None]
    if target == "bmv2":
        if program != "v1model":
            raise ConfigurationError("bmv2 runs --program v1model; the P4 model runs both")
        if missing:
            raise ConfigurationError(f"{', '.join(missing)} not on PATH: install bmv2 and p4c, or use --target model")
        return [SwitchChoice(program, "bmv2")]
    bmv2 = target == "auto" and program == "v1model" and not missing
    try:
        require_model()
    except ConfigurationError:
        if not bmv2:
            raise
        return [SwitchChoice(program, "bmv2")]
    model = SwitchChoice(program, "model")
    return [SwitchChoice(program, "bmv2"), model] if bmv2 else [model]


class SoftwareSwitch(Child):
    """The switch of a testbed, which runs from the start until stop().

    folder: for its job description; without one it follows from the testbed. uplinks: interfaces by port number,
    besides the workers' ports.
    """

    def __init__(
        self,
        testbed: Testbed,
        folder: Path,
        *,
        deployment: Deployment | None = None,
        uplinks: Mapping[int, str] | None = None,
    ) -> None:
        aggregator = testbed.aggregator
        assert isinstance(aggregator, SwitchAggregator)
        namespace = aggregator.host
        path = folder / f"{namespace}.json"
        path.write_text(
            text_of(deployment or deployment_of(testbed, aggregator, assign_workers(testbed))), encoding="utf-8"
        )
        thc = [sys.executable, "-P", "-m", "byteps_thc"]
        command = [*ENDS_WITH_PARENT, *thc, *words_of_run(testbed, aggregator, str(path), uplinks)]
        super().__init__(
            [*command_inside(namespace), *with_its_sysfs(namespace, command)],
            name="the switch",
            ready=READY,
            start_timeout_s=START_TIMEOUT_S,
            stop_timeout_s=STOP_TIMEOUT_S,
        )

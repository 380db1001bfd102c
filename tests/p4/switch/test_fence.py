"""Labs on switches behind cables, where a fence is one job more: what needs no switch is tested without one."""

from __future__ import annotations

from collections.abc import Sequence

from switch_lab.jobs import Job
from switch_lab.racks import RackLab
from switch_lab.targets.wired import FENCE_JOB, WiredTarget

from thc_switch.description import Deployment
from thc_switch.targets.base import SwitchControl

FRONT_PORTS = (1, 2, 3, 4)


class Unplugged(WiredTarget):
    """Takes job descriptions as simple_switch and tofino-model do, and has no switch to install them on."""

    def __init__(self) -> None:
        super().__init__("unplugged", "v1model", FRONT_PORTS, 64, (68,))
        self.described: list[Deployment] = []

    @property
    def control(self) -> SwitchControl:
        raise NotImplementedError

    def install(self, jobs: Sequence[Job]) -> None:
        self.described.append(self.describe(jobs))


def test_the_fence_shares_no_address_with_racks() -> None:
    target = Unplugged()
    RackLab(target)  # a description in which two hosts have one address is refused
    (deployment,) = target.described
    assert [job.job_id for job in deployment.jobs] == [1, FENCE_JOB]

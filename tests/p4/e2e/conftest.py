"""Fixtures of the end-to-end tests."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from e2e.workers import JOB, Work

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.demo_switch.site import Site
from thc_lab.demo_switch.software_switch import SoftwareSwitch, SwitchChoice
from thc_lab.namespaces import Namespaces
from thc_switch.software import BMV2_PROGRAMS

V1MODEL, TNA = SwitchChoice("v1model", "model"), SwitchChoice("tna", "model")
BMV2 = SwitchChoice("v1model", "bmv2")

MakeSite = Callable[[Work], Site]
StartSwitch = Callable[..., SoftwareSwitch]


@pytest.fixture(params=[V1MODEL, TNA, BMV2], ids=lambda choice: f"{choice.program}-{choice.target}")
def choice(request: pytest.FixtureRequest) -> SwitchChoice:
    """Every program on everything that can run it here."""
    chosen: SwitchChoice = request.param
    missing = [program for program in BMV2_PROGRAMS if shutil.which(program) is None]
    if chosen == BMV2 and missing:
        pytest.skip(f"not on PATH: {', '.join(missing)}")
    return chosen


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    """For hosts; removed in the end."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with ExitStack() as stack:
        try:
            made = stack.enter_context(Namespaces())
            made.add("probe")
        except ConfigurationError as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield made


@pytest.fixture
def make_site(namespaces: Namespaces, choice: SwitchChoice) -> MakeSite:
    """Namespaces and cables for the workers of some work and a switch."""

    def make(work: Work) -> Site:
        workers = tuple(namespaces.add(f"worker{worker}") for worker in range(len(work.backends)))
        site = Site(1, namespaces.add("switch"), workers, choice)
        site.connect({worker for worker, kind in enumerate(work.backends) if kind == "dpdk"})
        return site

    return make


@pytest.fixture
def start_switch(tmp_path: Path) -> Iterator[StartSwitch]:
    """Start a switch with the workers' job; may be called again when it was stopped."""
    with ExitStack() as stack:

        def start(site: Site, config: ServerCodes | None = None, lanes: int = 1) -> SoftwareSwitch:
            switch = stack.enter_context(SoftwareSwitch(site.testbed(JOB, config, lanes), tmp_path))
            switch.wait_until_ready()
            return switch

        yield start

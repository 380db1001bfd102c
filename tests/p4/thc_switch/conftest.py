"""Deployments for the control plane's tests."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from thc_p4_model import compile_program
from thc_p4_model.architectures import new_switch
from thc_p4_model.interfaces import Program
from thc_p4_model.switch import Switch
from thc_switch import Deployment
from thc_switch.programs import INCLUDE_FOLDER, program_path


def worker(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "ip": f"10.0.{number // 250}.{number % 250 + 1}",
        "mac": f"02:00:00:00:{number >> 8:02x}:{number & 0xFF:02x}",
        "udp_port": 50001,
        "port": number % 32,
    } | changes


def job(job_id: int = 1, count: int = 3, first_worker: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "slots": 64,
        "thc": {"granularity": 15, "p": 1 / 32},
        "workers": [worker(first_worker + number) for number in range(count)],
    } | changes


def switch(pipes: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "architecture": "tofino1",
        "ip": "10.0.9.254",
        "mac": "02:00:00:00:ff:fe",
        "cpu_port": 64,
        "recirculation": [{"port": pipe << 7 | 68} for pipe in range(pipes)],
    } | changes


@pytest.fixture(scope="session")
def deployment() -> Deployment:
    """One pipe, one job of three workers."""
    return Deployment(switch=switch(), jobs=[job()])


@pytest.fixture
def describe() -> Callable[..., Deployment]:
    """Make a deployment: describe(jobs, switch changes)."""

    def make(jobs: list[dict[str, Any]], **changes: Any) -> Deployment:
        return Deployment(switch=switch(**changes), jobs=jobs)

    return make


@pytest.fixture
def a_job() -> Callable[..., dict[str, Any]]:
    """Make the fields of a job."""
    return job


@pytest.fixture
def a_worker() -> Callable[..., dict[str, Any]]:
    """Make the fields of a worker."""
    return worker


@pytest.fixture(scope="session")
def compiled() -> Callable[[str], Program]:
    """Compile the program for an architecture, once per session."""

    @cache
    def compile_once(architecture: str) -> Program:
        return compile_program(program_path(architecture), [INCLUDE_FOLDER])

    return compile_once


@pytest.fixture(scope="session")
def tna_switch(compiled: Callable[[str], Program]) -> Callable[..., Switch]:
    """Make a Tofino that runs our program."""
    return lambda **options: new_switch(compiled("tna"), **options)


@pytest.fixture(scope="session")
def v1model_switch(compiled: Callable[[str], Program]) -> Callable[..., Switch]:
    """Make a simple_switch that runs our program."""
    return lambda **options: new_switch(compiled("v1model"), **options)

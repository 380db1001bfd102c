"""A command of `thc testbed` that fails says why, and nothing else; what it did on other hosts has ended by then."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed_chains import own_name, skip_without_namespaces, try_description
from testbed_runs import DEADLINE_S, is_alive

from byteps_thc.errors import TransportError
from thc_lab.testbed.hosts.kept import KeptHost
from thc_lab.testbed.hosts.local import LocalHost
from thc_lab.testbed.hosts.together import together

HOSTS = 4
#: A host's Python: the keeper of the first host puts files, those of the others do not get so far.
PYTHON = """#!/bin/sh
case "$*" in
  *" put") mkdir {folder}/first 2>/dev/null || exec sleep 600 ;;
esac
exec {python} "$@"
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name, as run folders have."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="thc-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def description(folder: Path) -> str:
    lines = [f'name = "{own_name()}"', 'reach = "namespaces"', f'bin = "{folder}"', f'folder = "{folder}"']
    for n in range(1, HOSTS + 1):
        lines += ["[[hosts]]", f'name = "h{n}"', f'management_ip = "10.78.0.{n}"', f"workers = {int(n > 1)}"]
        lines += [f'nics = [{{ ip = "10.77.0.{n}" }}]']
    lines += ["[aggregator]", 'kind = "thc-ps"', 'hosts = ["h1"]', "[transport]", 'kind = "udp"']
    return "\n".join([*lines, "[training]", 'launcher = "torchrun"', 'command = ["train.py"]']) + "\n"


def test_the_error_is_all_that_a_failing_run_prints(short: Path, tmp_path: Path) -> None:
    """Also where keepers of other hosts run at that time: a run folder that others may enter is refused."""
    skip_without_namespaces()
    python = short / "python3"
    python.write_text(PYTHON.format(folder=short, python=shlex.quote(sys.executable)))
    python.chmod(0o755)
    finished = try_description(tmp_path, description(short))
    assert finished.returncode == 1, finished.stdout
    *said, error = finished.stdout.splitlines()
    assert said == [f"testbed {own_name()} is down"], finished.stdout
    assert f"{short} is there already with mode 755" in error


def test_what_other_hosts_do_has_ended_when_an_error_is_raised(tmp_path: Path) -> None:
    """With what it has started."""
    sleeper = tmp_path / "sleeper"
    sleeping = LocalHost("busy", sys.executable)
    script = 'sleep 600 & echo $! >"$1.new"; mv "$1.new" "$1"; wait'

    async def fail_when_it_sleeps() -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not sleeper.exists():
                await asyncio.sleep(0.05)
        await KeptHost(LocalHost("h1", sys.executable), "test/h1").read("nowhere")

    async def fail() -> None:
        with pytest.raises(TransportError, match="h1: 'nowhere' is refused"):
            await together(
                [sleeping.run(["sh", "-c", script, "sh", str(sleeper)], timeout_s=600), fail_when_it_sleeps()]
            )
        deadline = time.monotonic() + DEADLINE_S
        while is_alive(int(sleeper.read_text())):  # it was killed
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(fail())

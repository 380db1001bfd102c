"""`thc testbed run` in network namespaces: failures are named, and nothing is left, whatever ends it."""

import dataclasses
import os
import shutil
import signal
from pathlib import Path

import pytest
from testbed_chains import skip_without_namespaces
from testbed_runs import DEADLINE_S, FIRST, await_line, is_alive, run, start_run, two_hosts, wait_until

from byteps_thc._base.errors import ConfigurationError, TransportError
from thc_lab.testbed.process import PlannedHost

#: Prints its number, and the number of a daemon in a session of its own, and trains.
WITH_DAEMON = "setsid sleep 600 & sleep 0.2; echo pids $$ $!; exec sleep 600"


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    skip_without_namespaces()


def traces(controller: int) -> list[Path]:
    """Namespaces of a controller, and run folders of this test."""
    return list(Path("/run/netns").glob(f"thc{controller}.*"))


def test_workers_run_when_the_server_is_ready() -> None:
    lines = run(two_hosts("echo one; pwd", "sleep 0.5; echo two"))
    assert lines[0] == "[server] listening"
    assert {"[worker0] one", "[worker1] two"} < set(lines)
    [folder] = [line.removeprefix("[worker0] ") for line in lines if line.startswith("[worker0] /var/tmp/thc-")]
    assert not Path(folder).exists()
    assert traces(os.getpid()) == []


def test_hosts_have_their_files_and_cables() -> None:
    plan = two_hosts(
        "ip -br address show dev data0 | grep -o 10.79.0.2",
        server="cat @run@/folder/jobs.txt; echo; echo listening; sleep 600",
    )
    plan = dataclasses.replace(plan, processes=tuple(dataclasses.replace(p, folder=None) for p in plan.processes))
    assert {"[server] jobs", "[worker0] 10.79.0.2"} <= set(run(plan))


@pytest.mark.parametrize(
    ("workers", "server", "message"),
    [
        (
            ["echo well; sleep 600", "echo no memory is left; kill -9 $$"],
            "echo listening; exec sleep 600",
            r"(?s)worker1 on second was ended by signal 9 \(SIGKILL\)\. The last lines.*no memory is left",
        ),
        (["exec no-such-program"], "echo listening; exec sleep 600", r"worker0 on second ended with exit status 127"),
        (
            ["sleep 600"],
            "echo listening; sleep 2; echo no space left; exit 7",
            r"(?s)server on first ended with exit status 7\..*no space left",
        ),
        (["sleep 600"], "echo listening; sleep 2; exit 0", r"server on first ended with exit status 0\."),
        (["true"], "exit 8", r"server on first ended with exit status 8 before it was ready\. It printed nothing"),
    ],
)
def test_the_process_that_failed_is_named(workers: list[str], server: str, message: str) -> None:
    with pytest.raises(TransportError, match=message):
        run(two_hosts(*workers, server=server))
    assert traces(os.getpid()) == []


def test_limits_of_time() -> None:
    with pytest.raises(TransportError, match="--time-limit, 1 s"):
        run(two_hosts("sleep 600"), time_limit_s=1)
    plan = two_hosts("true", server="echo starting; sleep 600")
    slow = dataclasses.replace(plan.processes[0], ready_timeout_s=1.0)
    with pytest.raises(TransportError, match=r"(?s)server on first was not ready after 1 s: .*'\^listening'.*starting"):
        run(dataclasses.replace(plan, processes=(slow, *plan.processes[1:])))


def test_what_is_missing_is_named_before_anything_starts(tmp_path: Path) -> None:
    plan = two_hosts(f"touch {tmp_path}/started")
    server, worker = plan.processes
    processes = (server, dataclasses.replace(worker, argv=("thc-nothing",), listens=("udp:192.0.2.1:7",)))
    with pytest.raises(ConfigurationError) as caught:
        run(dataclasses.replace(plan, processes=processes))
    assert str(caught.value).splitlines() == [
        "this machine: not on PATH: thc-nothing; name their folder with bin",
        "this machine: cannot be bound: udp:192.0.2.1:7: Cannot assign requested address",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_host_without_python_is_named() -> None:
    plan = two_hosts("true")
    hosts = (PlannedHost(FIRST, python="/no/python3"), *plan.hosts[1:])
    with pytest.raises(ConfigurationError, match=r"the session with first ended: .*/no/python3"):
        run(dataclasses.replace(plan, hosts=hosts))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_controller_ends(number: int) -> None:
    with start_run(two_hosts(WITH_DAEMON)) as running:
        pids = list(map(int, await_line(running, "[worker0] pids").split()))
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        assert len(traces(running.pid)) == 2
        running.send_signal(number)
        assert running.wait(DEADLINE_S) == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: not any(map(is_alive, pids)) and traces(running.pid) == [])


def test_a_worker_s_daemon_is_ended_with_the_run() -> None:
    lines = run(two_hosts("setsid sleep 600 & echo pid $!"))
    [pid] = [int(line.rpartition(" ")[2]) for line in lines if line.startswith("[worker0] pid")]
    assert not is_alive(pid)


def test_an_agent_that_is_killed_takes_its_processes_along() -> None:
    with start_run(two_hosts("echo parent $PPID $$; exec sleep 600")) as running:
        agent, worker = map(int, await_line(running, "[worker0] parent").split())
        folder = Path(f"/proc/{worker}/cwd").readlink()
        os.kill(agent, signal.SIGKILL)
        assert running.wait(DEADLINE_S) == 1
    wait_until(lambda: not is_alive(worker))
    shutil.rmtree(folder)  # nobody else removes it


def test_private_values_reach_the_worker_alone() -> None:
    """It shows its files, and the command lines of all processes, its own and its parents'."""
    secret = "hunter2-$(id)"
    script = "echo \"$API_TOKEN\"; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0\\n' '  '; echo"
    plan = two_hosts(script)
    worker = dataclasses.replace(plan.processes[-1], private=("API_TOKEN",))
    plan = dataclasses.replace(plan, processes=(*plan.processes[:-1], worker))
    lines = run(plan, private={"API_TOKEN": secret, "UNUSED": "hunter3"})
    first, *rest = [line.removeprefix("[worker0] ") for line in lines if line.startswith("[worker0] ")]
    assert first == secret
    assert "setpriv" in "".join(rest) or "sleep 600" in "".join(rest)
    assert "hunter" not in "".join(rest)


def test_a_login_s_own_settings_do_not_reach_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THC_SERVERS", "10.0.0.1")
    monkeypatch.setenv("OTHER", "kept")
    assert "[worker0] none kept" in run(two_hosts('echo "${THC_SERVERS:-none} $OTHER"'))

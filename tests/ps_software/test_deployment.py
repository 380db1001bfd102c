"""thc-ps as a service: notices to systemd, its package, rules for Prometheus and a dashboard for Grafana."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from free_ports import free_tcp_port

from byteps_thc._cli.launch import ParameterServer, find_thc_ps

if TYPE_CHECKING:
    from raw_worker import MakeWorker

ROOT = Path(__file__).parents[2]
DEPLOYMENT = ROOT / "ps_software/deployment"
RULES, DASHBOARD = DEPLOYMENT / "prometheus.rules.yml", DEPLOYMENT / "grafana.json"
SOON_S = 30.0
#: Alerts as a worker that is missing, and a network that loses packets, cause them.
ALERTS = """
rule_files: [{rules}]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - series: 'up{{job="thc-ps", instance="a"}}'
        values: '1x20'
      - series: 'thc_ps_slots_in_use{{job="thc-ps", instance="a", exported_job="7"}}'
        values: '0 3x20'
      - series: 'thc_ps_completed_total{{job="thc-ps", instance="a", exported_job="7"}}'
        values: '0 100x20'
      - series: 'thc_ps_packets_total{{job="thc-ps", instance="a", exported_job="7"}}'
        values: '0+3000x20'
      - series: 'thc_ps_duplicates_total{{job="thc-ps", instance="a", exported_job="7"}}'
        values: '0+100x20'
      - series: 'thc_ps_replays_total{{job="thc-ps", instance="a", exported_job="7"}}'
        values: '0+20x20'
    alert_rule_test:
      - eval_time: 9m
        alertname: ThcPsWorkersMissing
        exp_alerts:
          - exp_labels: {{severity: critical, job: thc-ps, instance: a, exported_job: "7"}}
            exp_annotations:
              summary: "job 7 on a waits for a worker"
              description: "Sums have begun and none was completed for two minutes: a worker is missing. Its peers end with a DeadlineError that names it."
      - eval_time: 10m
        alertname: ThcPsRetransmissions
        exp_alerts:
          - exp_labels: {{severity: warning, job: thc-ps, instance: a, exported_job: "7"}}
            exp_annotations:
              summary: "4% of the packets to thc-ps on a are repeated"
              description: "The network loses packets: thc doctor --server measures the way from a worker."
      - eval_time: 10m
        alertname: ThcPsDown
        exp_alerts: []
"""  # noqa: E501 (texts of the rules)


def needs(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


@contextmanager
def running(*command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("hidden", [False, True], ids=["path", "abstract"])
def test_systemd_is_told(hidden: bool, tmp_path: Path) -> None:
    """Ready when it serves, alive each second, stopping when it drains: as sd_notify(3) says."""
    name = f"\0{tmp_path}" if hidden else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name)
        manager.settimeout(SOON_S)
        environment = {"NOTIFY_SOCKET": name.replace("\0", "@")}
        with running(str(find_thc_ps()), "--listen", "127.0.0.1", "--port", "0", **environment) as server:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("thc-ps ready on ")
            assert manager.recv(100) == b"READY=1"
            assert [manager.recv(100), manager.recv(100)] == [b"WATCHDOG=1"] * 2
            server.send_signal(signal.SIGTERM)
            while (said := manager.recv(100)) == b"WATCHDOG=1":
                pass
            assert said == b"STOPPING=1"
            assert server.wait(SOON_S) == 0


@pytest.mark.parametrize("path", ["/no/such/socket", "relative", "/", "@" + "a" * 200])
def test_a_manager_that_is_not_there_is_no_matter(path: str) -> None:
    with running(str(find_thc_ps()), "--listen", "127.0.0.1", "--port", "0", NOTIFY_SOCKET=path) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("thc-ps ready on ")
        server.send_signal(signal.SIGTERM)
        assert server.wait(SOON_S) == 0


def test_settings_of_the_package_are_settings() -> None:
    flags = ["--config", str(DEPLOYMENT / "thc-ps.toml"), "--metrics-port", str(free_tcp_port())]
    with ParameterServer(flags) as server:
        assert server.address.startswith("127.0.0.1:")  # arguments of ParameterServer override the file


def test_alerts_are_raised(tmp_path: Path) -> None:
    test = tmp_path / "alerts.yml"
    test.write_text(ALERTS.format(rules=RULES))
    command = [needs("promtool"), "test", "rules", str(test)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SOON_S, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_prometheus_scrapes(tmp_path: Path, make_worker: "MakeWorker") -> None:
    """A real one: it takes the rules, and knows a job under the labels that rules and dashboard name."""
    program, port, own = needs("prometheus"), free_tcp_port(), free_tcp_port()
    settings = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "thc-ps", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML

    def ask(path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{own}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=SOON_S) as answer:
            return json.load(answer)["data"]

    flags = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with ParameterServer(["--metrics-port", str(port)]) as server:
        make_worker(server.address, 0, job=7).join()
        with running(program, *flags, f"--web.listen-address=127.0.0.1:{own}"):
            deadline, found = time.monotonic() + SOON_S, []
            while not found:
                assert time.monotonic() < deadline
                time.sleep(0.2)
                try:
                    found = ask("query", query='thc_ps_workers{job="thc-ps", exported_job="7"}')["result"]
                except OSError:
                    continue  # it is not up yet
            assert found[0]["value"][1] == "1"
            rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
            for panel in json.loads(DASHBOARD.read_text())["panels"]:
                for target in panel["targets"]:
                    ask(
                        "query", query=target["expr"].replace("$instance", ".*")
                    )  # an HTTP error for an expression that it cannot read
    assert len(rules) == RULES.read_text().count("- alert:")
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}


def test_unit_is_sound(tmp_path: Path) -> None:
    """systemd verifies the unit, with the program of this build in place of the package's."""
    unit = (DEPLOYMENT / "thc-ps.service").read_text()
    (tmp_path / "thc-ps.service").write_text(unit.replace("/usr/bin/thc-ps", str(find_thc_ps())))
    command = [needs("systemd-analyze"), "verify", "--man=no", str(tmp_path / "thc-ps.service")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SOON_S, check=False)
    assert result.returncode == 0, result.stderr
    assert "thc-ps.service" not in result.stderr, result.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_package(tmp_path: Path) -> None:
    """The package is built and unpacked, and its program runs with its settings."""
    needs("dpkg-deb")
    needs("dpkg-shlibdeps")
    built = subprocess.run([str(ROOT / "scripts/deb.sh")], capture_output=True, text=True, timeout=800, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    package = built.stdout.splitlines()[-1]
    fields = subprocess.run(["dpkg-deb", "--info", package], capture_output=True, text=True, check=True).stdout
    assert "libsodium23" in fields
    subprocess.run(["dpkg-deb", "--extract", package, str(tmp_path)], check=True)
    notices = (tmp_path / "usr/share/doc/thc-ps/NOTICE").read_text()
    assert all(library in notices for library in ("fmt", "spdlog", "toml++", "CLI11"))
    subprocess.run(["dpkg-deb", "--control", package, str(tmp_path / "control")], check=True)
    for script in ("postinst", "prerm", "postrm"):
        command = [str(tmp_path / "control" / script), "configure", "0.0.1"]
        done = subprocess.run(command, capture_output=True, check=True)
        # Without systemd they do nothing, and say nothing.
        assert (done.stdout, done.stderr) == (b"", b"") or Path("/run/systemd/system").exists()
    program = tmp_path / "usr/bin/thc-ps"
    hardened = subprocess.run(["readelf", "--wide", "-ld", str(program)], capture_output=True, text=True, check=True)
    assert "GNU_RELRO" in hardened.stdout
    assert "NOW" in hardened.stdout
    version = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True).stdout
    assert f"_{version.split()[1]}_" in package
    manual = (tmp_path / "usr/share/man/man1/thc-ps.1").read_text()
    assert "\\-\\-metrics\\-port" in manual
    flags = ["--config", str(tmp_path / "etc/thc-ps.toml"), "--port", "0", "--metrics-port", str(free_tcp_port())]
    with running(str(program), *flags) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("thc-ps ready on [::]:")

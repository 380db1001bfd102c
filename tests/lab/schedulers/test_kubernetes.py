"""docs/examples/kubernetes.yaml: its objects fit together, and name variables, ports and commands of byteps_thc."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from byteps_thc import NetworkConfig
from byteps_thc._base.wire.layout import UDP_PORT
from byteps_thc._cli.launch import find_thc_ps

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install '.[docs]'")
ROOT = Path(__file__).parents[3]
MANIFEST = ROOT / "docs/examples/kubernetes.yaml"
OBJECTS: dict[tuple[str, str], Any] = {
    (each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
}


def pod(kind: str, name: str) -> Any:
    return OBJECTS[kind, name]["spec"]["template"]


def container(kind: str, name: str) -> Any:
    (only,) = pod(kind, name)["spec"]["containers"]
    return only


def variables(of: Any) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in of["env"]}


def test_services_select_pods_that_listen_there() -> None:
    for name, kind in (("thc-ps", "Deployment"), ("thc-train", "Job")):
        service = OBJECTS["Service", name]["spec"]
        assert service["selector"].items() <= pod(kind, name)["metadata"]["labels"].items()
        assert service["clusterIP"] == "None"  # the pod's own address: packets come from there
    deployment = OBJECTS["Deployment", "thc-ps"]["spec"]
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
    ports = OBJECTS["Service", "thc-ps"]["spec"]["ports"] + container("Deployment", "thc-ps")["ports"]
    assert {(port.get("port", port.get("containerPort")), port["protocol"]) for port in ports} == {(UDP_PORT, "UDP")}


def test_thc_ps_takes_its_command() -> None:
    server = container("Deployment", "thc-ps")
    name, *arguments = server["command"]
    assert name == "thc-ps"
    assert {"$(POD_IP)"} == {word for word in arguments if word.startswith("$")}
    assert "POD_IP" in variables(server)
    words = [{"$(POD_IP)": "127.0.0.1", str(UDP_PORT): "0"}.get(word, word) for word in arguments]
    with subprocess.Popen([str(find_thc_ps()), *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("thc-ps ready on 127.0.0.1:")
        finally:
            process.terminate()


def test_ranks_have_the_variables_of_torch_and_of_thc(monkeypatch: pytest.MonkeyPatch) -> None:
    job, rank = OBJECTS["Job", "thc-train"]["spec"], container("Job", "thc-train")
    own = variables(rank)
    assert {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} < own.keys()
    assert job["completionMode"] == "Indexed"
    assert int(own["WORLD_SIZE"]) == job["completions"] == job["parallelism"]
    # The name of an indexed Job's first pod, in the subdomain that a headless Service makes.
    assert own["MASTER_ADDR"] == f"thc-train-0.{pod('Job', 'thc-train')['spec']['subdomain']}"
    assert ("Service", pod("Job", "thc-train")["spec"]["subdomain"]) in OBJECTS
    (rendezvous,) = OBJECTS["Service", "thc-train"]["spec"]["ports"]
    assert int(own["MASTER_PORT"]) == rendezvous["port"]
    shell, option, script = rank["command"]
    assert (shell, option) == ("bash", "-c")
    assert "export RANK=$JOB_COMPLETION_INDEX;" in script
    for name, value in own.items():
        if name.startswith("THC_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("THC_SERVERS", script.split("THC_SERVERS=")[1].split(";")[0].replace("$address", "10.0.0.1"))
    config = NetworkConfig.from_environment()
    assert list(config.servers) == [f"10.0.0.1:{UDP_PORT}"]
    assert config.job == int(own["THC_JOB"])


def test_the_script_of_the_ranks_is_one(tmp_path: Path) -> None:
    """Bash reads it, and gives the training the address that thc-ps has."""
    for name, text in {"getent": 'echo "10.0.0.9 STREAM $2"', "python3": 'echo "$RANK $THC_SERVERS $*"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    command = container("Job", "thc-train")["command"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "JOB_COMPLETION_INDEX": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"1 10.0.0.9:{UDP_PORT} -P train_servers.py --steps 100\n"
    (script,) = re.findall(r"\w+\.py", done.stdout)
    command = [sys.executable, "-P", str(MANIFEST.with_name(script)), "--help"]
    described = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "--steps" in described.stdout


@pytest.mark.parametrize("kind", OBJECTS, ids="/".join)
def test_the_manifest_has_kubernetes_schema(kind: tuple[str, str]) -> None:
    checker = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed: make lint")
    checker.validate(OBJECTS[kind], checker.latest_version(), strict=True)

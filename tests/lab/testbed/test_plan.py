"""Contents of a plan."""

import importlib.util
import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
from testbed_plans import DESCRIPTIONS, EXAMPLE, NAMES, description
from typer.testing import CliRunner

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._cli.cli import app
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.testbed.plan import plan
from thc_lab.testbed.plan_text import as_text
from thc_lab.testbed.process import Plan, PlannedProcess
from thc_lab.testbed.reading import load
from thc_switch.description import Deployment


def of_role(planned: Plan, role: str) -> list[PlannedProcess]:
    return [process for process in planned.processes if process.role == role]


def option(process: PlannedProcess, name: str) -> str:
    return process.argv[process.argv.index(name) + 1]


def address(thc_ps: PlannedProcess) -> str:
    return f"{option(thc_ps, '--listen')}:{option(thc_ps, '--port')}"


def values(processes: Iterable[PlannedProcess], name: str) -> list[str]:
    return [process.environment[name] for process in processes]


@pytest.mark.parametrize("name", NAMES)
def test_processes_wait_for_such_as_are_there_and_before(name: str) -> None:
    seen: set[str] = set()
    for process in plan(description(name)).processes:
        assert set(process.after) <= seen
        assert process.name not in seen
        seen.add(process.name)


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_the_job_are_the_same_everywhere(name: str) -> None:
    planned = plan(description(name))
    workers = of_role(planned, "worker")
    for variable in ("THC_JOB", "THC_CONFIG", "THC_KEY_FILE", "THC_DEADLINE_S"):
        assert len({process.environment.get(variable) for process in workers}) == 1
    assert len(set(values(workers, "THC_LOCAL"))) == len(workers)
    leaves = [process for process in planned.processes if "--upstream" in process.argv]
    assert len(set(values(workers, "THC_SERVERS"))) == max(1, len(leaves))


@pytest.mark.parametrize("name", ["racks", "racks_example"])
def test_workers_of_a_rack_send_to_its_leaf_and_leaves_to_the_root(name: str) -> None:
    planned = plan(description(name))
    root, *leaves = of_role(planned, "aggregator")
    workers = of_role(planned, "worker")
    assert [process.environment["DMLC_WORKER_ID"] for process in workers] == [str(n) for n in range(len(workers))]
    for number, leaf in enumerate(leaves):
        assert option(leaf, "--upstream") == address(root)
        assert option(leaf, "--rack") == str(number)
        assert option(leaf, "--racks") == option(leaves[0], "--racks")
        first, last = map(int, option(leaf, "--racks").split(",")[number].split("-"))
        assert set(values(workers[first : last + 1], "THC_SERVERS")) == {f"{address(leaf)},lanes=2"}
    assert int(option(leaves[-1], "--racks").rpartition("-")[2]) == len(workers) - 1
    assert not {"--upstream", "--rack", "--racks"} & set(root.argv)


def test_the_sums_of_the_largest_rack_fit_into_their_packets() -> None:
    testbed = description("racks")
    assert testbed.job.thc.resolve(testbed.workers).table.granularity * 2 > 255
    [config] = {process.environment["THC_CONFIG"] for process in of_role(plan(testbed), "worker")}
    assert config == "bits=6,granularity=127,value_bits=16"


def test_to_the_root_every_rack_is_as_large_as_the_largest(tmp_path: Path) -> None:
    text = (DESCRIPTIONS / "racks.toml").read_text(encoding="utf-8").replace("value_bits = 16", "value_bits = 8")
    text = text.replace('"192.168.1.10"\nworkers = 1', '"192.168.1.10"\nworkers = 2')
    text = text.replace("bits = 6", "bits = 4\nerror_feedback = true")
    file = tmp_path / "testbed.toml"
    file.write_text(text, encoding="utf-8")
    testbed = load(file)
    assert testbed.workers == 4
    assert testbed.job.thc.resolve(4).table.granularity > 255 // (2 * 3)
    [config] = set(values(of_role(plan(testbed), "worker"), "THC_CONFIG"))
    assert config == "granularity=42,value_bits=8,error_feedback=true"


def test_rank_0_is_in_the_first_rack(tmp_path: Path) -> None:
    text = (DESCRIPTIONS / "racks.toml").read_text(encoding="utf-8").replace('"bpslaunch"', '"torchrun"')
    file = tmp_path / "testbed.toml"
    file.write_text(text.replace("[training]", '[training]\ncoordinator = "gpu1"'), encoding="utf-8")
    first, second, third = of_role(plan(load(file)), "worker")
    assert (first.host, second.host, third.host) == ("gpu1", "gpu0", "gpu2")
    assert first.environment["THC_SERVERS"] == second.environment["THC_SERVERS"]
    file.write_text(text.replace("[training]", '[training]\ncoordinator = "gpu2"'), encoding="utf-8")
    message = r"training.coordinator: it has rank 0, so with racks it is in the first"
    with pytest.raises(ConfigurationError, match=message):
        load(file)


def test_a_switch_is_told_what_the_workers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(description("dpdk_switch"))
    [text] = [file.text for file in planned.files if file.text is not None]
    deployment = Deployment(**json.loads(text))
    workers = of_role(planned, "worker")
    [job, other] = deployment.jobs
    assert [f"{worker.ip}:{worker.udp_port}" for worker in job.workers] == values(workers, "THC_LOCAL")
    assert values(workers, "THC_JOB") == [str(job.job_id)] * 2
    assert other.job_id == 9
    monkeypatch.setenv("THC_CONFIG", workers[0].environment["THC_CONFIG"])
    assert ServerCodes.from_environment() == job.thc


def test_lanes_through_a_switch_are_jobs_of_it() -> None:
    example = description("example")
    transport = {"kind": "udp"}
    udp = type(example)(**example.model_dump(exclude_unset=True) | {"transport": transport, "job": {"lanes": 2}})
    planned = plan(udp)
    [text] = [file.text for file in planned.files if file.text is not None]
    jobs = Deployment(**json.loads(text)).jobs
    assert [job.job_id for job in jobs] == [1, 2]
    assert [job.workers[0].udp_port for job in jobs] == [49000, 49001]
    assert all(servers.endswith(",lanes=2") for servers in values(of_role(planned, "worker"), "THC_SERVERS"))


def test_lanes_and_workers_of_a_nic_have_ports_of_their_own() -> None:
    workers = of_role(plan(description("udp_thc_ps")), "worker")
    assert values(workers, "THC_LOCAL") == ["10.77.0.1:49000", "10.77.0.1:49003", "10.77.0.2:49000"]


def test_a_bpslaunch_command_reaches_its_shell_in_words() -> None:
    testbed = description("dpdk_switch")
    for worker in of_role(plan(testbed), "worker"):
        assert shlex.split(" ".join(worker.argv[1:])) == list(testbed.training.command)


def test_rank_0_is_the_coordinator_s_and_ranks_are_worker_ids() -> None:
    testbed = description("torchrun")
    first, second = of_role(plan(testbed), "worker")
    assert (first.host, second.host) == ("node0", "node1")
    assert "--node-rank=0" in first.argv
    assert "--node-rank=1" in second.argv
    # NetworkConfig.from_environment adds LOCAL_RANK.
    assert values([first, second], "THC_LOCAL") == ["10.0.0.1:49000", "10.0.0.2:49000"]


def test_gpus_and_nics_are_shared_out(tmp_path: Path) -> None:
    text = (DESCRIPTIONS / "colocated.toml").read_text(encoding="utf-8")
    text = text.replace('kind = "colocated"', 'kind = "thc-ps"\nhosts = ["ps"]').replace("workers = 1", "workers = 2")
    host = '[[hosts]]\nname = "ps"\nmanagement_ip = "192.168.1.12"\n'
    host += 'nics = [{ ip = "10.0.0.9", mac = "02:00:00:00:00:09", pci_address = "0000:3b:00.0" }]\n'
    file = tmp_path / "testbed.toml"
    file.write_text(text.replace("[aggregator]", f"{host}\n[aggregator]"), encoding="utf-8")
    workers = of_role(plan(load(file)), "worker")
    assert values(workers, "CUDA_VISIBLE_DEVICES") == ["0,1,2,3", "4,5,6,7"] * 2
    devices = [shlex.split(arguments) for arguments in values(workers, "THC_EAL_ARGS")]
    addresses = ["0000:3b:00.0", "0000:3b:00.1", "0000:3b:00.0", "0000:af:00.0"]
    assert [words[words.index("-a") + 1] for words in devices] == addresses


def test_a_host_gives_its_last_nic_to_a_colocated_thc_ps() -> None:
    planned = plan(description("colocated"))
    for server, worker in zip(of_role(planned, "aggregator"), of_role(planned, "worker"), strict=True):
        assert server.host == worker.host
        own = shlex.split(worker.environment["THC_EAL_ARGS"])
        its = shlex.split(server.argv[server.argv.index("--eal-args") + 1])
        assert own[own.index("-a") + 1] != its[its.index("-a") + 1]
    assert values(of_role(planned, "worker"), "THC_SERVERS") == ["10.0.0.101:48865,10.0.0.102:48865,lanes=1"] * 2


def test_a_tofino_is_told_its_jobs_when_the_agent_starts() -> None:
    planned = plan(description("dpdk_switch"))
    [agent] = of_role(planned, "agent")
    assert agent.argv[0] == "/opt/thc/bin/thc"  # which `check` looks for
    assert "--install" in agent.argv


def test_a_key_appears_by_its_path_only(tmp_path: Path) -> None:
    key = tmp_path / "job.key"
    key.write_text("f00d" * 16, encoding="utf-8")
    text = (DESCRIPTIONS / "torchrun.toml").read_text(encoding="utf-8")
    file = tmp_path / "testbed.toml"
    file.write_text(text.replace("/etc/thc/job.key", str(key)), encoding="utf-8")
    result = CliRunner().invoke(app, ["testbed", "plan", str(file)])
    assert result.exit_code == 0, result.output
    assert str(key) in result.output
    assert "f00d" not in result.output


def test_the_example_runs_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wherever `thc testbed` is started."""
    monkeypatch.chdir(tmp_path)
    planned = plan(description("example"))
    workers = of_role(planned, "worker")
    assert len(workers) == 3
    for worker in workers:
        assert importlib.util.find_spec(worker.argv[worker.argv.index("-m") + 1]) is not None
        assert worker.folder == str(EXAMPLE.parent)
    assert planned.results is not None
    assert planned.results.path == workers[0].environment["THC_TESTBED_RESULTS"]


def test_a_plan_is_printed_whole() -> None:
    """With the words of each command, every variable, and the switch's description."""
    planned = plan(description("dpdk_switch"))
    text = as_text(planned)
    for process in planned.processes:
        assert f"    {shlex.join(process.argv)}\n" in text
        for name, value in process.environment.items():
            assert f"    {name}={shlex.quote(value)}\n" in text
    assert "job 9: 1 workers, 64 slots, granularity 38" in text
    assert "gpu0, management  192.168.1.10" in re.sub(" {2,}", "  ", text)


def test_real_hosts_are_started_by_people() -> None:
    result = CliRunner().invoke(app, ["testbed", "check", str(DESCRIPTIONS / "torchrun.toml")])
    assert (result.exit_code, result.output[:30]) == (1, 'reach = "hosts": `thc testbed`')

"""Mistakes in descriptions: each names the file, the key, and the remedy."""

from pathlib import Path

import pytest
from testbed_plans import DESCRIPTIONS, EXAMPLE

from byteps_thc._base.errors import ConfigurationError
from thc_lab.testbed.reading import load

#: description -> (replaced text, its replacement, words of the error)
MISTAKES: dict[str, list[tuple[str, str, str]]] = {
    "example": [
        ('reach = "namespaces"', 'reach = "telepathy"', r"reach: .*'namespaces' or 'hosts'.*telepathy"),
        ('name = "example"', 'name = "An Example"', r"name: .*pattern.*An Example"),
        ("slots = 64", "slot = 64", r"aggregator.slot: there is no such key, did you mean slots\?"),
        ("workers = 1\n", "worker = 1\n", r"hosts.0.worker: there is no such key, did you mean workers\?"),
        ("switch_port = 1 ", "switchport = 1 ", r"hosts.0.nics.0.switchport: .*did you mean switch_port\?"),
        ("operation_s = 120", "op_s = 120", r"transport.timeouts.op_s: there is no such key"),
        ("operation_s = 120", "rto_min_s = 0.3", r"transport.timeouts.rto_min_s: there is no such key"),
        ("operation_s = 120", "operation_s = 0", r"transport.timeouts.operation_s: .*greater than 0 \(given: 0\)"),
        ('kind = "dpdk" ', 'kind = "rdma" ', r"transport.kind: must be one of 'udp', 'dpdk'"),
        ('kind = "switch" ', "", r"aggregator.kind: is missing"),
        (
            'kind = "switch" ',
            'kind = "ps" ',
            r"aggregator.kind: must be one of 'thc-ps', 'colocated', 'racks', 'switch'",
        ),
        ("cpu_port = 64", "cpu_prot = 64", r"aggregator.switch.cpu_port: Field required"),
        ("[job.thc]", "[job.thc]\nbist = 4", r"job.thc.bist: .*did you mean bits\?"),
        ("[job.thc]", "[job.thc]\nbits = 8", r"thc.bits is 8; the switch looks up 4-bit codes"),
        ("[job.thc]", "[job.thc]\ngranularity = 90", r"granularity 90 \* 3 workers.*use thc.granularity 85 or less"),
        ("[job.thc]", "[job.thc]\ncodes_per_packet = 512", r"codes_per_packet is 512; a switch packet has 1024"),
        ("slots = 64", "slots = 4096", r"the jobs need 4096 slots, and 1 pipe\(s\) hold 2048"),
        ("id = 1", "id = 1\nlanes = 2", r"job.lanes: 2 lanes cannot share a DPDK device"),
        ("id = 1", "id = 1\nquorum = 4", r"job.quorum: 4 of 3 workers"),
        ("id = 1", 'id = 1\nkey_file = "/etc/key"', r"job.key_file: a switch cannot authenticate"),
        ('name = "gpu1"', 'name = "gpu0"', r"hosts: name gpu0 is given twice"),
        ('name = "gpu1"', 'name = "fabric"', r"hosts.1 \(fabric\): .*choose another name"),
        ('ip = "10.77.0.2"', 'ip = "10.77.0.1"', r"hosts: the address 10.77.0.1 is given twice"),
        ('ip = "10.77.0.2"', 'ip = "10.77.0.254"', r"hosts: the address 10.77.0.254 is given twice"),
        ('ip = "10.77.0.2"', 'ip = "10.76.0.2"', r"ip of nics: all .* not in 10.76.0.0/24 and 10.77.0.0/24"),
        ('ip = "10.77.0.2"', 'ip = "10.77.0"', r"hosts.1.nics.0.ip: .*IPv4 address.*10.77.0"),
        (
            "switch_port = 2",
            'switch_port = 2, interface = "manage0"',
            r"nics of gpu1: interface manage0 is given twice",
        ),
        ("switch_port = 2", 'switch_port = 2, interface = "lo"', r"nics of gpu1: interface lo is given twice"),
        ("switch_port = 2", "switch_port = 1", r"hosts: switch_port 1 is given twice"),
        (", switch_port = 2", "", r"nics of gpu1: give switch_port"),
        ("switch_port = 2", "switch_port = 68", r"worker 1 .*port 68 is the CPU's or recirculates"),
        ('management_ip = "10.78.0.2"\n', "", r"hosts.1 \(gpu1\): give management_ip, which bpslaunch"),
        ('nics = [{ ip = "10.77.0.2", switch_port = 2 }]', "", r"hosts.1 \(gpu1\): .*give it \[\[hosts.nics\]\]"),
        ('host = "tor"', 'host = "core"', r"aggregator.host: core is not a host; hosts are gpu0, gpu1, gpu2, tor"),
        ("workers = 1\n", "workers = 0\n", r"hosts: no host has workers"),
        ("workers = 1\n", "workers = 1\ngpus = -1\n", r"hosts.0.gpus: .*greater than or equal to 0"),
        ('driver = "af_packet"', 'driver = "vfio-pci"', r'transport.driver: namespaces have .*"af_packet"'),
        ('runner = "model"', 'runner = "tofino"', r"aggregator.runner: a Tofino is"),
        ("command = [", "command = []\n#", r"training.command: .*at least 1"),
        ("command = [", 'coordinator = "tor"\ncommand = [', r"training.coordinator: tor has no management_ip"),
        ("command = [", 'environment = { THC_JOB = "2" }\ncommand = [', r"training.environment: THC_JOB follows from"),
        ("memory_mib = 128", "memory_mib = 128\nqueues = 2", r"queues: there is no such key"),
        ("[training]", "[trainings]", r"trainings: there is no such key, did you mean training\?"),
    ],
    "udp_thc_ps": [
        ('hosts = ["ps0", "ps1"]', "", r'aggregator.hosts: names the hosts of kind "thc-ps"'),
        ('hosts = ["ps0", "ps1"]', 'hosts = ["ps1"]', r"hosts.2 \(ps0\): no part of the description uses it"),
        ('hosts = ["ps0", "ps1"]', 'hosts = ["ps0", "worker1"]', r'worker1 has workers; use kind "colocated"'),
        ("[transport]", "metrics_port = 1\n[transport]", r"aggregator.metrics_port: ps0 has no management_ip"),
        ("[transport]", "port = 65536\n[transport]", r"aggregator.port: .*65535"),
        ("id = 4", "id = 4\nudp_port = 65533", r"job.udp_port: worker 1 needs 3 ports from 65536 on"),
        ("granularity = 30", "granularity = 0", r"job.thc.granularity: .*greater than or equal to 1"),
        (
            "granularity = 30",
            "error_feedback = true\ngranularity = 1",
            r"job.thc: 4-bit codes with granularity 1 .* residuals would grow",
        ),
        ("granularity = 30", "granularity = 100\nvalue_bits = 8", r"job.thc: .*100"),
        ("mtu_bytes = 9000", "mtu_bytes = 90000", r"transport.mtu_bytes: .*9978"),
        ('"/srv/training"', '"/srv/training"\nlauncher_ = 1', r"training.launcher_: .*did you mean launcher\?"),
    ],
    "dpdk_switch": [
        ('mac = "02:00:00:00:00:02", ', "", r"nics of gpu1: give mac"),
        ('mac = "02:00:00:00:00:02"', 'mac = "03:00:00:00:00:02"', r"hosts.1.nics.0.mac: .*group address"),
        ('mac = "02:00:00:00:00:02"', 'mac = "02:00:00:00:00:01"', r"hosts: mac 02:00:00:00:00:01 is given twice"),
        ('pci_address = "0000:3b:00.0", switch', "switch", r"hosts.1 \(gpu1\): NIC 10.0.0.2: give pci_address"),
        ('pci_address = "0000:3b:00.0", switch', 'pci_address = "3b:00.0", switch', r"hosts.1.nics.0.pci_address: "),
        ('driver = "vfio-pci"', 'driver = "vfio-pci"\nhugepages = false', r"transport.hugepages: vfio-pci needs"),
        ("job_id = 9", "job_id = 3", r"job_id 3 is given twice"),
        ("slots = 64\nworkers", "slots = 4096\nworkers", r"the jobs need 5120 slots, and 2 pipe\(s\) hold 4096"),
        ("38, p = 0.015625 }\n\n[training]", "40 }\n\n[training]", "use different lookup tables"),
        ("gpus = 4\nnics", "gpus = 4\nnicks = 3\nnics", r"hosts.0.nicks: there is no such key, did you mean nics\?"),
        ("workers = 1\ngpus = 4", "workers = 3\ngpus = 4", r"hosts.0 \(gpu0\): 4 gpus cannot be shared out among 3"),
        ("workers = 1\ngpus = 4", "workers = 2\ngpus = 4", r"2 processes need a NIC of DPDK each, and it has 1"),
        ('interface = "ens1f0"', 'interface = ".."', r"hosts.0.nics.0.interface: .*pattern"),
        ('interface = "ens1f0"', 'interface = "-a"', r"hosts.0.nics.0.interface: .*pattern"),
        ('interface = "ens1f0"', 'interface = "a;id"', r"hosts.0.nics.0.interface: .*pattern"),
        ('cpu_interface = "enp4s0f0"', 'cpu_interface = "a b"', r"aggregator.switch.cpu_interface: .*pattern"),
        ('bin = "/opt/thc/bin"', 'bin = "/srv/run/../precious"', r"bin: .*without them"),
        ("[training]", "[training]\nenvironment = { PATH = '/x' }", r"training.environment: PATH changes the commands"),
        (
            "[training]",
            "[training]\nenvironment = { BYTEPS_TRACE_DIR = 'a b' }",
            r"training.environment: BYTEPS_TRACE_DIR is",
        ),
    ],
    "racks": [
        ('leaf = "tor1"', 'leaf = "tor0"', r"aggregator.racks: leaf tor0 is given twice"),
        ('leaf = "tor1"', 'leaf = "spine"', r"aggregator.racks: leaf spine is given twice"),
        ('leaf = "tor1"', 'leaf = "gpu2"', r"aggregator.racks: gpu2 has workers; root and leaves are on hosts of"),
        ('leaf = "tor1"', 'leaf = "tor9"', r"aggregator.racks.1.leaf: tor9 is not a host; hosts are gpu2"),
        ('root = "spine"', 'root = "top"', r"aggregator.root: top is not a host"),
        ('hosts = ["gpu2"]', 'hosts = ["gpu9"]', r"aggregator.racks.1.hosts: gpu9 is not a host"),
        ('hosts = ["gpu2"]', 'hosts = ["gpu1"]', r"aggregator.racks: hosts: gpu1 is given twice"),
        ('hosts = ["gpu2"]', "hosts = []", r"aggregator.racks.1.hosts: .*at least 1"),
        ('hosts = ["gpu0", "gpu1"]', 'hosts = ["gpu0"]', r"aggregator.racks: gpu1 has workers; put it into"),
        ('"gpu1"]\nleaf', '"gpu1", "tor0"]\nleaf', r"aggregator.racks: tor0 has no workers"),
        ('[[aggregator.racks]]\nhosts = ["gpu2"]\nleaf = "tor1"', "", r"aggregator.racks: .*at least 2"),
        ("[job.thc]", "[job]\nquorum = 2\n\n[job.thc]", r"job.quorum: leaves and root wait for all"),
        ("[job.thc]", "[job]\nloss_tolerant = true\n\n[job.thc]", r"job.loss_tolerant: leaves and root wait"),
        (
            "bits = 6",
            "bits = 6\ngranularity = 128",
            r"job.thc: 2 racks of up to 2 workers: .* the root's of 16, hold granularity 127, not 128: use",
        ),
        (
            "value_bits = 16",
            "value_bits = 8\ngranularity = 85",
            r"job.thc: 2 racks of up to 2 workers: .* the root's of 8, hold granularity 63, not 85: .* value_bits 16",
        ),
        (
            "bits = 6",
            "bits = 8",
            r"job.thc: .* 8-bit codes have 255 or more: make racks of 1 workers at most, all of one size, or bits",
        ),
        ("metrics_port = 9464", "metric_port = 2", r"aggregator.metric_port: .*did you mean metrics_port"),
        ('leaf = "tor1"', 'leave = "tor1"', r"aggregator.racks.1.leave: there is no such key, did you mean leaf\?"),
    ],
    "torchrun": [
        ('workers = 2\ngpus = 2\nnics = [{ ip = "10.0.0.2"', 'workers = 1\nnics = [{ ip = "10.0.0.2"', "same number"),
        ("[job]", "[job]\nlanes = 2", r"job.lanes: lanes is a setting of BytePS alone"),
        ('coordinator = "node0"', 'coordinator = "ps"', r"training.coordinator: with torchrun it has rank 0"),
        ('kind = "udp"', 'kind = "dpdk"\ndriver = "af_packet"', "one rank of torchrun has the NIC"),
    ],
    "colocated": [
        ('kind = "colocated"', 'kind = "colocated"\nhosts = ["gpu0"]', r'"colocated" is all hosts with workers'),
        (
            '{ ip = "10.0.0.101", mac = "02:00:00:00:00:02", pci_address = "0000:3b:00.1" },',
            "",
            r"2 processes need a NIC of DPDK",
        ),
        ('command = ["python3", "train.py"]', 'command = "python3 train.py"', r"training.command: .*tuple"),
    ],
}
CASES = [(name, *mistake) for name, mistakes in MISTAKES.items() for mistake in mistakes]


@pytest.mark.parametrize(("name", "old", "new", "message"), CASES, ids=[f"{case[0]}-{case[2][:30]}" for case in CASES])
def test_mistakes_are_named(name: str, old: str, new: str, message: str, tmp_path: Path) -> None:
    source = EXAMPLE if name == "example" else DESCRIPTIONS / f"{name}.toml"
    text = source.read_text(encoding="utf-8")
    assert old in text
    file = tmp_path / "testbed.toml"
    file.write_text(text.replace(old, new) if "workers = 0" in new else text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_bmv2_runs_no_tofino_program(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8").replace('"v1model"', '"tofino1"')
    file = tmp_path / "testbed.toml"
    file.write_text(text, encoding="utf-8")
    load(file)  # the model runs both
    file.write_text(text.replace('runner = "model"', 'runner = "bmv2"'), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r'aggregator.switch.architecture: bmv2 runs "v1model"'):
        load(file)


def test_more_workers_than_a_switch_can_sum_for(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    host = '\n[[hosts]]\nname = "more{0}"\nmanagement_ip = "10.78.0.{0}"\nworkers = 1\n'
    host += 'nics = [{{ ip = "10.77.0.{0}", switch_port = {0} }}]\n'
    more = "".join(host.format(number) for number in range(10, 40))
    file = tmp_path / "testbed.toml"
    file.write_text(text.replace("[aggregator]", f"{more}\n[aggregator]"), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"33 workers: a switch job has 1 to 32"):
        load(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml is not a description of a testbed: .*No such file"):
        load(tmp_path / "none.toml")


TEXTS = [(text, r"testbed\.toml is not a description of a testbed") for text in ("name = ", "\x00")]
OF_KEYS = ("", "hosts = 3", "training = 3\nreach = 'namespaces'", "aggregator = [1]")
TEXTS += [(text, "name: is missing") for text in OF_KEYS]


@pytest.mark.parametrize(("text", "message"), TEXTS)
def test_a_file_that_is_no_toml_or_has_other_keys(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "testbed.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        load(file)

"""Job descriptions: allowed values, and errors that name the change to make."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_switch import Deployment, JobDescription, allocate, limits
from thc_switch.programs import INCLUDE_FOLDER

Fields = dict[str, Any]
Describe = Callable[..., Deployment]
MakeFields = Callable[..., Fields]

STATION = {"mac": "02:00:00:00:99:01", "port": 9}
ROUTE = {"prefix": "10.1.0.0/16", "next_hop_mac": "02:00:00:00:99:02", "port": 9}


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        make()
    message = str(caught.value)
    assert "Value error" not in message
    assert "pydantic" not in message
    return message


@pytest.mark.parametrize(
    ("thc", "message"),
    [
        (
            {"granularity": 86},
            "86 * 3 workers = 258 does not fit the switch's 8-bit sums (at most 255): use thc.granularity 85",
        ),
        ({"bits": 3}, "thc.bits is 3; the switch looks up 4-bit codes"),
        ({"bits": 8, "granularity": 255}, "thc.bits is 8"),
        ({"value_bits": 16}, "thc.value_bits is 16; the switch sums in 8 bits"),
        ({"codes_per_packet": 2048}, "thc.codes_per_packet is 2048; a switch packet has 1024"),
        (
            {"partition_bytes": 32 << 20},
            f"makes 8192 packets of a partition; the switch numbers 4096: use at most {16 << 20}",
        ),
        ({"rotation": 1}, "rotation: ServerCodes has no such setting, did you mean rotation_block?"),
    ],
)
def test_settings_a_switch_cannot_do(describe: Describe, a_job: MakeFields, thc: Fields, message: str) -> None:
    assert message in refusal(lambda: describe([a_job(thc=thc)])).replace("Extra", "extra")


@given(workers=st.integers(1, 40), granularity=st.integers(1, 300))
def test_sums_that_fit_are_taken_and_no_others(workers: int, granularity: int) -> None:
    fields = [
        {"ip": f"10.0.0.{number + 1}", "mac": f"02:00:00:00:00:{number:02x}", "udp_port": 1, "port": 0}
        for number in range(workers)
    ]
    thc = ServerCodes(granularity=granularity, p=1 / 32, error_feedback=False)
    fits = granularity * workers <= 255 and workers <= 32
    try:
        JobDescription(job_id=1, workers=fields, thc=thc)
    except ConfigurationError:
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize(("count", "granularity"), [(17, 15), (18, 14), (32, 7)])
def test_jobs_of_many_workers_leave_codes_over(
    describe: Describe, a_job: MakeFields, count: int, granularity: int
) -> None:
    (job,) = describe([a_job(count=count, thc={})]).jobs
    assert job.table.granularity == granularity
    # Workers are told to use 8-bit sums, and choose the same table then.
    assert ServerCodes(value_bits=8).resolve(count).table == job.table


def test_more_workers_than_a_switch_has_places(describe: Describe, a_job: MakeFields) -> None:
    message = refusal(lambda: describe([a_job(count=18, thc={"granularity": 15})]))
    assert "granularity 15 * 18 workers = 270 does not fit the switch's 8-bit sums" in message
    message = refusal(lambda: describe([a_job(count=33)]))
    assert "33 workers: a switch job has 1 to 32; thc-ps sums for 64, and the ranks" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quorum": 4}, "quorum must be in 1 .. 3 (workers), not 4"),
        ({"quorum": 0}, "quorum must be in 1 .. 3"),
        ({"slots": 1}, "slots"),
        ({"slots": 2049}, "the jobs need 2049 slots, and 1 pipe(s) hold 2048"),
        ({"first_slot": 2000}, "the jobs need 2064 slots"),
        ({"job_id": 65536}, "job_id"),
        ({"workers": []}, "0 workers"),
    ],
)
def test_jobs_that_do_not_fit(describe: Describe, a_job: MakeFields, changes: Fields, message: str) -> None:
    assert message in refusal(lambda: allocate(describe([a_job(**changes)])))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ip": "10.0.0.2", "mac": "02:00:00:00:00:01"}, "worker 10.0.0.2:50001 is given twice"),
        ({"mac": "02:00:00:00:00:1"}, "is not a MAC address such as"),
        ({"mac": "03:00:00:00:00:01"}, "is a group address"),
        ({"port": 68}, "port 68 is the CPU's or recirculates; use a front-panel port"),
        ({"port": 64}, "port 64 is the CPU's or recirculates"),
        ({"port": 512}, "port"),
        ({"ip": "10.0.9.254"}, "has the address of the switch"),
        ({"mac": "02:00:00:00:00:01", "udp_port": 50002}, "02:00:00:00:00:01 is at port 1 and at 0"),
    ],
)
def test_workers_that_cannot_be(
    describe: Describe, a_job: MakeFields, a_worker: MakeFields, changes: Fields, message: str
) -> None:
    workers = [a_worker(1), a_worker(0, **changes)]
    assert message in refusal(lambda: describe([a_job(workers=workers)]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recirculation": []}, "recirculation names 0 ports; one, two or four pipes"),
        ({"recirculation": [{"port": 68}, {"port": 196}, {"port": 324}]}, "recirculation names 3 ports"),
        ({"recirculation": [{"port": 68}, {"port": 4}]}, "every recirculation port must be in another pipe"),
        ({"recirculation": [{"port": 68}, {"port": 68}]}, "recirculation port 68 is given twice"),
        ({"cpu_port": 68}, "port 68 is the cpu_port and a recirculation port"),
        ({"architecture": "tofino3"}, "architecture"),
        ({"ip": "10.0.0"}, "ip"),
        ({"program": "a b"}, "program"),
        ({"udp_port": 48866}, "udp_port: Extra inputs"),
        ({"ports": [{"number": 68, "speed": "100G"}]}, "ports: port 68 is the CPU's or recirculates"),
        ({"ports": [{"number": 64, "speed": "10G"}]}, "ports: port 64 is the CPU's or recirculates"),
        ({"stations": [STATION | {"port": 68}]}, "station 02:00:00:00:99:01: port 68 is the CPU's or recirculates"),
        ({"stations": [STATION | {"port": 64}]}, "station 02:00:00:00:99:01: port 64 is the CPU's or recirculates"),
        ({"stations": [STATION | {"mac": "02:00:00:00:ff:fe"}]}, "has the MAC address of the switch; give it its own"),
        ({"routes": [ROUTE | {"port": 68}]}, "route to 10.1.0.0/16: port 68 is the CPU's or recirculates"),
        ({"routes": [ROUTE | {"port": 64}]}, "route to 10.1.0.0/16: port 64 is the CPU's or recirculates"),
    ],
)
def test_switches_that_cannot_be(describe: Describe, changes: Fields, message: str) -> None:
    assert message in refusal(lambda: describe([], **changes))


def test_job_ids_are_unique(describe: Describe, a_job: MakeFields) -> None:
    assert "job_id 1 is given twice" in refusal(lambda: describe([a_job(), a_job(first_worker=3)]))


def test_jobs_share_the_lookup_table(describe: Describe, a_job: MakeFields) -> None:
    other = a_job(2, first_worker=3, thc={"granularity": 17, "p": 1 / 32})
    message = refusal(lambda: describe([a_job(), other]))
    assert "jobs 1 and 2 use different lookup tables, and a switch holds one" in message


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ((4, 8), "granularity = 17, p = 0.0078125"),
        ((8, 4, 17), "granularity = 15, p = 0.015625"),
        ((4, 20, 8), "granularity = 12, p = 0.015625, value_bits = 8"),
    ],
    ids=str,
)
def test_jobs_with_default_settings_share_a_table_that_the_error_names(
    describe: Describe, a_job: MakeFields, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...], line: str
) -> None:
    """The error's settings, copied into the job description and for the workers, work, and are the same for both."""
    message = refusal(lambda: describe([a_job(job, count=count, thc={}) for job, count in enumerate(counts)]))
    copied = re.search(r"thc = (\{.*\}) and their workers THC_CONFIG=(\S+)$", message)
    assert copied is not None
    assert copied[1] == f"{{ {line} }}"
    thc = tomllib.loads(f"thc = {copied[1]}")["thc"]
    jobs = describe([a_job(job, count=count, thc=thc) for job, count in enumerate(counts)]).jobs
    monkeypatch.setenv("THC_CONFIG", copied[2])
    assert [ServerCodes.from_environment().resolve(job.num_workers) for job in jobs] == [
        ServerCodes(**thc).resolve(job.num_workers) for job in jobs
    ]
    assert {ServerCodes(**thc).resolve(job.num_workers).table for job in jobs} == {job.table for job in jobs}


def test_the_page_says_what_fewer_levels_and_a_shared_table_cost() -> None:
    """p4/README.md, "More than 17 workers" and "Several jobs"."""

    def nmse(workers: int, **settings: Any) -> float:
        return ServerCodes(**({"value_bits": 8} | settings)).resolve(workers).expected_error()

    page = (Path(__file__).parents[3] / "p4/README.md").read_text()
    for granularity, p in ((17, 1 / 128), (15, 1 / 64)):
        cells = [f"{1e3 * nmse(n, granularity=granularity, p=p):.1f}" for n in (2, 4, 8, 15)]
        assert f"| {granularity} | {' | '.join(cells)} |" in page
    assert f"| each its own | {' | '.join(f'{1e3 * nmse(n):.1f}' for n in (2, 4, 8, 15))} |" in page
    wide = " | ".join(f"{1e3 * nmse(n, value_bits=16):.1f}" for n in (18, 20, 24, 28, 32))
    assert f"| error x 1000, `thc-ps` with 16-bit sums | | {wide} |" in page
    assert f"| error x 1000 | {' | '.join(f'{1e3 * nmse(n):.1f}' for n in (17, 18, 20, 24, 28, 32))} |" in page


def test_a_worker_may_be_in_two_jobs(describe: Describe, a_job: MakeFields) -> None:
    assert len(allocate(describe([a_job(1), a_job(2)]))) == 2


def test_overlapping_slots_are_refused(describe: Describe, a_job: MakeFields) -> None:
    deployment = describe([a_job(1), a_job(2, first_slot=63)])
    assert "jobs 1 and 2 overlap at slot 63: omit first_slot, or start job 2 at 64" in refusal(
        lambda: allocate(deployment)
    )


@given(
    st.lists(st.tuples(st.integers(2, 400), st.one_of(st.none(), st.integers(0, 2000))), min_size=1, max_size=6),
    st.sampled_from([1, 2, 4]),
)
def test_allocated_slots_are_disjoint_and_exist(jobs: list[tuple[int, int | None]], pipes: int) -> None:
    workers = [{"ip": "10.0.0.1", "mac": "02:00:00:00:00:01", "udp_port": 1, "port": 0}]
    deployment = Deployment(
        switch={
            "architecture": "tofino1",
            "ip": "10.0.9.254",
            "mac": "02:00:00:00:ff:fe",
            "cpu_port": 64,
            "recirculation": [{"port": pipe << 7 | 68} for pipe in range(pipes)],
        },
        jobs=[
            {"job_id": number, "slots": slots, "first_slot": first, "workers": workers}
            for number, (slots, first) in enumerate(jobs)
        ],
    )
    wanted = [range(first, first + slots) for slots, first in jobs if first is not None]
    try:
        allocations = allocate(deployment)
    except ConfigurationError:
        # Automatic ranges come after all before them, so only explicit ones or too many slots can be refused.
        assert wanted or sum(slots for slots, _ in jobs) > limits.max_slots(pipes)
        return
    taken: set[int] = set()
    for allocation in allocations:
        slots = set(range(allocation.first_slot, allocation.first_slot + allocation.slots))
        assert not slots & taken
        taken |= slots
    assert max(taken) < limits.max_slots(pipes)


def test_replication_ids_are_unique(describe: Describe, a_job: MakeFields) -> None:
    allocations = allocate(describe([a_job(number, slots=2) for number in range(limits.MAX_JOBS)]))
    ids = [allocation.replication_id(worker) for allocation in allocations for worker in range(limits.MAX_WORKERS)]
    assert len(set(ids)) == len(ids)
    assert 1 <= min(ids) <= max(ids) <= 0xFFFF
    groups = {allocation.multicast_group for allocation in allocations}
    assert len(groups) == len(allocations)
    assert 65535 not in groups


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        """
        [switch]
        architecture = "v1model"
        ip = "10.0.0.254"
        mac = "02-00-00-00-00-FE"
        cpu_port = 64
        recirculation = [{ port = 68 }]
        [[jobs]]
        job_id = 7
        workers = [{ ip = "10.0.0.1", mac = "02:00:00:00:00:01", udp_port = 50001, port = 1 }]
        [jobs.thc]
        granularity = 30
        """
    )
    deployment = Deployment.load(path)
    assert deployment.switch.mac == "02:00:00:00:00:fe"
    assert deployment.jobs[0].table.granularity == 30


@pytest.mark.parametrize(
    ("text", "message"), [("[switch", "is not a job description"), ("[switch]\nip = 1", "mac: Field required")]
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    refused = refusal(lambda: Deployment.load(path))
    assert refused.startswith(str(path))
    assert message in refused


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "No such file" in refusal(lambda: Deployment.load(tmp_path / "none.toml"))


def test_sizes_are_those_of_the_programs() -> None:
    text = (INCLUDE_FOLDER / "thc_config.p4").read_text()
    defined = dict(re.findall(r"^#define (THC_\w+) +(\d+)", text, re.MULTILINE))
    assert int(defined["THC_BLOCK_WORDS"]) == limits.REGISTER_WORDS
    assert int(defined["THC_PASSES"]) == limits.PASSES
    assert int(defined["THC_CODES_PER_PASS"]) == limits.CODES_PER_PACKET // limits.PASSES
    assert int(defined["THC_VERSIONS"]) == limits.VERSIONS_PER_SLOT * limits.max_slots(max(limits.PIPE_COUNTS))
    assert int(defined["THC_JOB_ENTRIES"]) == limits.JOB_ENTRIES
    assert int(defined["THC_WORKER_ENTRIES"]) == limits.MAX_ALL_WORKERS
    assert int(defined["THC_LEAF_ENTRIES"]) >= (limits.ROOT_ROWS + 2) * limits.MAX_JOBS
    assert int(defined["THC_ROUTE_ENTRIES"]) == limits.MAX_ROUTES
    assert int(defined["THC_MAC_ENTRIES"]) == limits.MAC_ENTRIES


def test_lanes_are_jobs_of_their_own(describe: Describe, a_job: MakeFields) -> None:
    deployment = describe([a_job(1, lanes=2, slots=64), a_job(7)])
    assert [job.job_id for job in deployment.jobs] == [1, 2, 7]
    first, second, _ = deployment.jobs
    assert [allocation.first_slot for allocation in allocate(deployment)] == [0, 64, 128]
    assert second.resolved == first.resolved
    for ours, theirs in zip(first.workers, second.workers, strict=True):
        assert (theirs.ip, theirs.mac, theirs.port) == (ours.ip, ours.mac, ours.port)
        assert theirs.udp_port == ours.udp_port + 1
    assert "job_id 2 is given twice" in refusal(lambda: describe([a_job(1, lanes=2), a_job(2)]))


def test_the_example_agrees_with_workers_that_set_nothing() -> None:
    (job,) = Deployment.load(Path(__file__).resolve().parents[3] / "p4" / "jobs.example.toml").jobs
    workers = ServerCodes().resolve(len(job.workers))
    assert (job.table, job.resolved.value_bits) == (workers.table, workers.value_bits)
    assert job.resolved.shared_hash == workers.shared_hash


def test_the_example_is_valid() -> None:
    deployment = Deployment.load(Path(__file__).resolve().parents[3] / "p4" / "jobs.example.toml")
    assert len(allocate(deployment)) == 1
    assert deployment.switch.slots == 4096

"""Fixtures for all Python tests."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from byteps_lab import why_not
from hypothesis import settings
from raw_worker import MakeWorker, Worker

from byteps_thc._cli.launch import ParameterServer
from thc_lab.bfloat16 import do_without_amx_if_it_crashes

# Hypothesis fails an example after 0.2 s, unless it knows that it runs on CI: any stall of the machine takes that long.
settings.register_profile("no deadline", settings.default, deadline=None)
settings.load_profile("no deadline")

#: The longest files start first (make test: --dist loadfile --no-loadscope-reorder), so that no process runs one alone
#: at the end.
LONGEST = (
    "gpu/test_bits.py",
    "gpu/test_resources.py",
    "p4/e2e/test_sums.py",
    "p4/e2e/test_racks.py",
    "evaluation/test_bench_gpu.py",
    "p4/e2e/test_front_ends.py",
    "examples/test_examples.py",
    "docs/test_snippets.py",
    "docs/test_site.py",
    "security/test_trainings.py",
    "lab/demo/test_demo.py",
    "lab/testbed/test_run.py",
    "engine/test_lost_rank.py",
    "p4/thc_switch/test_emitters.py",
    "p4/thc_switch/test_grpc.py",
    "engine/test_mismatch.py",
    "p4/switch/test_any_packets.py",
    "p4/switch/test_schedules.py",
    "worker_dpdk/session/test_dpdk.py",
    "security/test_places.py",
    "averager/test_racks.py",
)
#: The collector looks at more at a time than it does by default: P4 programs are graphs of a million objects.
GC_THRESHOLDS = (20_000, 20, 20)

pytest_plugins = ["skip_table"]
_TESTS = Path(__file__).parent
_BFLOAT16 = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """BytePS takes minutes to build: `make test` leaves it and its tests to `make test-all`."""
    parser.addoption("--byteps", action="store_true", help="run tests that need BytePS, too (make byteps builds it)")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare all processes of the run once, in its environment, which they share."""
    gc.set_threshold(*GC_THRESHOLDS)
    if not hasattr(config, "workerinput"):  # a mark of pytest-xdist's processes
        config.stash[_BFLOAT16] = do_without_amx_if_it_crashes()
    # Shells make background programs ignore Ctrl-C, which programs of tests would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Describe the machine in the header."""
    note = config.stash.get(_BFLOAT16, "")
    return [note] if note else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of LONGEST first, in that order."""
    ranks = {_TESTS / name: rank for rank, name in enumerate(LONGEST)}
    assert not [path for path in ranks if not path.exists()], "LONGEST names files that are not there"
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_collection_finish() -> None:
    """Exempt imported and collected objects from collections: they are no garbage before the end."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter end as it always does."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of BytePS unless asked for and installed."""
    if item.get_closest_marker("byteps") is None:
        return
    if not item.config.getoption("byteps"):
        pytest.skip("needs BytePS: make test-all runs it, or pytest --byteps")
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def thc_ps() -> Iterator[ParameterServer]:
    """A thc-ps of this test's own on a free loopback port."""
    with ParameterServer() as server:
        yield server


@pytest.fixture
def make_worker() -> Iterator[MakeWorker]:
    """Make workers that speak the protocol by hand; closed in the end."""
    workers: list[Worker] = []

    def make(*args: object, **options: object) -> Worker:
        workers.append(Worker(*args, **options))  # type: ignore[arg-type]
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()

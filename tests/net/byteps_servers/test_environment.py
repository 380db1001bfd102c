"""BytePS's environment variables: set when unset, refused when THC could not work with them."""

import os

import pytest

pytest.importorskip("torch")


from byteps_thc import ServerCodes
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._net.byteps_servers.transport import check_environment, prepare_environment

VARIABLES = ("BYTEPS_THREADPOOL_SIZE", "BYTEPS_MIN_COMPRESS_BYTES", "BYTEPS_PARTITION_BYTES", "BYTEPS_ENABLE_ASYNC")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that the value from before comes back
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("codes", "partition_bytes"),
    [
        (ServerCodes(), 4096000),
        (ServerCodes(granularity=400), 4 << 20),
        (ServerCodes(partition_bytes=64 << 20), 16 << 20),
    ],
)
def test_what_is_unset_is_set(codes: ServerCodes, partition_bytes: int) -> None:
    prepare_environment(codes.resolve(2))
    assert [os.environ[name] for name in VARIABLES[:3]] == ["2", "0", str(partition_bytes)]


def test_what_is_set_and_works_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", "2000000")
    monkeypatch.setenv("BYTEPS_THREADPOOL_SIZE", "7")
    prepare_environment(ServerCodes().resolve(2))
    assert os.environ["BYTEPS_PARTITION_BYTES"] == "2000000"
    assert os.environ["BYTEPS_THREADPOOL_SIZE"] == "7"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BYTEPS_THREADPOOL_SIZE", "0"),
        ("BYTEPS_THREADPOOL_SIZE", "many"),
        ("BYTEPS_PARTITION_BYTES", "4096"),
        ("BYTEPS_ENABLE_ASYNC", "1"),
    ],
)
def test_what_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=name):
        prepare_environment(ServerCodes().resolve(2))


def test_partitions_that_byteps_would_not_compress_are_refused() -> None:
    environment = {"BYTEPS_THREADPOOL_SIZE": "2", "BYTEPS_MIN_COMPRESS_BYTES": "65536"}
    check_environment(environment, smallest_bytes=65536, largest_bytes=65536)
    with pytest.raises(ConfigurationError, match="BYTEPS_MIN_COMPRESS_BYTES"):
        check_environment(environment, smallest_bytes=65535, largest_bytes=65536)
    with pytest.raises(ConfigurationError, match="BYTEPS_MIN_COMPRESS_BYTES"):
        check_environment({"BYTEPS_THREADPOOL_SIZE": "2"}, smallest_bytes=1, largest_bytes=1)

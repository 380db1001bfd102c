"""Authenticated jobs: attacks on the path, on jobs with a key and without."""

import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from datagram_tags import HEADER_BYTES, TAG_BYTES, tag
from free_ports import free_tcp_port
from joined_sessions import expected_sum, make_codes
from on_path import OnPath
from packet_checksum import CHECKSUM_BYTES, checksum
from pushed_codes import push_codes
from scraped_metrics import PATIENCE_S, total

from byteps_thc._base.errors import ConfigurationError, DeadlineError
from byteps_thc._cli.launch import ParameterServer, find_thc_ps
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._net.session import Session, Timeouts, UdpConfig
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_switch.wire import Header, MessageType

DEPLOYMENT = Path(__file__).parents[2] / "ps_software/deployment"
LOOPBACK = UdpConfig("127.0.0.1:0")
CONFIG = ServerCodes(codes_per_packet=1024)
COUNT = 200 * 1024
KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
SOON = Timeouts(connect_s=1.0)


@pytest.fixture(autouse=True)
def no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THC_KEY_FILE", raising=False)


@pytest.fixture
def write_keys(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / f"keys{len(list(tmp_path.iterdir()))}"
        path.touch(0o600)
        path.write_text(text)
        return str(path)

    return write


class KeyedServer(ParameterServer):
    def __init__(self, key_file: str, *arguments: str) -> None:
        self.metrics_port = free_tcp_port()
        super().__init__(["--key-file", key_file, "--metrics-port", str(self.metrics_port), *arguments])

    def unauthenticated(self, awaited: int) -> int:
        """Datagrams that were dropped."""
        return total(self.metrics_port, "thc_ps_io_unauthenticated_total", awaited)


@pytest.fixture
def keyed_server(request: pytest.FixtureRequest, write_keys: Callable[[str], str]) -> Iterator[KeyedServer]:
    """One packet thread, unless the test says otherwise: OnPath is the way to one port."""
    with KeyedServer(write_keys(KEY.hex()), "--threads", str(getattr(request, "param", 1))) as server:
        yield server


def expected_sums(workers: int, seed: int = 0) -> npt.NDArray[np.int64]:
    return expected_sum(CONFIG, [codes_of(worker, seed) for worker in range(workers)], COUNT)


def codes_of(worker: int, seed: int) -> npt.NDArray[np.uint8]:
    return make_codes(CONFIG, [COUNT], 100 * seed + worker)[0]


def join(
    address: str, worker: int, *, workers: int = 2, job: int = 7, key: object = KEY, **settings: object
) -> Session:
    return Session(
        [address],
        job=job,
        worker=worker,
        workers=workers,
        codes=CONFIG,
        backend=LOOPBACK,
        key=key,
        **settings,  # type: ignore[arg-type]
    )


def sums(addresses: list[str], *, seed: int = 0, key: object = KEY, **settings: object) -> list[dict[str, object]]:
    """Return the sums and the counters of each worker of a new job."""
    with ExitStack() as stack:
        joined = [
            stack.enter_context(join(address, worker, workers=len(addresses), key=key, **settings))
            for worker, address in enumerate(addresses)
        ]

        def push(worker: int) -> dict[str, object]:
            pushed = push_codes(joined[worker], 0, codes_of(worker, seed)).wait(60)
            return {"sums": pushed.aggregate.copy(), "counters": joined[worker].counters()}

        with ThreadPoolExecutor(len(joined)) as pool:
            return list(pool.map(push, range(len(joined))))


def check(results: list[dict[str, object]], seed: int = 0) -> None:
    for result in results:
        np.testing.assert_array_equal(result["sums"], expected_sums(len(results), seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("keyed_server", [2], indirect=True, ids=["two threads"])
@pytest.mark.parametrize("give", ["bytes", "file", "environment"])
def test_a_key_changes_no_sum(
    keyed_server: KeyedServer, write_keys: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, give: str
) -> None:
    key: object = KEY
    if give != "bytes":
        key = write_keys(f"# job 7\n7 {KEY.hex()}\n")
    if give == "environment":
        monkeypatch.setenv("THC_KEY_FILE", str(key))
        key = None
    check(sums([keyed_server.address] * 3, key=key))
    packets = 3 * COUNT // 1024
    assert total(keyed_server.metrics_port, "thc_ps_io_received_packets_total", awaited=packets) >= packets
    assert keyed_server.unauthenticated(0) == 0


@pytest.mark.parametrize(
    ("server_keys", "key"), [(KEY, None), (KEY, OTHER_KEY), (None, KEY)], ids=["no key", "another", "server without"]
)
def test_different_keys_end_at_the_deadline(
    write_keys: Callable[[str], str], server_keys: bytes | None, key: bytes | None
) -> None:
    arguments = [] if server_keys is None else ["--key-file", write_keys(server_keys.hex())]
    with ParameterServer(arguments) as server, pytest.raises(DeadlineError, match="has it the same key"):
        join(server.address, 0, key=key, timeouts=SOON)


def type_of(datagram: bytes) -> int:
    return datagram[1]


class Forger:
    """Sends, before each datagram, one with a flipped bit, and one of the past."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self._past: list[bytes] = []
        self.sent = 0

    def __call__(self, datagram: bytes) -> list[bytes]:
        flipped = bytearray(datagram)
        bit = self._random.randrange(8 * len(datagram))
        flipped[bit // 8] ^= 1 << bit % 8
        self._past.append(datagram)
        self.sent += 1
        return [bytes(flipped), self._random.choice(self._past), datagram]


def test_forged_and_replayed_packets_change_nothing(keyed_server: KeyedServer) -> None:
    up, down = Forger(), Forger()
    with OnPath(keyed_server.address, up, down) as attacker:
        for seed in range(3):  # later jobs see packets of earlier ones, too
            results = sums([attacker.address, keyed_server.address], seed=seed)
            check(results, seed)
            assert results[0]["counters"]["unauthenticated"] > 100  # type: ignore[index]
            assert results[1]["counters"]["unauthenticated"] == 0  # type: ignore[index]
    assert up.sent > 600
    assert keyed_server.unauthenticated(601) > 600


def change_first(message_type: MessageType, *, forged: bool) -> Callable[[bytes], list[bytes]]:
    """Flips a bit of the payload, as long as nothing was sent again. forged: and puts the checksum right."""
    changed: set[bytes] = set()

    def tamper(datagram: bytes) -> list[bytes]:
        place = datagram[16:24]  # round and slot
        if type_of(datagram) != message_type or place in changed:
            return [datagram]
        changed.add(place)
        bad = bytearray(datagram)
        bad[HEADER_BYTES + 5] ^= 4
        if forged:
            bad[HEADER_BYTES - CHECKSUM_BYTES : HEADER_BYTES] = checksum(bytes(bad))
        return [bytes(bad)]

    return tamper


@pytest.mark.parametrize(("keyed", "forged"), [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("message_type", [MessageType.CODES, MessageType.AGGREGATE])
def test_what_is_changed_on_the_way(
    write_keys: Callable[[str], str], message_type: MessageType, keyed: bool, forged: bool
) -> None:
    """The attack works on a job without a key: it would show if it did on one with a key. Damage does not."""
    arguments = ["--key-file", write_keys(KEY.hex())] if keyed else []
    with ParameterServer(arguments) as server, OnPath(server.address) as attacker:
        tamper = change_first(message_type, forged=forged)
        if message_type == MessageType.CODES:
            attacker.up = tamper
        else:
            attacker.down = tamper
        results = sums([attacker.address, server.address], key=KEY if keyed else None)
    right = [np.array_equal(result["sums"], expected_sums(2)) for result in results]  # type: ignore[arg-type]
    if keyed or not forged:
        assert right == [True, True]
    else:
        assert right == [False, message_type == MessageType.AGGREGATE]


def test_answers_to_an_earlier_process_are_not_taken_for_new_ones(keyed_server: KeyedServer) -> None:
    """A worker that starts again is shown the WELCOME of before, and then the sums of before, all with right tags."""
    with OnPath(keyed_server.address) as attacker:
        check(sums([attacker.address, keyed_server.address], seed=1), seed=1)
        old_welcomes = [datagram for datagram in attacker.seen_down if type_of(datagram) == MessageType.WELCOME]
        old_sums = {d[16:24]: d for d in attacker.seen_down if type_of(d) == MessageType.AGGREGATE}
        assert old_welcomes
        assert len(old_sums) == COUNT // 1024

        def replay(datagram: bytes) -> list[bytes]:
            if type_of(datagram) == MessageType.HELLO:
                for welcome in old_welcomes:
                    attacker.send_to_worker(welcome)
            elif type_of(datagram) == MessageType.CODES and datagram[16:24] in old_sums:
                attacker.send_to_worker(old_sums[datagram[16:24]])
            return [datagram]

        attacker.up = replay
        check(sums([attacker.address, keyed_server.address], seed=2), seed=2)


def test_the_server_answers_nobody_without_the_key(keyed_server: KeyedServer) -> None:
    """Nor does it reflect anything: HELLO, contributions and noise of all lengths."""
    ip, port = keyed_server.address.split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect((ip, int(port)))
        stranger.settimeout(0.5)
        sent = 0
        for message_type in MessageType:
            for payload in (b"", bytes(52), bytes(512)):
                header = Header(message_type=message_type, job_id=7, num_workers=2, code_bits=4, value_bits=8)
                datagram = header.pack() + payload
                for end in (b"", bytes(TAG_BYTES), tag(OTHER_KEY, datagram, up=True), tag(KEY, datagram, up=False)):
                    stranger.send(datagram + end)
                    sent += 1
        for length in range(1, 60):
            stranger.send(os.urandom(length))
        with pytest.raises(TimeoutError):
            stranger.recv(65536)
        assert keyed_server.unauthenticated(sent + 59) == sent + 59
        hello = Header(message_type=MessageType.HELLO, job_id=7, num_workers=2, code_bits=4, value_bits=8).pack()
        contribution = Header(
            message_type=MessageType.CODES, job_id=7, num_workers=2, code_bits=4, value_bits=8, payload_count=2, round=1
        ).pack() + bytes(1)
        stranger.send(hello + tag(KEY, hello, up=True))  # too short, so not answered either
        for _ in range(2):  # answers have no more bytes than all questions
            stranger.send(contribution + tag(KEY, contribution, up=True))
        stranger.settimeout(PATIENCE_S)
        answer = stranger.recv(65536)  # to a packet of an unknown job, with the key
        assert type_of(answer) == MessageType.ERROR
        assert answer[-TAG_BYTES:] == tag(KEY, answer[:-TAG_BYTES], up=False)


def test_keys_are_never_shown(write_keys: Callable[[str], str]) -> None:
    network = NetworkConfig(servers=["127.0.0.1:9"], key=KEY)
    assert repr(KEY) not in repr(network)
    assert KEY.hex() not in str(network.shared_settings(workers=2))
    for wrong in (KEY[:31], 5, "/no/such/file", write_keys(KEY.hex()[1:])):
        with pytest.raises(ConfigurationError, match="key") as caught:
            join("127.0.0.1:9", 0, key=wrong, timeouts=SOON)
        assert KEY.hex()[2:20] not in str(caught.value)
        assert repr(KEY[:8])[2:-1] not in str(caught.value)


def started(name: str, *, user: int | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Start the unit's own command with this key file; return the output of thc-ps until it is ready, or ends."""
    unit = (DEPLOYMENT / "thc-ps.service").read_text(encoding="utf-8")
    _, *arguments = shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1])  # type: ignore[index]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        config = Path(folder, "thc-ps.toml")
        settings = (DEPLOYMENT / "thc-ps.toml").read_text(encoding="utf-8")
        settings = re.sub(r"^port = .*$", "port = 0", settings, flags=re.MULTILINE)
        settings = re.sub(r"^metrics-.*$", "", settings, flags=re.MULTILINE)
        config.write_text(f'{settings}\nkey-file = "{name}"\n')
        config.chmod(0o644)
        arguments = [argument.replace("/etc/thc-ps.toml", str(config)) for argument in arguments]
        assert str(config) in arguments
        identity = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        process = subprocess.Popen(
            [*identity, shutil.copy(find_thc_ps(), folder), *arguments, "--listen", "127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        with process:
            lines = list[str]()
            for line in process.stdout or ():
                lines.append(line)
                if "ready" in line:
                    break
            process.terminate()
        return "".join(lines)


@pytest.fixture
def credentials() -> Iterator[Path]:
    """A folder that any user can reach, as systemd's and Kubernetes' are."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "thc-ps.key").write_text(KEY.hex())
        yield Path(folder)


#: A user of DynamicUser=, who has no name.
USER = 61234


@pytest.mark.skipif(os.geteuid() != 0, reason="root starts the service as another user")
def test_the_service_reads_its_credential(credentials: Path) -> None:
    """As systemd makes it: root's, 0440 (the mask of an ACL that names the user), in a folder of 0550."""
    assert "LoadCredential=thc-ps.key" in (DEPLOYMENT / "thc-ps.service").read_text(encoding="utf-8").splitlines()
    assert 'key-file = "thc-ps.key"' in (DEPLOYMENT / "thc-ps.toml").read_text(encoding="utf-8")
    key = credentials / "thc-ps.key"
    os.chown(key, 0, USER)
    key.chmod(0o440)
    os.chown(credentials, 0, USER)
    credentials.chmod(0o550)
    assert "ready" in started("thc-ps.key", user=USER, environment={"CREDENTIALS_DIRECTORY": str(credentials)})


@pytest.mark.skipif(os.geteuid() != 0, reason="root starts the service as another user")
def test_a_kubernetes_secret_is_read(credentials: Path) -> None:
    """Links to a folder of its time, root's, for the pod's fsGroup; the folder above is open, and sticky."""
    data = credentials / "..2026_11_26"
    data.mkdir()
    key = data / "key"
    (credentials / "thc-ps.key").rename(key)
    os.chown(key, 0, USER)
    key.chmod(0o440)
    (credentials / "..data").symlink_to(data.name)
    (credentials / "key").symlink_to("..data/key")
    os.chown(data, 0, USER)
    data.chmod(0o2775)
    credentials.chmod(0o1777)
    assert "ready" in started(str(credentials / "key"), user=USER)


@pytest.mark.skipif(os.geteuid() != 0, reason="root makes files of others")
@pytest.mark.parametrize(
    ("mode", "folder_mode", "owner"),
    [(0o444, 0o755, 0), (0o640, 0o777, 0), (0o660, 0o755, 0), (0o440, 0o755, USER), (0o440, 0o755, USER + 1)],
    ids=["all read", "open folder", "group writes", "own file, group reads", "a stranger's"],
)
def test_files_that_strangers_may_know_are_refused(credentials: Path, mode: int, folder_mode: int, owner: int) -> None:
    key = credentials / "thc-ps.key"
    os.chown(key, owner, USER)
    key.chmod(mode)
    credentials.chmod(folder_mode)
    said = started(str(key), user=USER)
    assert "ready" not in said
    assert "chmod 600" in said or f"belongs to user {owner}" in said
    assert KEY.hex() not in said


@pytest.mark.parametrize("given", [KEY.hex(), KEY.hex()[:40], f"7 {KEY.hex()}", f"/{KEY.hex()}"])
def test_a_key_in_the_place_of_its_file_is_not_repeated(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THC_KEY_FILE", given)
    for key in (given, None):
        with pytest.raises(ConfigurationError, match="a key was given where the name of its file") as caught:
            join("127.0.0.1:9", 0, key=key, timeouts=SOON)
        assert given[-20:] not in str(caught.value)
    said = started(given)
    assert "a key was given where the name of its file" in said
    assert KEY.hex()[:20] not in said


def test_thc_key_makes_a_key(write_keys: Callable[[str], str]) -> None:
    command = [sys.executable, "-P", "-c", "from byteps_thc._cli.cli import app; app()", "key"]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout for _ in range(2)
    )
    assert re.fullmatch(r"[0-9a-f]{64}\n", first)
    assert first != second
    with ParameterServer(["--key-file", write_keys(first)]) as server:
        check(sums([server.address], key=bytes.fromhex(first)))

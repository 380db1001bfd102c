"""Faults on a live job, for as long as asked: python lab/thc_lab/soak/soak.py --minutes 60 (make soak).

Three workers and a thc-ps on loopback, with a relay between them. Every sum is checked. After each kind of fault the
job must resume, and no process may grow. Spoiled packets are tried on a job with a key, all else on one without. Only
processes that this program started are stopped, killed, or kept from memory and disk.
"""

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from byteps_thc._base.errors import ServerRefusedError
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session, UdpConfig
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.soak.scarcity import PAGE_BYTES, is_log_full, log_to_full_disk, may_mount, no_more_memory
from thc_lab.udp_relay import RelayFaults, UdpRelay

WORKERS = 3
#: of faults, which share the time
KINDS = 11
RECOVERY_S = 90.0
#: A process may grow by so much after the first kind of fault: allocators keep pages, and sessions are opened again.
GROWTH_BYTES = 48 << 20
#: A job with so many codes in a packet needs more memory than thc-ps has at hand, whatever it has served before: 67 MB.
SLOTS, LARGE_CODES = 1024, 32768
OTHER_JOB = 3
#: A fault that this program cannot cause, and the reason.
CLOCK_STEPS = (
    "clock steps: skipped: CLOCK_REALTIME can only be stepped for the whole machine (time namespaces do not have it); "
    "tests/soak/test_clocks.py checks that no C++ source reads it"
)


class SoakError(Exception):
    """A sum was wrong, a job did not resume, or a process grew."""


class Worker:
    """A worker process and its output."""

    def __init__(self, server: str, number: int, key_file: Path | None) -> None:
        command = [sys.executable, str(Path(__file__).with_name("worker.py")), server, str(number), str(WORKERS)]
        environment = {name: value for name, value in os.environ.items() if name != "THC_KEY_FILE"}
        if key_file is not None:
            environment["THC_KEY_FILE"] = str(key_file)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.said: Counter[str] = Counter()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said[line.strip()] += 1

    @property
    def steps(self) -> int:
        """Sums that it has checked."""
        return self.said["step"]

    def end(self) -> None:
        """Kill the process, if it runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


class Soak:
    """The job, and the faults. directory: of its own. keyed: the job has a key."""

    def __init__(self, directory: Path, *, keyed: bool, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.key_file = directory / "key" if keyed else None
        if self.key_file is not None:
            self.key_file.touch(0o600)
            self.key_file.write_text(secrets.token_hex(32))
        self.server = self._start_server(0)
        self.port = int(self.server.address.rpartition(":")[2])
        self.relay = UdpRelay(self.server.address, seed=seed)
        self.workers = [self._start_worker(number) for number in range(WORKERS)]
        self.steps = self.errors = 0

    def _start_server(self, port: int, prefix: Sequence[str] = ()) -> ParameterServer:
        key = [] if self.key_file is None else ["--key-file", str(self.key_file)]
        return ParameterServer(["--slots", str(SLOTS), *key], prefix=prefix, port=port, stop_timeout_s=0)

    def _start_worker(self, number: int) -> Worker:
        return Worker(self.relay.address, number, self.key_file)

    def close(self) -> None:
        """End all that was started."""
        for worker in self.workers:
            worker.end()
        self.relay.close()
        self.server.stop()

    def lose(self) -> None:
        """Lose one datagram in twenty."""
        self.relay.faults = RelayFaults(drop=0.05)

    def double(self) -> None:
        """Send one datagram in five twice."""
        self.relay.faults = RelayFaults(duplicate=0.2)

    def reorder(self) -> None:
        """Hold back one datagram in four."""
        self.relay.faults = RelayFaults(reorder=0.25)

    def stop_worker(self) -> None:
        """Stop a worker for some seconds."""
        self._stop(self.random.choice(self.workers).process)

    def kill_worker(self) -> None:
        """Kill a worker, and start another one in its place."""
        number = self.random.randrange(WORKERS)
        self._count(self.workers[number])
        self.workers[number].end()
        self.workers[number] = self._start_worker(number)

    def stop_server(self) -> None:
        """Stop thc-ps for some seconds."""
        self._stop(self.server.process)

    def kill_server(self) -> None:
        """Kill thc-ps, and start another one in its place."""
        self._replace_server()

    def corrupt(self) -> None:
        """A bit in a tenth of all datagrams; the relay's checksums are right again."""
        before = self.relay.counters["corrupt"]
        self.relay.faults = RelayFaults(corrupt=0.1)
        self._wait_for(lambda: self.relay.counters["corrupt"] >= before + 10, "no datagram was spoiled")

    def fill_log_disk(self) -> None:
        """thc-ps logs to a full disk."""
        self._replace_server(log_to_full_disk(self.directory))
        pid = self.server.process.pid
        self._wait_for(lambda: self._join_other(64) and is_log_full(pid, self.directory), "the log was not full")

    def refuse_memory(self) -> None:
        """thc-ps has no memory for another job, and refuses it; with memory it would not."""
        with no_more_memory(self.server.process.pid):
            if self._join_other(LARGE_CODES):
                raise SoakError("thc-ps took a job that it had no memory for")
            for codes in (512, 64):  # may find room in memory that thc-ps has already
                self._join_other(codes)
            time.sleep(1.1)  # thc-ps writes its log every second
        self._wait_for(lambda: self._join_other(LARGE_CODES), "thc-ps refused a job that it has memory for")

    def _join_other(self, codes_per_packet: int) -> bool:
        """Open and close a job of one worker; False when thc-ps says that it takes no more jobs."""
        codes, backend = ServerCodes(codes_per_packet=codes_per_packet), UdpConfig("127.0.0.1:0")
        try:
            Session(
                [self.server.address],
                job=OTHER_JOB,
                worker=0,
                workers=1,
                codes=codes,
                backend=backend,
                key=None if self.key_file is None else str(self.key_file),
            ).close()
        except ServerRefusedError as error:
            if "takes no more jobs" not in str(error):
                raise
            return False
        return True

    def _wait_for(self, is_so: Callable[[], bool], otherwise: str) -> None:
        end = time.monotonic() + RECOVERY_S
        while not is_so():
            self.check()
            if time.monotonic() > end:
                raise SoakError(otherwise)
            time.sleep(0.05)

    def _replace_server(self, prefix: Sequence[str] = ()) -> None:
        self.server.process.send_signal(signal.SIGKILL)
        self.server.stop()
        self.server = self._start_server(self.port, prefix)

    def _stop(self, process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.1, 3))
        process.send_signal(signal.SIGCONT)

    def _count(self, worker: Worker) -> None:
        self.steps += worker.steps
        self.errors += sum(count for line, count in worker.said.items() if line.startswith("error"))

    def check(self) -> None:
        """No sum was wrong, and nothing ended by itself."""
        for number, worker in enumerate(self.workers):
            if worker.process.poll() is not None:
                raise SoakError(f"worker {number} ended with {worker.process.returncode}: {dict(worker.said)}")
        if self.server.process.poll() is not None:
            raise SoakError(f"thc-ps ended with {self.server.process.returncode}")
        if self.relay.failure is not None:
            raise SoakError(f"the relay failed: {self.relay.failure!r}")

    def recover(self) -> float:
        """Wait until every worker has new sums; return the seconds it took."""
        self.relay.faults = RelayFaults()
        before = [worker.steps for worker in self.workers]
        began = time.monotonic()
        while any(worker.steps < steps + 3 for worker, steps in zip(self.workers, before, strict=True)):
            self.check()
            if time.monotonic() - began > RECOVERY_S:
                raise SoakError(f"no new sums within {RECOVERY_S:g} s")
            time.sleep(0.05)
        return time.monotonic() - began

    def memory(self) -> dict[int, int]:
        """Resident bytes by process."""
        processes = [self.server.process.pid, *(worker.process.pid for worker in self.workers)]
        return {pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES for pid in processes}

    def run(self, name: str, fault: Callable[[], None], seconds: float) -> None:
        """Repeat a fault for a while, recover, and report."""
        end, times = time.monotonic() + seconds, 0
        steps, errors = self._totals()
        before = self.memory()
        slowest_s = 0.0
        while times == 0 or time.monotonic() < end:
            fault()
            times += 1
            time.sleep(min(2.0, max(0.0, end - time.monotonic())))
            slowest_s = max(slowest_s, self.recover())
        after = self.memory()
        grown = max((after[pid] - before[pid] for pid in after.keys() & before.keys()), default=0)
        new_steps, new_errors = self._totals()
        print(
            f"{name:14} {times:4} times, {new_steps - steps:7} sums right, {new_errors - errors:4} errors told, "
            f"recovered in {slowest_s:.1f} s at most, grown by {grown >> 10} KiB",
            flush=True,
        )
        if grown > GROWTH_BYTES:
            raise SoakError(f"a process has grown by {grown >> 20} MiB during {name}")

    def _totals(self) -> tuple[int, int]:
        steps, errors = self.steps, self.errors
        for worker in self.workers:
            steps += worker.steps
            errors += sum(count for line, count in worker.said.items() if line.startswith("error"))
        return steps, errors


def soak_without_key(soak: Soak, seconds: float) -> None:
    """Run all faults, each for so long."""
    faults = {
        "loss": soak.lose,
        "duplication": soak.double,
        "reordering": soak.reorder,
        "corruption": soak.corrupt,
        "worker stopped": soak.stop_worker,
        "worker killed": soak.kill_worker,
        "server stopped": soak.stop_server,
        "server killed": soak.kill_server,
        "out of memory": soak.refuse_memory,
        "full disk": soak.fill_log_disk,
    }
    for name, fault in faults.items():
        if name == "full disk" and not may_mount():
            print("full disk: skipped: this user may not mount a tmpfs with unshare --user --mount")
        else:
            soak.run(name, fault, seconds)


def main() -> None:
    """Run all faults on two jobs, one with a key."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    seconds = 60 * options.minutes / KINDS
    for keyed in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            soak = Soak(Path(directory), keyed=keyed, seed=options.seed)
            try:
                soak.recover()
                if keyed:
                    soak.run("corruption", soak.corrupt, seconds)
                else:
                    soak_without_key(soak, seconds)
            except SoakError as error:
                sys.exit(f"soak: {error}")
            finally:
                soak.close()
    print(CLOCK_STEPS)


if __name__ == "__main__":
    main()

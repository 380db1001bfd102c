"""Faults on a live job, for as long as asked: python tests/soak/soak.py --minutes 60 (make soak).

Three workers and a thc-ps on loopback, with a relay between them. Every sum is checked; after each kind of fault the
job must go on, and no process may grow. Only processes that this program started are stopped or killed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "lib"))

from udp_relay import RelayFaults, UdpRelay

from byteps_thc.tools.launch import ParameterServer

WORKERS = 3
RECOVERY_S = 90.0
#: A process may grow by so much after the first kind of fault: allocators keep pages, and sessions are opened again.
GROWTH_BYTES = 48 << 20
#: What this program cannot do, and why.
NOT_HERE = {
    "corruption": "a relay sends spoiled datagrams with a good checksum; without a key the protocol has no other",
    "full disk, out of memory": "not written yet",
    "clock steps": "would step the clock of this machine; time namespaces shift only the clocks that thc-ps uses",
}


class SoakError(Exception):
    """A sum was wrong, a job did not go on, or a process grew."""


class Worker:
    """A worker process and what it says."""

    def __init__(self, server: str, number: int) -> None:
        command = [sys.executable, str(Path(__file__).with_name("worker.py")), server, str(number), str(WORKERS)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.said: Counter[str] = Counter()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said[line.strip()] += 1

    @property
    def steps(self) -> int:
        return self.said["step"]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


class Soak:
    """The job, and the faults."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.server = ParameterServer(stop_timeout_s=0)
        self.port = int(self.server.address.rpartition(":")[2])
        self.relay = UdpRelay(self.server.address, seed=seed)
        self.workers = [Worker(self.relay.address, number) for number in range(WORKERS)]
        self.steps = self.errors = 0

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        self.relay.close()
        self.server.stop()

    def lose(self) -> None:
        self.relay.faults = RelayFaults(drop=0.05)

    def double(self) -> None:
        self.relay.faults = RelayFaults(duplicate=0.2)

    def reorder(self) -> None:
        self.relay.faults = RelayFaults(reorder=0.25)

    def stop_worker(self) -> None:
        self._stop(self.random.choice(self.workers).process)

    def kill_worker(self) -> None:
        number = self.random.randrange(WORKERS)
        self._count(self.workers[number])
        self.workers[number].end()
        self.workers[number] = Worker(self.relay.address, number)

    def stop_server(self) -> None:
        self._stop(self.server.process)

    def kill_server(self) -> None:
        self.server.process.send_signal(signal.SIGKILL)
        self.server.stop()
        self.server = ParameterServer(port=self.port, stop_timeout_s=0)

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
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        return {pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page_bytes for pid in processes}

    def run(self, name: str, fault: Callable[[], None], seconds: float) -> None:
        """Repeat a fault for a while, recover, and say what happened."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    soak = Soak(options.seed)
    faults = {
        "loss": soak.lose,
        "duplication": soak.double,
        "reordering": soak.reorder,
        "worker stopped": soak.stop_worker,
        "worker killed": soak.kill_worker,
        "server stopped": soak.stop_server,
        "server killed": soak.kill_server,
    }
    try:
        soak.recover()
        for name, fault in faults.items():
            soak.run(name, fault, 60 * options.minutes / len(faults))
    except SoakError as error:
        sys.exit(f"soak: {error}")
    finally:
        soak.close()
    for name, reason in NOT_HERE.items():
        print(f"{name}: skipped: {reason}")


if __name__ == "__main__":
    main()

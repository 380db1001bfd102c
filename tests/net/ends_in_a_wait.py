"""A process that ends with exit code 3 while a thread of the package waits in C++: python ends_in_a_wait.py WAIT.

The wait is over while Python ends, for which that takes some seconds. WAIT is one of WAITS.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from datetime import timedelta

#: From the end of the script to that of the waits; later than the joins.
LATE_S = 4.0
_STORE = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
print(store.port, flush=True)
sys.stdin.read()
"""


class PythonsEnd:
    """Python's end, in which `then` is called."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self._then, self._sleep = then, time.sleep

    def __del__(self) -> None:
        self._then()
        self._sleep(LATE_S + 1.0)


def in_thread(call: Callable[[], object]) -> None:
    def quiet() -> None:
        try:
            call()
        except Exception as error:
            print("over before the end:", error, flush=True)

    threading.Thread(target=quiet, daemon=True).start()
    time.sleep(0.5)


def watch() -> PythonsEnd:
    """A server does not answer the question of thc-watch."""
    from byteps_thc import ThcConfig
    from byteps_thc._net.ending import close_at_exit
    from byteps_thc._net.failover.watch import Presences, Watch
    from byteps_thc._net.session import Session

    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    asks, presences = threading.Event(), Presences([address])
    settings = {
        "servers": [address],
        "job": 1,
        "worker": 0,
        "workers": 2,
        "config": ThcConfig(),
        "codes_per_packet": 256,
    }
    nothing = dict.fromkeys(("quorum", "run", "timeouts", "backend", "key"))
    inquire = Session.inquiry(types.SimpleNamespace(**settings, **nothing, loss_tolerant=False))  # type: ignore[arg-type]

    def ask() -> None:
        asks.set()
        inquire(LATE_S)

    presences.take(["silent"])
    watch = Watch(presences, ask, lambda: None, lambda: None)
    close_at_exit(watch.close)
    globals()["kept"] = silent, watch
    asks.wait()
    return PythonsEnd()


def store() -> PythonsEnd:
    """The process of the store stands still."""
    from torch.distributed import TCPStore

    from byteps_thc._net.failover.agreement import Agreement

    host = subprocess.Popen([sys.executable, "-c", _STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert host.stdout is not None
    port = int(host.stdout.readline())
    there = TCPStore("127.0.0.1", port, timeout=timedelta(seconds=60))
    agreement = Agreement(there, 0, 1, threading.Event())
    os.kill(host.pid, signal.SIGSTOP)
    in_thread(lambda: agreement.asked(1))
    globals()["kept"] = host, there
    wake, number, pid = os.kill, signal.SIGCONT, host.pid
    return PythonsEnd(lambda: wake(pid, number))


def stages() -> PythonsEnd:
    """The other rank sends nothing."""
    import torch
    import torch.distributed as dist

    from byteps_thc import CompressionPolicy, ThcReducer

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    reducer = ThcReducer(levels="flat", policy=CompressionPolicy(deadline_s=LATE_S))
    if rank == 0:
        globals()["kept"] = reducer, reducer.all_reduce({"weight": torch.ones(50_000)}, async_op=True)
        time.sleep(0.5)
    else:
        time.sleep(LATE_S + 2.0)
    return PythonsEnd()


def connect() -> PythonsEnd:
    """The other rank does not connect."""
    from byteps_thc._net.store import connect_groups

    class Questions:
        """Nobody is where rank 1 says it is."""

        def gather(self, told: bytes) -> list[bytes]:
            return [told, told.replace(b"0", b"1", 1)]

        def refuse(self, reason: str) -> None:
            pass

    in_thread(lambda: connect_groups(Questions(), 0, 2, LATE_S, 1))  # type: ignore[arg-type]
    return PythonsEnd()


WAITS = {wait.__name__: wait for wait in (watch, store, stages, connect)}

if __name__ == "__main__":
    ending = WAITS[sys.argv[1]]()
    print("the end", flush=True)
    sys.exit(3)

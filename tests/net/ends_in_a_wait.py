"""Exits with 3 while a thread of the package waits in C++ and takes seconds to end: python ends_in_a_wait.py WAIT."""

import os
import socket
import sys
import threading
import time
import types

#: Time from the end of the script to the end of the waits; later than the joins.
LATE_S = 4.0


class PythonsEnd:
    """Takes time in Python's end. Names of the module may be None by then."""

    def __init__(self) -> None:
        self._sleep, self._seconds = time.sleep, LATE_S + 1.0

    def __del__(self) -> None:
        self._sleep(self._seconds)


def watch() -> PythonsEnd:
    """A server does not answer the question of thc-watch."""
    from byteps_thc import ServerCodes
    from byteps_thc._net.ending import close_at_exit
    from byteps_thc._net.failover.watch import Presences, Watch
    from byteps_thc._net.session import Session

    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    asks, presences = threading.Event(), Presences([address])
    settings = {
        "servers": [address],
        "addresses": [address],
        "job": 1,
        "worker": 0,
        "workers": 2,
        "codes": ServerCodes(),
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


if __name__ == "__main__":
    ending = {"watch": watch, "stages": stages}[sys.argv[1]]()
    print("the end", flush=True)
    sys.exit(3)

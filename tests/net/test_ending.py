"""An object ends its resources once: when it is closed, when it is collected, or at exit."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
from free_ports import free_tcp_port
from torch import Tensor
from torch.futures import Future

from byteps_thc._base.errors import DeadlineError, TransportError
from byteps_thc._engine.in_flight import InFlight
from byteps_thc._net.ending import Ending, collect_forgotten


class Owner:
    """Reports the thread that ends its resources."""

    def __init__(self, ended: list[int]) -> None:
        self.me = self  # a reference cycle, as DDP has
        self.ending = Ending(self, lambda: ended.append(threading.get_ident()))


def test_close_ends_once_and_here() -> None:
    ended: list[int] = []
    owner = Owner(ended)
    owner.ending.close()
    owner.ending.close()
    del owner
    collect_forgotten()
    assert ended == [threading.get_ident()]


def test_a_forgotten_object_ends_in_a_thread_of_its_own() -> None:
    ended: list[int] = []
    Owner(ended)
    collect_forgotten()  # waits for the end
    assert len(ended) == 1
    assert ended != [threading.get_ident()]


def test_a_forked_child_leaves_it_to_its_parent() -> None:
    ended: list[int] = []
    owner = Owner(ended)
    child = os.fork()
    if child == 0:
        owner.ending.close()
        del owner
        collect_forgotten()
        os._exit(len(ended))
    assert os.waitpid(child, 0)[1] == 0
    owner.ending.close()
    assert len(ended) == 1


AT_EXIT = """
import time
from datetime import timedelta
from functools import partial
from torch.distributed import DistStoreError, HashStore
from byteps_thc._net.ending import Ending

class Owner:
    pass

class Held:
    def __del__(self):
        time.sleep(0.3)
        print("held", flush=True)

def slow(name, seconds, held=None):
    try:
        HashStore().wait(["never"], timedelta(seconds=seconds))  # in C++, without the interpreter
    except DistStoreError:
        print(name, flush=True)

first, second, left = Owner(), Owner(), Owner()
Ending(first, lambda: print("first", flush=True))
Ending(left, lambda: print("left", flush=True), at_exit=False)
Ending(second, lambda: print("second", flush=True))
Ending(Owner(), partial(slow, "forgotten", 0.5))
Ending(Owner(), partial(slow, "in stream", 1.0, Held()), at_exit=False)
"""


def test_python_ends_the_newest_first_and_waits_for_one_under_way() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines() == ["forgotten", "in stream", "held", "second", "first"]


def processes_that_end(wait: str) -> None:
    """Run the ranks of ends_in_a_wait.py, and check how they end."""
    ranks = 2 if wait == "stages" else 1
    variables = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_tcp_port())}
    started = [
        subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("ends_in_a_wait.py")), wait],
            env=os.environ | variables | {"RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]
    try:
        for process in started:
            out, errors = process.communicate(timeout=120)
            assert (process.returncode, out) == (3, "the end\n"), errors
            assert "terminate called" not in errors
            assert "Fatal Python error" not in errors
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_process_ends_with_its_exit_code_while_a_thread_waits() -> None:
    processes_that_end("watch")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wait", ["watch", "stages"])
def test_a_process_ends_with_its_exit_code_in_each_wait(wait: str) -> None:
    for _ in range(5):
        processes_that_end(wait)


@pytest.mark.parametrize("error", [TransportError("lost"), DeadlineError("late", slot=3), RuntimeError("of torch's")])
def test_an_error_keeps_no_callers_alive(error: Exception) -> None:
    class Model:
        pass

    def wait() -> weakref.ref[Model]:
        model, future = Model(), Future[Tensor]()
        in_flight.begin("key", future)
        in_flight.fail(error)
        with pytest.raises(type(error), match=str(error)) as raised:
            future.wait()
        assert vars(raised.value) == vars(error)
        return weakref.ref(model)

    in_flight = InFlight()
    model = wait()
    gc.collect()
    assert model() is None

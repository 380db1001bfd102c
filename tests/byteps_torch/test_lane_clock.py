"""Lanes share the CPUs: the lane needed first goes ahead of those that wait."""

import threading
import time

from byteps_thc._engine.work_clock import WorkClock
from byteps_thc.torch.lanes.clock import LaneClock, PrioritySemaphore


def test_the_lowest_lane_goes_first():
    cpus = PrioritySemaphore(3, slots=1)
    order = []

    def work(lane):
        with cpus.slot(lane):
            order.append(lane)

    threads = []
    with cpus.slot(2):
        for lane in (2, 1, 2, 0, 1):
            threads.append(threading.Thread(target=work, args=(lane,)))
            threads[-1].start()
        while sum(cpus._waiting) < 5:
            time.sleep(1e-3)
    for thread in threads:
        thread.join(timeout=10)
    assert order == [0, 1, 1, 2, 2]


def test_a_higher_lane_takes_the_slot_that_a_lower_one_leaves_free():
    """Two slots become free at once: both lanes work, whichever of them looks first."""
    cpus = PrioritySemaphore(2, slots=2)
    both = threading.Barrier(2)

    def work(lane):
        with cpus.slot(lane):
            both.wait(timeout=10)

    for _ in range(50):
        threads = [threading.Thread(target=work, args=(lane,)) for lane in (1, 0)]
        with cpus._changed:  # nobody looks before both slots are free
            cpus._free = 0
            for thread in threads:
                thread.start()
        while sum(cpus._waiting) < 2:
            time.sleep(1e-4)
        with cpus._changed:
            cpus._free = 2
            cpus._changed.notify_all()
        for thread in threads:
            thread.join(timeout=10)
        assert not both.broken


def test_as_many_work_as_there_are_slots():
    cpus = PrioritySemaphore(1, slots=2)
    both = threading.Barrier(2, timeout=10)
    most = []

    def work():
        with cpus.slot(0):
            both.wait()  # needs a second thread inside
            most.append(2 - cpus._free)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert most
    assert max(most) <= 2


def test_lanes_share_the_time():
    shared = WorkClock()
    first, second = (LaneClock(shared, PrioritySemaphore(2), lane) for lane in range(2))
    start = time.perf_counter()
    first.buffers(+1)
    second.buffers(+1)
    time.sleep(0.02)
    with first.working():
        time.sleep(0.05)
    first.buffers(-1)
    second.buffers(-1)
    wall_ms = (time.perf_counter() - start) * 1e3
    idle_ms = second.take_idle_ms()
    assert 20 <= idle_ms <= wall_ms - 50  # the working time of lane 0 is not idle time of lane 1
    assert first.take_idle_ms() == 0  # and nobody counts it twice

"""Average 16 MiB of fp32 gradient over 4 worker processes: THC through one thc-ps against gloo all-reduces.

The same processes, tensors and loopback; the three take turns; encode and decode are inside the THC time and the cast
inside the bf16 time. One measurement is the slowest worker's time from a common barrier.

    python evaluation/benchmarks/bench_push_pull.py [--codes-per-packet 1024]
"""

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ratio import at_least, report

from byteps_thc import Compressor, ServerCodes
from byteps_thc._base.limits import default_threads
from byteps_thc._cli.launch import ParameterServer
from byteps_thc._engine.adding.averager import GradientAverager
from byteps_thc._net.session import Session


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def slowest_us(call: Callable[[], object]) -> float:
    """Time of `call` on the slowest worker, microseconds."""
    dist.barrier()
    start = time.perf_counter_ns()
    call()
    elapsed = torch.tensor([(time.perf_counter_ns() - start) / 1e3])
    dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
    return float(elapsed.item())


def worker(rank: int, args: argparse.Namespace, server: str, port: int, results: Any) -> None:
    """One worker process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.workers)
    gradient = torch.from_numpy(np.random.default_rng(rank).standard_normal(args.coordinates, np.float32))
    out = torch.empty_like(gradient)

    def gloo_fp32() -> None:
        out.copy_(gradient)
        dist.all_reduce(out)
        out.div_(args.workers)

    def gloo_bf16() -> None:
        half = gradient.to(torch.bfloat16)
        dist.all_reduce(half)
        torch.div(half, args.workers, out=out)

    codes = ServerCodes(codes_per_packet=args.codes_per_packet)
    compressor = Compressor(codes, workers=args.workers, worker=rank, threads=default_threads(args.workers))
    with Session([server], job=1, worker=rank, workers=args.workers, codes=codes) as session:
        averager = GradientAverager(session, compressor)
        flat, average = gradient.numpy(), out.numpy()

        def thc() -> None:
            averager.average({"gradient": flat}, out={"gradient": average})

        calls = {"thc": thc, "gloo_fp32": gloo_fp32, "gloo_bf16": gloo_bf16}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for repeat in range(args.repeats + 3):
            for name, call in calls.items():
                elapsed = slowest_us(call)
                if repeat >= 3:
                    times[name].append(elapsed)
        if rank == 0:
            print(f"last {averager.statistics()}")
            print(f"codes per packet {session.codes_per_packet}, counters {session.counters()}")
            results.put({name: statistics.median(values) for name, values in times.items()})
    dist.destroy_process_group()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--coordinates", type=int, default=4 << 20)
    parser.add_argument("--codes-per-packet", type=lambda s: s if s == "auto" else int(s), default="auto")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    with ParameterServer() as server:
        mp.spawn(worker, args=(args, server.address, free_port(), results), nprocs=args.workers)
    us = results.get()
    what = f"push_pull {args.coordinates * 4 >> 20} MiB, {args.workers} workers"
    rows = [
        at_least(what, us["thc"], "gloo all-reduce fp32", us["gloo_fp32"], 2),
        at_least(what, us["thc"], "gloo all-reduce bf16", us["gloo_bf16"], 1.3),
    ]
    report(rows, args.json)


if __name__ == "__main__":
    main()

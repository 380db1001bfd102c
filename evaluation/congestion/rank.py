"""A rank on a host of its own: averages named tensors by ThcReducer with servers, among the ranks, or in bf16.

Ranks meet at rank 0's host over eth0, as torchrun's do; the settings are the defaults.
"""

import argparse
import datetime
import logging
import os
import resource
import time
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from byteps_thc import NetworkConfig, ThcReducer
from byteps_thc._base.errors import DeadlineError
from byteps_thc._net.session import Session
from congestion.control import Words, serve, wait_until
from thc_lab.namespaces import inside

TENSORS = 20
_PORT = 29500
_TIMEOUT = datetime.timedelta(seconds=600)

_opened: list[Session] = []


class ObservedNetwork(NetworkConfig):
    """Keeps the sessions, failover's too, for their counters."""

    def open_session(self, worker: int, workers: int, deadline_s: float) -> Session:
        session = super().open_session(worker, workers, deadline_s)
        _opened.append(session)
        return session


class Rank:
    """Carries out commands; one scheme is open at a time."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._given: dict[str, torch.Tensor] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._reducer: ThcReducer | None = None

    def open(self, words: Words) -> Words:
        """servers: None among the ranks. parameters, scheme ("thc" or "bf16"), job."""
        each = int(words["parameters"]) // TENSORS
        random = torch.Generator().manual_seed(self._rank)
        self._given = {f"w{i}": torch.randn(each, generator=random) for i in range(TENSORS)}
        self._tensors = {name: tensor.clone() for name, tensor in self._given.items()}
        _opened.clear()
        start = time.monotonic()
        if words["scheme"] == "thc":
            servers = words["servers"]
            network = None if servers is None else ObservedNetwork(servers, job=words["job"])
            self._reducer = ThcReducer(network)
        return {"seconds": time.monotonic() - start, **self._counts()}

    def average(self, words: Words) -> Words:
        """begin_s: the start. limit_s: the longest time; a late average is aborted, with its counters."""
        for name, tensor in self._given.items():
            self._tensors[name].copy_(tensor)
        wait_until(words["begin_s"])
        if self._reducer is not None:
            try:
                self._reducer.all_reduce(self._tensors, async_op=True).wait(
                    datetime.timedelta(seconds=words["limit_s"])
                )
            except DeadlineError:
                return {"late": True, **self._counts()}
        else:
            flat = torch.cat(list(self._tensors.values())).bfloat16()
            dist.all_reduce(flat)
            self._tensors["w0"].copy_(flat[: self._tensors["w0"].numel()])
        end_s = time.monotonic()
        average = zlib.crc32(self._tensors["w0"].numpy().tobytes())
        return {"ends_s": [end_s], "average": average, **self._counts()}

    def close(self, _: Words) -> Words:
        """Leave the servers."""
        if self._reducer is not None:
            self._reducer.close()
        self._reducer = None
        self._given, self._tensors = {}, {}
        return {}

    def _counts(self) -> dict[str, Any]:
        """Since open()."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        counts = {"cpu_s": used.ru_utime + used.ru_stime}
        if self._reducer is None or not _opened:
            return counts
        counters = [session.counters() for session in _opened]
        sums = {name: sum(each[name] for each in counters) for name in counters[0]}
        stats = self._reducer.compression_stats()
        return counts | {
            "packets": sums["codes_sent"] + sums["norm_sent"],
            "repeated": sums["retransmissions"],
            "rejoins": sums["rejoins"],
            "moves": stats.server_moves,
            "codes_per_packet": _opened[0].codes_per_packet,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--first", required=True, help="IP of rank 0's host")
    parser.add_argument("--control", type=Path, required=True)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.set_num_threads(1)
    with inside(args.namespace):
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{args.first}:{_PORT}",
            rank=args.rank,
            world_size=args.ranks,
            timeout=_TIMEOUT,
        )
        rank = Rank(args.rank)
        serve(args.control, args.rank, {"open": rank.open, "average": rank.average, "close": rank.close})
    os._exit(0)  # without the barriers at a process group's end: the other ranks may be gone


if __name__ == "__main__":
    main()

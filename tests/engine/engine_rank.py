"""A rank that averages buffers with an engine, in all the cases of the test.

settings: {"cases": [{"name", "thc", "policy", "sizes": parameter sizes of every buffer, "dtype", "steps",
"network": NetworkConfig, or none for the collective engine; "kernels": of every rank, with a network, where "device"
means CPU tensors, too; "faults": arguments of packet_faults}]}. Reports for every case the averages of every step, and
after the last one residuals, statistics, and how much memory for messages was not returned.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from gradients import buffers_of, gradient_of
from host_device_compressor import take_cpu_for_device
from torch import Tensor

from byteps_thc import ServerCodes
from byteps_thc._engine.engine import Engine
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net.rank_messages import RankMessages
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._scheme.decoding.settings import RankCodes
from thc_lab.packet_faults import packet_faults
from thc_lab.ranks import Rank, default_group, joined_rank


def scheme_of(case: dict[str, Any]) -> RankCodes | NetworkConfig:
    if "network" in case:
        return NetworkConfig(**case["network"], codes=ServerCodes(**case["thc"]))
    return RankCodes(**case["thc"])


def engine_of(case: dict[str, Any], group: dist.ProcessGroup) -> Engine:
    policy = CompressionPolicy(**case["policy"])
    if "kernels" in case:
        take_cpu_for_device()
        policy = policy.model_copy(update={"kernels": case["kernels"][group.rank()]})
    with packet_faults(**case["faults"]) if "faults" in case else nullcontext():
        return flat_engine(group, scheme_of(case), policy)


@contextmanager
def lent_memory() -> Iterator[set[int]]:
    """The addresses of the memory for messages that is lent."""
    lent: set[int] = set()
    take, give_back = RankMessages.take, RankMessages.give_back

    def noted_take(self: RankMessages, size_bytes: int) -> Tensor:
        memory = take(self, size_bytes)
        lent.add(memory.data_ptr())
        return memory

    def noted_give_back(self: RankMessages, memory: Tensor) -> None:
        lent.remove(memory.data_ptr())
        give_back(self, memory)

    with patch.multiple(RankMessages, take=noted_take, give_back=noted_give_back):
        yield lent


def run_case(rank: Rank, case: dict[str, Any]) -> dict[str, Any]:
    engine = engine_of(case, default_group())
    averages = []
    with lent_memory() as lent:
        for step in range(case["steps"]):
            engine.start_step()
            gradients = [
                gradient_of(case, rank=rank.rank, step=step, number=number) for number in range(len(case["sizes"]))
            ]
            futures = [engine.all_reduce(buffer) for buffer in buffers_of(case, gradients)]
            for future, gradient in zip(futures, gradients, strict=True):
                assert future.wait().data_ptr() == gradient.data_ptr(), "not in place"
            averages.append(gradients)
        stats = engine.statistics()
        state = engine.state_dict()
        engine.close()
    return {
        "averages": averages,
        "residuals": state.get("residuals", {}),
        "sent_bytes": stats.sent_bytes,
        "received_bytes": stats.received_bytes,
        "ratio": stats.ratio,
        "nmse": stats.nmse,
        "residual_norm": stats.residual_norm,
        "retransmissions": stats.retransmissions,
        "times_ms": [stats.encode_ms, stats.communicate_ms, stats.decode_ms],
        "lent": len(lent),
        "copied": [stats.to_host_bytes, stats.to_device_bytes],
    }


with joined_rank() as rank:
    rank.report({case["name"]: run_case(rank, case) for case in rank.settings["cases"]})

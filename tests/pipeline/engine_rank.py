"""A rank that averages buffers with an engine, in all the cases of the test.

settings: {"cases": [{"name", "thc", "policy", "sizes": parameter sizes of every buffer, "dtype", "steps",
"network": NetworkConfig, or none for the collective engine; "kernels": of every rank, with a network, where "device"
means CPU tensors, too; "faults": FaultConfig}]}.
Reports for every case the averages of every step, and the residuals and statistics after the last one.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from gradients import buffers_of, gradient_of
from host_device_compressor import take_cpu_for_device
from ranks import Rank, joined_rank

from byteps_thc import ThcConfig
from byteps_thc.engines import make_engine
from byteps_thc.pipeline.engine import Engine
from byteps_thc.pipeline.policy import CompressionPolicy
from byteps_thc.transport.servers import NetworkConfig
from byteps_thc.transport.session import FaultConfig


def network_of(case: dict[str, Any]) -> NetworkConfig | None:
    if "network" not in case:
        return None
    faults = FaultConfig(**case["faults"]) if "faults" in case else None
    return NetworkConfig(**case["network"], faults=faults)


def engine_of(case: dict[str, Any], group: dist.ProcessGroup) -> Engine:
    config, policy = ThcConfig(**case["thc"]), CompressionPolicy(**case["policy"])
    if "kernels" in case:
        take_cpu_for_device()
        policy = policy.model_copy(update={"kernels": case["kernels"][group.rank()]})
    return make_engine(group, config, policy, network_of(case))


def run_case(rank: Rank, case: dict[str, Any]) -> dict[str, Any]:
    group = dist.group.WORLD
    assert group is not None
    engine = engine_of(case, group)
    averages = []
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
        "copied": [stats.to_host_bytes, stats.to_device_bytes],
    }


def main() -> None:
    with joined_rank() as rank:
        rank.report({case["name"]: run_case(rank, case) for case in rank.settings["cases"]})


if __name__ == "__main__":
    main()

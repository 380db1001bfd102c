"""One DDP rank of loss_and_stragglers.py: small trainings through a thc-ps whose packets get lost, or with a quorum."""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from trainings.replicas import replica_of

from byteps_thc import CompressionPolicy, NetworkConfig, ParameterSynchronizer, ServerCodes, Timeouts
from byteps_thc.ddp import compress
from thc_lab.packet_faults import packet_faults
from thc_lab.ranks import Rank, joined_rank


def train(rank: Rank, seed: int, job: int, lost: float, quorum: int | None) -> dict[str, Any]:
    """lost: share of datagrams. The same seed begins with the same model and has the same batches as replica_of()."""
    settings = rank.settings
    small = replica_of("MLP", rank.ranks, settings["steps"], "SGD", seed, rank.rank)
    training = small.training
    ddp = DistributedDataParallel(training.model)
    network = NetworkConfig(
        settings["servers"],
        job=job,
        loss_tolerant=lost > 0,
        quorum=quorum,
        timeouts=Timeouts(loss_s=0.1, operation_s=120),
        codes=ServerCodes(**settings["codes"]),
    )
    # Nothing travels beside the servers, where it would not be lost.
    policy = CompressionPolicy(bypass_elements=0)
    with packet_faults(drop=lost, seed=100 * seed + 1):
        state = compress(ddp, network=network, policy=policy)
    every = settings["synchronize_every"]
    synchronizer = ParameterSynchronizer(ddp, training.optimizer, compression=state, synchronize_every=every)
    for _ in range(training.steps):
        ddp.zero_grad()
        training.loss(ddp, *next(training.batches[0])).backward()
        training.update(torch.cat([part.grad.flatten() for part in training.parameters]))
        synchronizer.step()
    stats = state.compression_stats()
    state.close()
    assert small.accuracies is not None
    own = torch.tensor([*small.accuracies(), stats.missing_contributions / max(stats.expected_contributions, 1)])
    dist.all_reduce(own)
    trained, held_out, missing = (own / rank.ranks).tolist()
    return {"training": trained, "held_out": held_out, "missing": missing}


def main() -> None:
    with joined_rank(timeout_s=600) as rank:
        found: list[dict[str, Any]] = []
        for seed in rank.settings["seeds"]:
            for name, lost, quorum in rank.settings["cases"]:
                found.append({"case": name, **train(rank, seed, 1 + len(found), lost, quorum)})
        rank.report(found)


if __name__ == "__main__":
    main()

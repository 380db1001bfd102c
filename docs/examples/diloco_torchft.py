"""Train a character-level GPT on the source of Python's standard library, with torchft's DiLoCo and THC.

torchft_lighthouse --min_replicas 1 --join_timeout_ms 10000 &
export TORCHFT_LIGHTHOUSE=http://localhost:29510
torchrun --standalone --nproc-per-node 1 diloco_torchft.py --replica 0 &
torchrun --standalone --nproc-per-node 1 diloco_torchft.py --replica 1

Every replica trains by itself; a ThcReducer averages what their parameters have moved. One that dies is left out from
the next outer step on; one that comes, or is started again, gets the parameters of the others first.
"""

import argparse
import hashlib
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft.local_sgd import DiLoCo
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo, create_store_client
from torchft.work import _DummyWork

from byteps_thc import CompressionPolicy, ThcReducer
from thc_lab.demo.data import BatchSampler, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of

PATIENCE = timedelta(seconds=20)


class ThcProcessGroup(ProcessGroupGloo):
    """torchft's process group with a ThcReducer in place of its all-reduce, a new one for each set of replicas."""

    reducer: ThcReducer | None = None

    def configure(self, store_addr: str, replica_id: str, rank: int, world_size: int, *args: Any) -> None:
        super().configure(store_addr, replica_id, rank, world_size, *args)
        self.end()
        store = create_store_client(f"{store_addr}/thc", timeout=PATIENCE)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=PATIENCE)
        self.reducer = ThcReducer(policy=CompressionPolicy(deadline_s=PATIENCE.total_seconds()))

    def allreduce(self, tensors: list[torch.Tensor], _: Any) -> dist.Work:
        """Sum them, as the manager expects, which divides by the number of replicas. An error ends this outer step."""
        assert self.reducer is not None
        self.reducer.all_reduce({f"{tensor.numel()} elements": tensor for tensor in tensors})
        for tensor in tensors:
            tensor *= dist.get_world_size()
        return _DummyWork(tensors)

    def end(self) -> None:
        if self.reducer is not None:
            self.reducer.close()
            dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replica", type=int, required=True, help="0, 1, ...: each has data of its own")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="windows of 128 characters, per process")
    parser.add_argument("--inner-steps", type=int, default=10, help="steps between two averages")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Gpt(GptShape())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    outer_optimizer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    corpus = load_corpus().training
    batches = BatchSampler(corpus, batch_size=args.batch_size, context=128, seed=0, worker=args.replica)

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    group = ThcProcessGroup(PATIENCE)
    manager = Manager(
        group,
        load_state_dict,
        state_dict,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=PATIENCE,
        quorum_timeout=timedelta(minutes=2),
        replica_id=f"replica_{args.replica}",
        hostname=os.environ.get("TORCHFT_HOSTNAME", "localhost"),
    )
    # With buckets, outer gradients are one tensor, not one for each parameter.
    with DiLoCo(manager, [model], optimizer, outer_optimizer, sync_every=args.inner_steps, use_bucketization=True):
        while (outer_step := manager.current_step()) < args.steps // args.inner_steps:
            for _ in range(args.inner_steps):
                inputs, targets = batches.next_batch()
                optimizer.zero_grad()
                loss = loss_of(model, inputs, targets)
                loss.backward()
                optimizer.step()  # the last one of these averages
            step = (outer_step + 1) * args.inner_steps
            print(f"step {step}: loss {loss.item():.3f}, {manager.num_participants()} replicas", flush=True)
    assert group.reducer is not None
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()
    print(group.reducer.compression_stats(), f"parameters {digest[:16]}", sep="\n", flush=True)
    manager.shutdown(wait=False)
    group.end()


if __name__ == "__main__":
    main()

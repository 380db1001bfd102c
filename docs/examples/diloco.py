"""Train a character-level GPT on the source of Python's standard library, with DiLoCo (Douillard et al., 2023) and THC.

torchrun --standalone --nproc-per-node 4 diloco.py

Every process trains by itself with AdamW for some steps. Then what its parameters have moved, its outer gradient, is
averaged with 4-bit codes, and SGD with Nesterov momentum takes an outer step from where all of them began.
"""

import argparse

import torch
import torch.distributed as dist

from byteps_thc import ThcReducer
from thc_lab.demo.data import BatchSampler, load_corpus
from thc_lab.demo.model import Gpt, GptShape, loss_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="windows of 128 characters, per process")
    parser.add_argument("--inner-steps", type=int, default=10, help="steps between two averages")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Gpt(GptShape())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = BatchSampler(load_corpus().training, batch_size=args.batch_size, context=128, seed=0, worker=rank)
    outer = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    outer_optimizer = torch.optim.SGD(outer.values(), lr=0.7, momentum=0.9, nesterov=True)
    reducer = ThcReducer()

    for step in range(1, args.steps + 1):
        inputs, targets = batches.next_batch()
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step == 1 or step % 10 == 0):
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        if step % args.inner_steps == 0 or step == args.steps:
            for name, parameter in model.named_parameters():
                outer[name].grad = outer[name] - parameter.detach()
            reducer.all_reduce({name: tensor.grad for name, tensor in outer.items()})
            outer_optimizer.step()
            model.load_state_dict(outer)

    if rank == 0:
        stats = reducer.compression_stats()
        sent, steps = stats.sent_bytes / 1e6, stats.steps
        print(f"sent {sent:.2f} MB in {steps} outer steps; uncompressed outer gradients: {stats.ratio * sent:.2f} MB")
    for name, parameter in model.named_parameters():
        of_rank_0 = parameter.detach().clone()
        dist.broadcast(of_rank_0, 0)
        assert torch.equal(of_rank_0, parameter), f"{name} is not the same on ranks 0 and {rank}"
    reducer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""One rank of bench_fsdp.py, on its own host of the shaped network: times backward passes or whole steps of FSDP2.

Schemes take turns.

Writes <folder>/rank<r>.json. Ranks meet through a file in the folder and talk over eth0.
"""

import dataclasses
import json
import time

import torch
import torch.distributed as dist
from shaped_ddp.steps import join, rank_parser
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from byteps_thc import Bits
from byteps_thc.fsdp import compress, compress_reduce_scatter

TIMEOUT_S = 80
WARM_UP_STEPS = 2
WIDTH, LAYERS = 1024, 24


class Scheme:
    """A model of as many parameter groups as layers. Parameters stay gathered, so that backward only reduces."""

    policy = MixedPrecisionPolicy()
    reshards = False

    def __init__(
        self,
        reduce_dtype: torch.dtype | None = None,
        *,
        compressed: bool = False,
        parameter_bits: Bits | None = None,
        waits: bool = False,
    ) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.model = nn.Sequential(*(module for layer in layers for module in (layer, nn.ReLU())))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        policy = dataclasses.replace(self.policy, reduce_dtype=reduce_dtype)
        for part in (*layers, self.model):
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=self.reshards)
        self.model.set_reshard_after_backward(self.reshards)
        if compressed:
            compress_reduce_scatter(self.model)
        if parameter_bits:
            compress(self.model, down_bits=parameter_bits)
        if waits:
            for parameter in self.model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda _: None)
        self.step_s: list[float] = []

    def step(self, rows: Tensor, *, reduces: bool = True) -> float:
        """Return the seconds of one backward pass; all ranks start together."""
        self.model.zero_grad()
        self.model.set_requires_gradient_sync(reduces)
        loss = self.model(rows).square().mean()
        dist.barrier()
        start = time.perf_counter()
        loss.backward()
        seconds = time.perf_counter() - start
        if not reduces:
            for layer in self.model:
                for parameter in layer.parameters():
                    parameter.grad = None
        return seconds


class WholeStep(Scheme):
    """FSDP2's default: parameters are gathered for forward, resharded, and gathered again for backward."""

    reshards = True

    def step(self, rows: Tensor, *, reduces: bool = True) -> float:
        """Return the seconds of forward, backward and an SGD step; all ranks start together."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.model.set_requires_gradient_sync(reduces)
        dist.barrier()
        start = time.perf_counter()
        self.model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start


def make_schemes(gathered: str | None) -> dict[str, Scheme]:
    """Return the schemes to compare, by name. gathered: dtype of the parameters that a whole step gathers."""
    if gathered:
        WholeStep.policy = MixedPrecisionPolicy(param_dtype=getattr(torch, gathered))
        return {
            "fp32": WholeStep(torch.float32),
            "bf16": WholeStep(torch.bfloat16),
            "thc": WholeStep(compressed=True),
            "both 8": WholeStep(parameter_bits=8),
            "both 6": WholeStep(parameter_bits=6),
        }
    return {
        "alone": Scheme(),
        "fp32": Scheme(),
        "bf16": Scheme(torch.bfloat16),
        "waits": Scheme(compressed=True, waits=True),
        "thc": Scheme(compressed=True),
    }


def main() -> None:
    parser = rank_parser(__doc__)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--whole-step")
    args = parser.parse_args()
    join(args, TIMEOUT_S)
    rows = torch.randn(args.rows, WIDTH, generator=torch.Generator().manual_seed(args.rank))
    schemes = make_schemes(args.whole_step)
    for repeat in range(WARM_UP_STEPS + args.repeats):
        for name, scheme in schemes.items():
            seconds = scheme.step(rows, reduces=name != "alone")
            if repeat >= WARM_UP_STEPS:
                scheme.step_s.append(seconds)
    result = {name: scheme.step_s for name, scheme in schemes.items()}
    (args.folder / f"rank{args.rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""One rank of step_times.py, on its own host of the shaped network.

The batch is small, so that computing a step takes about what it takes beside such links where there are accelerators:
two cores compute for four ranks here.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from gradient_study.models import Batch, Training, cnn, gpt
from shaped_ddp.steps import Bf16, Compressed, Prepare, Scheme, rank_parser, run
from shaped_ddp.steps import PowerSgd as PowerSgdScheme
from torch.nn.parallel import DistributedDataParallel

from byteps_thc.baselines import BaselineConfig
from byteps_thc.config import ThcConfig
from evaluation.averagers import BF16, FP32
from evaluation.averagers import Scheme as Config
from evaluation.power_sgd import PowerSgd
from evaluation.step_times import SCHEMES

LEARNING_RATE = 1e-3
#: name -> (its training, what is kept of a batch): 64 characters, or 4 images.
MODELS: dict[str, tuple[Callable[[], Training], Callable[[Batch], Batch]]] = {
    "GPT": (lambda: gpt(1, 1, large=True), lambda batch: (batch[0][:1, :64], batch[1][:1, :64])),
    "CNN": (lambda: cnn(1, 1, large=True), lambda batch: (batch[0][:4], batch[1][:4])),
}


def whole_step(training: Training, batch: Batch) -> Prepare:
    """All of a step is timed."""

    def prepare(ddp: DistributedDataParallel) -> Callable[[], object]:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LEARNING_RATE)

        def step() -> None:
            optimizer.zero_grad(set_to_none=False)
            training.loss(ddp, *batch).backward()
            optimizer.step()

        return step

    return prepare


def make_scheme(config: Config, training: Training, prepare: Prepare) -> Scheme:
    """What averages so. Dense schemes are DDP's and torch's own."""
    model = deepcopy(training.model)
    if config == FP32:
        return Scheme(model, prepare)
    if config == BF16:
        return Bf16(model, prepare)
    if isinstance(config, PowerSgd):
        return PowerSgdScheme(model, prepare, config.rank)
    assert isinstance(config, ThcConfig | BaselineConfig)
    return Compressed(model, prepare, config)


def main() -> None:
    parser = rank_parser(__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    args = parser.parse_args()
    make_training, part_of = MODELS[args.model]
    training = make_training()
    prepare = whole_step(training, part_of(next(training.batches[0])))
    run(args, lambda: {name: make_scheme(config, training, prepare) for name, config in SCHEMES.items()})


if __name__ == "__main__":
    main()

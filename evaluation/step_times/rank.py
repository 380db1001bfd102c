"""One rank of measure.py, on its own host of the shaped network.

The batch is small: computing a step then takes about as long as on accelerators beside such links, although two cores
compute for four ranks here.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import torch
import torch.distributed as dist
from averages.averagers import BF16, FP32
from averages.averagers import Scheme as Config
from averages.power_sgd import PowerSgd
from averages.ranks import RankCodes
from baselines.config import CodecConfig
from baselines.hook import CodecState, codec_hook
from shaped_ddp.steps import Bf16, Compressed, Prepare, Scheme, rank_parser, run
from shaped_ddp.steps import PowerSgd as PowerSgdScheme
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from trainings.models import CHARACTERS, PIXELS, Batch, Training, cnn, gpt

from byteps_thc.ddp import NetworkConfig
from step_times.measure import PLACEMENTS, SCHEMES

LEARNING_RATE = 1e-3


def vgg() -> Training:
    """A CNN of VGG's kind: three convolutions, and nearly all parameters in three linear layers."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for inputs, outputs in ((256 * (PIXELS // 8) ** 2, 2048), (2048, 1024)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    torch.manual_seed(1)
    return replace(cnn(1, 1), model=nn.Sequential(*layers, nn.Linear(1024, len(CHARACTERS))))


def few_characters(batch: Batch) -> Batch:
    inputs, targets = batch
    return inputs[:1, :64], targets[:1, :64]


def few_images(batch: Batch) -> Batch:
    images, labels = batch
    return images[:4], labels[:4]


#: name -> (its training, what is kept of a batch).
MODELS: dict[str, tuple[Callable[[], Training], Callable[[Batch], Batch]]] = {
    "GPT": (lambda: gpt(1, 1, large=True), few_characters),
    "CNN": (vgg, few_images),
    "ResNet": (lambda: cnn(1, 1, large=True), few_images),
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
    """Make the scheme of a config. Dense schemes are DDP's and torch's own."""
    model = deepcopy(training.model)
    if config == FP32:
        return Scheme(model, prepare)
    if config == BF16:
        return Bf16(model, prepare)
    if isinstance(config, PowerSgd):
        return PowerSgdScheme(model, prepare, config.rank)
    if isinstance(config, RankCodes):
        return Compressed(model, prepare, bits=config.up_bits, down_bits=config.down_bits)
    assert isinstance(config, CodecConfig)
    scheme = Scheme(model, prepare)
    scheme.ddp.register_comm_hook(CodecState(config, dist.get_world_size()), codec_hook)
    return scheme


def main() -> None:
    parser = rank_parser(__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--servers", nargs="+", required=True, help="IP:PORT of the thc-ps of measure.py's hosts")
    args = parser.parse_args()
    make_training, part_of = MODELS[args.model]
    training = make_training()
    prepare = whole_step(training, part_of(next(training.batches[0])))

    def make_all() -> dict[str, Scheme]:
        schemes = {name: make_scheme(config, training, prepare) for name, config in SCHEMES.items()}
        for job, (name, hosts) in enumerate(PLACEMENTS.items(), start=1):
            network = NetworkConfig(args.servers[hosts], job=job)
            schemes[name] = Compressed(deepcopy(training.model), prepare, network)
        return schemes

    run(args, make_all)


if __name__ == "__main__":
    main()

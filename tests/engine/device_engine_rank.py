"""A rank of engines that cannot be on a device. test_device_engine.py checks its report."""

from typing import Any
from unittest.mock import Mock, patch

import torch
from torch import Tensor

from byteps_thc._base.errors import ConfigurationError
from byteps_thc._engine.device import choice
from byteps_thc._engine.door import open_engine
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.factory import flat_engine
from byteps_thc._engine.flat_engine import FlatEngine
from byteps_thc._engine.policy import CompressionPolicy
from byteps_thc._net import groups
from byteps_thc._scheme.decoding.settings import RankCodes
from thc_lab.ranks import Rank, default_group, joined_rank

CODES = RankCodes()
POLICY = CompressionPolicy(deadline_s=120)
GPU = torch.device("cuda", 0)


def reduce(engine: FlatEngine, value: float) -> Tensor:
    gradient = torch.linspace(-value, 0.5, 4000)
    slices = tuple(ParameterSlice(name, 2000 * i, 2000 * (i + 1)) for i, name in enumerate("ab"))
    assert engine.all_reduce(GradientBuffer("1", gradient, slices)).wait() is gradient
    return gradient


def refused(rank: Rank) -> str:
    """The error when one rank alone wants an engine that it cannot have."""
    policy = POLICY.model_copy(update={"kernels": "device" if rank.rank == 1 else "auto"})
    try:
        flat_engine(default_group(), CODES, policy)
    except ConfigurationError as error:
        return str(error)
    return ""


def recorded(rank: Rank) -> str:
    """The error when one rank records a CUDA graph."""
    odd = rank.rank == 1
    with patch.multiple(torch.cuda, is_initialized=lambda: odd, is_current_stream_capturing=lambda: odd):
        try:
            open_engine(default_group(), None, CODES, POLICY)
        except ConfigurationError as error:
            return str(error)
    return ""


def nccl_alone(rank: Rank) -> bool:
    """Whether a group that has NCCL alone averages in host memory as one that has gloo; this torch has no NCCL."""
    averages = []
    for names in (None, ["nccl"]):
        known = groups.backends
        if names is not None:
            groups.backends = lambda _, names=names: names  # type: ignore[misc]
        try:
            engine = flat_engine(default_group(), CODES, POLICY.model_copy(update={"kernels": "host"}))
            engine.start_step()
            averages.append(reduce(engine, 1.0 + rank.rank))
            engine.close()
        finally:
            groups.backends = known
    return torch.equal(*averages) and not torch.equal(averages[0], torch.linspace(-1.0 - rank.rank, 0.5, 4000))


def agreed(rank: Rank) -> dict[str, tuple[str, list[str]]]:
    """The kernels or the error of this rank in each case, and its warnings; rank 1 has the faults."""
    odd = rank.rank == 1
    cases: dict[str, dict[str, Any]] = {
        "same bits": {},
        "other bits": {"fault_of": Mock(return_value="decode differs" if odd else None)},
        "the host": {},
        "no Triton": {"triton_lacks": Mock(return_value="Triton is not installed" if odd else None)},
        "gradients in host memory": {"gpu_of": Mock(return_value=None)},
        "another policy": {},
        "a failed GPU": {"fault_of": Mock(side_effect=RuntimeError("CUDA error") if odd else None, return_value=None)},
    }
    results = {}
    for name, patches in cases.items():
        texts = list[str]()
        sound = {"triton_lacks": lambda: None, "fault_of": lambda *_, **__: None, "gpu_of": lambda *_: GPU}
        wanted = "host" if name == "the host" else "device" if odd and name == "another policy" else "auto"
        policy = POLICY.model_copy(update={"kernels": wanted})
        everything = sound | patches | {"backends": lambda _: ["nccl"], "warn_once": texts.append}
        with patch.multiple(choice, **everything):
            try:
                found = choice.agree_on_kernels(default_group(), CODES, policy, GPU).kernels
            except (ConfigurationError, RuntimeError) as error:
                found = f"{type(error).__name__}: {error}"
        results[name] = (found, texts)
    return results


with joined_rank() as rank:
    rank.report({check.__name__: check(rank) for check in (refused, recorded, nccl_alone, agreed)})

"""DDP's buckets as gradient buffers: which parameter lies where, under which name."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc._base.errors import ConfigurationError, InputError
from byteps_thc._base.torch_private import uncompiled
from byteps_thc._engine.engine import GradientBuffer, ParameterSlice
from byteps_thc._engine.parameters import embedding_weights, real_view, require_dtypes, weights_of_all_embeddings
from byteps_thc._engine.policy import CompressionPolicy


@dataclass(frozen=True)
class _BucketParameters:
    parameter_ids: tuple[int, ...]
    key: str
    slices: tuple[ParameterSlice, ...]


class BucketBuffers:
    """Makes GradientBuffers of buckets. model: None: parameters are numbered as they come, also in policy.rows."""

    def __init__(self, model: nn.Module | None, policy: CompressionPolicy) -> None:
        self._names = None if model is None else parameter_names(model)
        # DDP leaves gradients alone that no rank has. Others than DDP may have one inside.
        self._drops_unused = not isinstance(model, DistributedDataParallel) or model.find_unused_parameters
        self.policy = policy
        if model is not None and self._names is not None:
            # A weight that is parametrized is no parameter.
            weights = embedding_weights(model.modules())
            self.policy = policy.with_rows(self._names[weight] for weight in weights if weight in self._names)
        self._numbers: dict[Tensor, str] = {}
        self._known: dict[int, _BucketParameters] = {}

    def buffer(self, bucket: dist.GradBucket) -> GradientBuffer:  # type: ignore[name-defined]
        """Return the bucket's gradients; InputError when they are sparse or of parameters that the model has not."""
        gradient = bucket.buffer()
        if gradient.layout != torch.strided:
            raise InputError("sparse gradients are not supported: use dense ones (Embedding(sparse=False))")
        parameters = bucket.parameters()
        parameter_ids = tuple(map(id, parameters))
        known = self._known.get(bucket.index())
        if known is None or known.parameter_ids != parameter_ids:  # DDP has rebuilt its buckets
            known = self._known[bucket.index()] = self._place(parameters, parameter_ids)
        return GradientBuffer(known.key, gradient, known.slices, self._drops_unused)

    def name(self, parameter: Tensor) -> str:
        """Return the parameter's name."""
        if self._names is None:
            return self._numbers.setdefault(parameter, str(len(self._numbers)))
        try:
            return self._names[parameter]
        except KeyError:
            raise InputError("a gradient is of a parameter that ThcState's model does not have") from None

    def slice_of(self, parameter: Tensor, start: int = 0) -> ParameterSlice:
        """Return where the parameter's gradient lies that begins at `start`."""
        name = self.name(parameter)
        if self._names is None and name not in self.policy.rows and id(parameter) in self._weights:
            self.policy = self.policy.with_rows([name])
        return ParameterSlice(name, start, start + parameter.numel(), self.policy.row_elements(name, parameter.shape))

    @cached_property
    def _weights(self) -> set[int]:
        return weights_of_all_embeddings()

    def any_gradient(self) -> bool:
        """Return whether a parameter of the model has a gradient."""
        return any(parameter.grad is not None for parameter in self._names or ())

    def sizes(self) -> Mapping[str, int] | None:
        """Return elements by name of the model's parameters; None without model."""
        return None if self._names is None else {name: real_view(own).numel() for own, name in self._names.items()}

    def check(self) -> None:
        """Raise ConfigurationError if gradients cannot be averaged, or names are unknown; warn of unmatched names."""
        if self._names is None:
            if self.policy.exclude or self.policy.rows:
                raise ConfigurationError(
                    "CompressionPolicy(exclude, rows) selects parameters by name: give the model, "
                    "ThcState(..., model=ddp)"
                )
            return
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.policy.warn_of_unmatched(self._names.values(), rank)
        trained = [(name, tensor) for tensor, name in self._names.items() if tensor.requires_grad]
        self.policy.warn_if_all_travel_exactly(
            ((name, tensor.numel(), self.policy.row_elements(name, tensor.shape)) for name, tensor in trained), rank
        )
        require_dtypes(((name, tensor.dtype, tensor.numel()) for name, tensor in trained), self.policy)

    def _place(self, parameters: Sequence[Tensor], parameter_ids: tuple[int, ...]) -> _BucketParameters:
        slices, position = [], 0
        for parameter in parameters:
            slices.append(self.slice_of(parameter, position))
            position = slices[-1].stop
        key = hashlib.sha256(repr([(part.name, part.size) for part in slices]).encode()).hexdigest()[:16]
        return _BucketParameters(parameter_ids, key, tuple(slices))


def parameter_names(model: nn.Module) -> Mapping[Tensor, str]:
    """Names of a model's parameters without the prefixes of DDP and torch.compile."""
    while (inner := model.module if isinstance(model, DistributedDataParallel) else uncompiled(model)) is not model:
        model = inner
    # Compiled parts of a model have the prefix in the middle of their names.
    return {parameter: name.replace("_orig_mod.", "") for name, parameter in model.named_parameters()}

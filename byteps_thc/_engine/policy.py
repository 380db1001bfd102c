"""Which gradients are compressed, and how long to wait for the others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from byteps_thc._scheme.environment import default_deadline_s, say_unused, variable, variable_settings
from byteps_thc._scheme.errors import ConfigurationError
from byteps_thc._scheme.limits import MAX_THREADS, default_threads
from byteps_thc._scheme.settings import Settings, warn_once


def _patterns(value: object) -> object:
    """Return the patterns of a text with commas, or of a collection, each once and in one order."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(item, str) for item in value):
        return value  # which pydantic refuses
    return tuple(sorted({item.strip() for item in value}))


#: Patterns of parameters' names.
_Patterns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_patterns)]


class CompressionPolicy(Settings):
    """When to compress; the same on all ranks but for `threads` and, with servers, `kernels`.

    Raises ConfigurationError for settings not valid.
    """

    warmup_steps: int = Field(default=0, ge=0)
    """first steps, which travel uncompressed"""
    stop_step: int | None = Field(default=None, ge=0)
    """this step and the ones after it travel uncompressed; steps count from 0; None: none"""
    bypass_elements: int = Field(default=1024, ge=0)
    """parameters with fewer elements (biases, norms' weights) travel uncompressed"""
    exclude: _Patterns = ()
    """names of parameters, or of modules, that travel uncompressed whatever their size, such as ("lm_head",
    "*.router.*"): patterns as in the shell; a module's name stands for all parameters in it; what DDP and torch.compile
    add to names can be omitted. A pattern that selects nothing is a warning"""
    rows: _Patterns = ()
    """parameters, by patterns as in exclude, whose rows have a scale each, as the weights of nn.Embedding and
    nn.EmbeddingBag have without being named: a row that is zero on all ranks stays zero, and a row of small gradients
    gets a small error. A row is what lies behind an index of the first dimension; it costs 4 bytes each way"""
    deadline_s: float = Field(default=600.0, gt=0, le=86400)
    """a wait for other ranks that takes longer is an error; longer than what one rank does while the others wait in
    backward: evaluation, a checkpoint, loading data"""
    kernels: Literal["auto", "device", "host"] = "auto"
    """where gradients on a GPU are compressed. device: on the GPU, by ranks on NCCL or with servers; ConfigurationError
    where that cannot be. host: copied to host memory and back. auto: on the GPU on the routes whose kernels have been
    run on one, so far none, else through the host, with a warning"""
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] | Literal["auto"] = "auto"
    """threads of this process that work on a gradient's kernels together; results do not depend on it, and ranks may
    have different ones. auto: the cores that this process may use divided by the ranks on its host, at most 8"""

    @classmethod
    def chosen(cls, given: CompressionPolicy | None) -> CompressionPolicy:
        """Return what a program has given, or else the policy of $THC_POLICY and $THC_DEADLINE_S.

        A warning says which settings of $THC_POLICY are not used. ConfigurationError for settings that are not valid.
        """
        settings = variable_settings("POLICY", cls.model_fields)
        deadline = {"deadline_s": default_deadline_s()} if variable("DEADLINE_S") else {}
        if given is not None:
            for name, unused in (("POLICY", settings), ("DEADLINE_S", deadline)):
                say_unused(name, unused, given.model_dump(), "a CompressionPolicy")
            return given
        try:
            return cls(**deadline | settings)
        except ConfigurationError as error:
            names = " and ".join(f"THC_{name}" for name in ("POLICY", "DEADLINE_S") if variable(name))
            raise ConfigurationError(f"{error} (from {names})") from None

    @model_validator(mode="after")
    def _check(self) -> CompressionPolicy:
        if self.stop_step is not None and self.stop_step < self.warmup_steps:
            raise ValueError(f"stop_step must be at least warmup_steps, {self.warmup_steps}, not {self.stop_step}")
        return self

    def shared_settings(self) -> dict[str, object]:
        """Return what must be the same on all ranks."""
        return self.model_dump(exclude={"threads", "kernels"})

    def travels_exactly(self, name: str, elements: int) -> bool:
        """Return whether a parameter travels uncompressed in all steps. elements: of it, or of the rank's part."""
        return elements < self.bypass_elements or self.excludes(name)

    def excludes(self, name: str) -> bool:
        """Return whether a pattern of `exclude` selects the parameter."""
        return matches_any(self.exclude, name)

    def row_elements(self, name: str, shape: Sequence[int]) -> int:
        """Return the elements of each row that has a scale of its own; 0: this parameter's have none."""
        return math.prod(shape[1:]) if len(shape) > 1 and matches_any(self.rows, name) else 0

    def with_rows(self, names: Iterable[str]) -> CompressionPolicy:
        """Return the policy with these parameters added to `rows`; ConfigurationError unless they are texts."""
        added = CompressionPolicy(rows=(names,) if isinstance(names, str) else tuple(names)).rows
        return self.model_copy(update={"rows": _patterns(self.rows + added)})

    def warn_of_unmatched(self, names: Iterable[str], rank: int) -> None:
        """Warn once, on rank 0 of those that have these parameters, of patterns that select none of the names."""
        if rank != 0:
            return
        known = [*names]
        for setting, patterns in (("exclude", self.exclude), ("rows", self.rows)):
            for pattern in unmatched(patterns, known):
                example = f", such as {known[0]!r}" if known else ""
                warn_once(
                    f"CompressionPolicy({setting}): {pattern!r} selects none of the {len(known)} parameters{example}: "
                    "correct the pattern (* stands for any text), or omit it"
                )

    def warn_if_all_travel_exactly(self, trained: Iterable[tuple[str, int]]) -> None:
        """Warn once if every trained parameter (name, elements) travels uncompressed. No parameters are no warning."""
        parameters = [*trained]
        if parameters and all(self.travels_exactly(name, elements) for name, elements in parameters):
            largest = max(elements for _, elements in parameters)
            warn_once(
                f"nothing is compressed: all {len(parameters)} trained parameters, of {largest} elements at most, "
                "travel uncompressed. Lower bypass_elements, or exclude fewer parameters, in "
                f"CompressionPolicy(bypass_elements={self.bypass_elements}, exclude={self.exclude})"
            )

    def require_host_kernels(self, route: str) -> None:
        """ConfigurationError for kernels="device", which this route has not. route: what errors call it."""
        if self.kernels == "device":
            raise ConfigurationError(
                f'CompressionPolicy(kernels="device"): {route} compress in host memory only: omit kernels, or use '
                "a ThcConfig with DDP, FSDP2, HSDP or ThcReducer, on NCCL or with servers"
            )

    def thread_count(self, local_ranks: int | None = None) -> int:
        """Return the threads for kernels. local_ranks: on this host, this one included; None: unknown."""
        return default_threads(local_ranks) if self.threads == "auto" else self.threads

    def compresses(self, step: int) -> bool:
        """Whether gradients of that step (from 0) are compressed."""
        return step >= self.warmup_steps and (self.stop_step is None or step < self.stop_step)


#: Modules that wrap the one that they are named after.
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
_DDP = "module."


def without_wrappers(name: str) -> str:
    """Return a module's name as it is without torch.compile and without torch's wrapper for activation checkpoints."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def matches_any(patterns: Sequence[str], name: str) -> bool:
    """Return whether a pattern selects the parameter.

    patterns: as in the shell (`*`, `?`, `[...]`, case matters), of a parameter or of a module above it: `lm_head`
    selects `lm_head.weight`. Neither patterns nor names need the parts that DDP, torch.compile and activation
    checkpoints add.
    """
    return any(_selects(pattern, name) for pattern in patterns)


def unmatched(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the patterns that select none of the names."""
    everyone = [*names]
    return [pattern for pattern in patterns if not any(_selects(pattern, name) for name in everyone)]


def _selects(pattern: str, name: str) -> bool:
    # A model may have a module of its own that is called "module": both names are tried.
    return any(_matcher(pattern).match(candidate) for candidate in _spellings(name))


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> re.Pattern[str]:
    each = [text for spelling in _spellings(pattern) for text in (spelling, f"{spelling}.*")]
    return re.compile("|".join(map(translate, each)))


def _spellings(name: str) -> tuple[str, ...]:
    bare = without_wrappers(name)
    return tuple(dict.fromkeys((bare, bare.removeprefix(_DDP))))

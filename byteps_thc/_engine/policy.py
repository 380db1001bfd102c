"""Which gradients are compressed, and deadlines."""

import math
import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from byteps_thc._base.environment import default_deadline_s, say_unused, variable, variable_settings
from byteps_thc._base.errors import ConfigurationError
from byteps_thc._base.limits import MAX_THREADS, NARROWEST_ROW, default_threads
from byteps_thc._base.settings import Settings, warn_once


def _patterns(value: object) -> object:
    """Return the patterns of a text with commas, or of a collection, sorted and unique."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(item, str) for item in value):
        return value  # pydantic raises
    return tuple(sorted({item.strip() for item in value}))


#: Narrower rows travel uncompressed to servers: a rotation block and two scales for each would take about fp32's bytes.
_NARROW_ELEMENTS = 8
#: PEFT's LoRA on an embedding has a token in each column: unseen tokens are zeros inside all rows, and codes move them.
_TOKENS_IN_COLUMNS = ("lora_embedding_A", "*.lora_embedding_A")
_Patterns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_patterns)]


class CompressionPolicy(Settings):
    """Select steps and parameters to compress.

    All ranks need the same policy, except for `threads`, and `kernels` with servers.

    Raises ConfigurationError for invalid settings.
    """

    warmup_steps: int = Field(default=0, ge=0)
    """Number of first steps that travel uncompressed."""
    stop_step: int | None = Field(default=None, ge=0)
    """Step from which gradients travel uncompressed, counted from 0. None: never."""
    bypass_elements: int = Field(default=1024, ge=0)
    """Parameters with fewer elements (biases, weights of norms) travel uncompressed.
    0 compresses all parameters that `exclude` does not select, narrow rows and lora_embedding_A included."""
    exclude: _Patterns = ()
    """Patterns of parameters or modules that travel uncompressed: ("lm_head", "*.router.*").
    Patterns follow the shell. The name of a module selects all its parameters. Omit the prefixes that DDP and
    torch.compile add to names. A pattern that selects nothing logs a warning."""
    rows: _Patterns = ()
    """Patterns of parameters whose rows have a scale each, besides embeddings. Zero rows stay zero.
    The weights of nn.Embedding and nn.EmbeddingBag always have scales. A row is the part behind one index of the
    first dimension. A row of small gradients gets a small error. A scale costs 4 bytes per row in each direction with
    servers. Parameters with rows of fewer than 32 elements travel uncompressed, with servers of fewer than 8."""
    deadline_s: float = Field(default=600.0, gt=0, le=86400)
    """Seconds that a wait for other ranks may take.
    Choose a deadline above the longest pause of one rank: evaluation, a checkpoint, loading data."""
    kernels: Literal["auto", "device", "host"] = "auto"
    """Place where gradients on a GPU are compressed: "device" (the GPU), "host" or "auto" (the ranks choose).
    device: requires NCCL or servers, and raises ConfigurationError if the GPU cannot compress. host: gradients are
    copied to host memory, and averages back. auto: ranks on NCCL compare their GPU's kernels with the host's when the
    training starts. Equal bits on all ranks select device, other results and servers select host, with a warning."""
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] | Literal["auto"] = "auto"
    """Threads that compress a gradient together, 1 to 8. auto: cores / ranks on the host, at most 8.
    Results do not depend on it, and ranks may have different numbers."""
    _narrow: ClassVar[int] = _NARROW_ELEMENTS
    _place: ClassVar[str] = "CompressionPolicy, policy=CompressionPolicy({}=...)"

    @classmethod
    def chosen(cls, given: "CompressionPolicy | None") -> "CompressionPolicy":
        """Return `given`, or the policy of $THC_POLICY and $THC_DEADLINE_S if it is None.

        A warning names the ignored settings of the variables. Raises ConfigurationError for invalid settings.
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
    def _check(self) -> "CompressionPolicy":
        if self.stop_step is not None and self.stop_step < self.warmup_steps:
            raise ValueError(f"stop_step must be at least warmup_steps, {self.warmup_steps}, not {self.stop_step}")
        return self

    def shared_settings(self) -> dict[str, object]:
        """Return the settings that must be the same on all ranks."""
        return self.model_dump(exclude={"threads", "kernels"})

    def travels_exactly(self, name: str, elements: int, row: int = 0) -> bool:
        """Return whether a parameter travels uncompressed in all steps.

        name: the parameter's name.
        elements: elements of the parameter, or of the rank's part.
        row: row_elements() of the parameter.
        """
        return elements < self.bypass_elements or self.excludes(name, row)

    def excludes(self, name: str, row: int = 0) -> bool:
        """Return whether the parameter travels uncompressed, whatever its size: by name, or for its narrow rows.

        name: the parameter's name.
        row: row_elements() of the parameter.
        """
        if self.bypass_elements and (0 < row < self._narrow or matches_any(_TOKENS_IN_COLUMNS, name)):
            return True
        return matches_any(self.exclude, name)

    def row_elements(self, name: str, shape: Sequence[int]) -> int:
        """Return the elements of each row with its own scale; 0 if the parameter has no such rows.

        name: the parameter's name.
        shape: the parameter's shape.
        """
        elements = math.prod(shape[1:]) if len(shape) > 1 and matches_any(self.rows, name) else 0
        return 0 if elements < _NARROW_ELEMENTS and not self.bypass_elements else elements

    def with_rows(self, names: Iterable[str]) -> "CompressionPolicy":
        """Return the policy with these parameters added to `rows`.

        Raises ConfigurationError if a name is not a text.
        """
        added = CompressionPolicy(rows=(names,) if isinstance(names, str) else tuple(names)).rows
        return self.model_copy(update={"rows": _patterns(self.rows + added)})

    def among_ranks(self) -> "CompressionPolicy":
        """Return the policy of ranks without servers, which compress no rows of fewer than 32 elements."""
        return _RankPolicy.model_construct(self.model_fields_set, **dict(self))

    def warn_of_unmatched(self, names: Iterable[str], rank: int) -> None:
        """Warn once of patterns that select no parameter.

        names: names of all parameters.
        rank: rank among the ranks with these parameters; only rank 0 warns.
        """
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

    def warn_if_all_travel_exactly(self, trained: Iterable[tuple[str, int, int]], rank: int) -> None:
        """Warn once if every trained parameter travels uncompressed.

        trained: (name, elements, row_elements()) of each parameter; without parameters no warning is logged.
        rank: as in warn_of_unmatched().
        """
        parameters = [*trained]
        if rank == 0 and parameters and all(self.travels_exactly(*each) for each in parameters):
            largest = max(elements for _, elements, _ in parameters)
            warn_once(
                f"nothing is compressed: all {len(parameters)} trained parameters, of {largest} elements at most, "
                "travel uncompressed. Lower bypass_elements, or exclude fewer parameters, in "
                f"CompressionPolicy(bypass_elements={self.bypass_elements}, exclude={self.exclude})"
            )

    def thread_count(self, local_ranks: int | None = None) -> int:
        """Return the number of threads for kernels.

        local_ranks: ranks on this host; default: unknown.
        """
        return default_threads(local_ranks) if self.threads == "auto" else self.threads

    def compresses(self, step: int) -> bool:
        """Return whether gradients of a step, counted from 0, are compressed."""
        return step >= self.warmup_steps and (self.stop_step is None or step < self.stop_step)


class _RankPolicy(CompressionPolicy):
    _narrow: ClassVar[int] = NARROWEST_ROW


_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
_DDP = "module."


def without_wrappers(name: str) -> str:
    """Return a module's name without torch.compile's and activation checkpointing's wrappers."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def matches_any(patterns: Sequence[str], name: str) -> bool:
    """Return whether a pattern selects the parameter.

    patterns: as in the shell (`*`, `?`, `[...]`, case matters), of a parameter or of a module above it: `lm_head`
    selects `lm_head.weight`. Patterns and names may omit the parts added by DDP, torch.compile and activation
    checkpoints.
    """
    return any(_selects(pattern, name) for pattern in patterns)


def unmatched(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    everyone = [*names]
    return [pattern for pattern in patterns if not any(_selects(pattern, name) for name in everyone)]


def _selects(pattern: str, name: str) -> bool:
    # A model may have a module that is called "module": both names are tried.
    return any(_matcher(pattern).match(candidate) for candidate in _spellings(name))


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> re.Pattern[str]:
    each = [text for spelling in _spellings(pattern) for text in (spelling, f"{spelling}.*")]
    return re.compile("|".join(map(translate, each)))


def _spellings(name: str) -> tuple[str, ...]:
    bare = without_wrappers(name)
    return tuple(dict.fromkeys((bare, bare.removeprefix(_DDP))))

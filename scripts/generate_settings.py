"""Write docs/settings.md: settings with their defaults, from docstrings and the registry of variables.

Usage, with byteps_thc installed: python scripts/generate_settings.py [--check]

The meaning of a setting is the first sentences of its docstring, as many as 120 characters hold.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel

from byteps_thc._net.network_settings import NetworkSettings, Timeouts
from byteps_thc._scheme.environment import VARIABLES
from byteps_thc.torch.settings import ThcCompression

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/settings.md"
MOST_CHARACTERS = 120
#: Settings for tests, which users have no use for.
_FOR_TESTS = ("faults",)

Row = tuple[str, str, str]

TEMPLATE = """\
# Settings

<!-- Written by scripts/generate_settings.py: edit the docstrings of the settings, or the template in the script. -->

Every setting has a default. Pass settings as keywords of a front end, in an object, or in the environment.

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from byteps_thc import CompressionPolicy
from byteps_thc.ddp import compress

dist.init_process_group("gloo")
ddp = DistributedDataParallel(nn.Linear(1000, 1000))
state = compress(ddp, bits=4, down_bits=6, policy=CompressionPolicy(exclude=("bias",)))
ddp(torch.randn(8, 1000)).square().mean().backward()
```

A `ThcConfig` holds the same settings, here for a `ThcReducer`. Append to the script above:

```python
from byteps_thc import ThcConfig, ThcReducer

reducer = ThcReducer(config=ThcConfig(bits=4, down_bits=6))
reducer.all_reduce({"update": torch.randn(5000)})
```

The environment needs no change of the script:

```sh
export THC_CONFIG=bits=4,down_bits=6
export THC_POLICY='warmup_steps=100,exclude=lm_head,*.router.*'
torchrun --standalone --nproc-per-node 2 step.py
```

`THC_CONFIG`, `THC_POLICY` and `THC_SERVERS` also accept the path of a TOML file:

```sh
export THC_CONFIG=thc.toml
```

```toml
bits = 4
down_bits = 6
```

- Settings in code override the environment. The log of rank 0 lists the ignored ones.
- A keyword overrides one setting of `THC_CONFIG`. A `ThcConfig` overrides all of `THC_CONFIG`, a `CompressionPolicy`
  all of `THC_POLICY`.
- Values in variables are numbers, fractions (`p=1/32`), `true`, `false`, `none` or words.
- An unknown setting raises ConfigurationError. An unknown `THC_*` variable logs a warning.
- All ranks need the same settings. Exceptions: `threads`, and `kernels` with servers.

## Keywords of front ends

`compress` (DDP), `compress_reduce_scatter` (FSDP2) and `compress_replicas` (HSDP) accept these, and all settings of
`ThcConfig`. Only `compress` has `levels`, and `compress_reduce_scatter` has no `network`.

TABLE keywords

`ThcReducer` also accepts all settings of `ThcConfig`:

TABLE reducer

## ThcConfig

`ThcConfig.paper()` is the paper's configuration: 4 bits, g = 30, p = 1/32, independent rounding, error feedback.
`ThcConfig.uniform()` is Uniform THC, with equally spaced values. Ranks without servers raise ConfigurationError for
settings marked "With servers".

TABLE ThcConfig

## CompressionPolicy

TABLE CompressionPolicy

[Parameters](parameters.md) has examples of `exclude` and `rows`.

## NetworkConfig

Pass a `NetworkConfig` as `network=` of a front end, or as the first argument of `ThcReducer`, if servers or a switch do
the summing. `NetworkConfig.from_environment()` reads `THC_SERVERS`.

TABLE NetworkConfig

## Session

A `Session` also accepts the settings of `NetworkConfig`, except for `failover`.

TABLE Session

## Timeouts

Every wait has a deadline. Retransmissions follow the measured round trips and need no setting.

TABLE Timeouts

## UdpConfig

TABLE UdpConfig

## DpdkConfig

TABLE DpdkConfig

## Compression.thc

BytePS: `bps.Compression.thc(config, ...)` also accepts the settings of `NetworkConfig`, except for `failover`. Each
default comes from the environment, if set.

TABLE ThcCompression

## Environment variables

| reader | variables |
| --- | --- |
| every front end | `THC_CONFIG`, `THC_POLICY`, `THC_DEADLINE_S` |
| `NetworkConfig`, `Session` | `THC_RUN`, `THC_KEY_FILE` |
| `NetworkConfig.from_environment()` | also `THC_SERVERS`, `THC_JOB`, `THC_BACKEND`, `THC_LOCAL`, `THC_EAL_ARGS` |
| `Compression.thc()` | all but `THC_PS` |
| `thc doctor` | `THC_KEY_FILE`, `THC_PS` |

All workers need the same values, except for `THC_LOCAL`, `THC_EAL_ARGS` and the paths of files.

TABLE variables

`THC_SERVERS` holds the addresses first, and settings of the network behind them:

```sh
export THC_SERVERS=10.0.0.1,10.0.0.2:4000,quorum=0.9,connect_s=60
```

TABLE addresses
"""


def tree_of(target: type) -> ast.ClassDef:
    """Return the source of a class or function of byteps_thc, as it is in this folder."""
    path = ROOT / f"{target.__module__.replace('.', '/')}.py"
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return next(node for node in body if getattr(node, "name", "") == target.__name__)  # type: ignore[return-value]


def first_sentences(text: str) -> str:
    """Return as many sentences as a cell holds, or the first one."""
    sentences = re.split(r"(?<=\.) ", " ".join(text.split()))
    fitting = [" ".join(sentences[:count]) for count in range(1, len(sentences) + 1)]
    return next((each for each in reversed(fitting) if len(each) <= MOST_CHARACTERS), fitting[0])


def meanings(kind: type) -> dict[str, str]:
    """Return field -> meaning, of a class without its bases."""
    found = dict[str, str]()
    for field, text in pairwise(tree_of(kind).body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id[0] != "_":
            if not (isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)):
                raise SystemExit(f"{kind.__name__}.{field.target.id} needs a docstring")
            found[field.target.id] = first_sentences(str(text.value.value))
    return found


def argument_rows(*targets: type) -> Iterator[Row]:
    """Yield the keywords of functions or constructors, each once; a text such as "default: none" is the default."""
    seen = set[str]()
    for target in targets:
        text = ast.get_docstring(tree_of(target)) or ""
        for name, argument in inspect.signature(target).parameters.items():
            if argument.default is argument.empty or name in seen:
                continue
            seen.add(name)
            [meaning] = re.findall(rf"^{name}: ((?:.*)(?:\n .*)*)", text, re.M)
            meaning, default = " ".join(meaning.split()), in_code(argument.default)
            if told := re.search(r"[;,] default:? ([^.]*)\.", meaning):
                default = told[1].replace("'", "`")
                meaning = f"{meaning[: told.start()]}.{meaning[told.end() :]}"
            yield name, default, first_sentences(meaning[:1].upper() + meaning[1:])


def defaults(kind: type) -> dict[str, str]:
    """Return field -> default of a model or dataclass, in Python; empty if the setting is required."""
    if issubclass(kind, BaseModel):
        fields = {name: (field.default, field.is_required()) for name, field in kind.model_fields.items()}
    else:
        fields = {f.name: (f.default, f.default is dataclasses.MISSING) for f in dataclasses.fields(kind)}
    values = {name: "" if required else in_code(value) for name, (value, required) in fields.items()}
    return {name: "" if "Undefined" in value or "MISSING" in value else value for name, value in values.items()}


def in_code(value: object) -> str:
    """Return a default as a cell."""
    return f"`{value!r}`".replace("'", '"')


def rows_of(kind: type, bases: tuple[type, ...] = ()) -> Iterator[Row]:
    """Yield the settings of a class, and of bases whose settings it inherits."""
    chosen = defaults(kind)
    for each in (kind, *bases):
        for name, meaning in meanings(each).items():
            if name in chosen and name not in _FOR_TESTS:
                yield name, chosen[name], meaning


def _of(module: str, name: str) -> type:
    return getattr(importlib.import_module(f"byteps_thc.{module}".rstrip(".")), name)  # type: ignore[no-any-return]


def table(head: str, rows: Iterator[Row]) -> str:
    """Return a table in Markdown; raises SystemExit if a cell breaks the rules."""
    lines = [f"| {head} | default | meaning |", "| --- | --- | --- |"]
    for name, default, meaning in rows:
        if len(meaning) > MOST_CHARACTERS or ";" in meaning:
            raise SystemExit(f"{name}: write {MOST_CHARACTERS} characters at most and no semicolon: {meaning}")
        lines.append(f"| `{name}` | {default} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def addresses_rows() -> Iterator[Row]:
    """Yield the settings behind the addresses in THC_SERVERS."""
    places = {"quorum": NetworkSettings, "loss_tolerant": NetworkSettings}
    places |= dict.fromkeys(defaults(Timeouts), Timeouts) | {"lanes": ThcCompression}
    for name, kind in places.items():
        default = f"`{VARIABLES['DEADLINE_S'].default}`" if name == "operation_s" else defaults(kind)[name]
        yield name, default.replace("False", "false").replace("None", "none"), meanings(kind)[name]


def page() -> str:
    """Return the page: the template with its tables."""
    tables = {
        "keywords": table(
            "keyword",
            argument_rows(
                _of("ddp", "compress"), _of("fsdp", "compress_reduce_scatter"), _of("fsdp", "compress_replicas")
            ),
        ),
        "reducer": table("argument", argument_rows(_of("", "ThcReducer"))),
        "ThcConfig": table("setting", rows_of(_of("", "ThcConfig"))),
        "CompressionPolicy": table("setting", rows_of(_of("", "CompressionPolicy"))),
        "NetworkConfig": table("setting", rows_of(_of("", "NetworkConfig"), (NetworkSettings,))),
        "Session": table("setting", rows_of(_of("", "Session"))),
        "Timeouts": table("setting", rows_of(Timeouts)),
        "UdpConfig": table("setting", rows_of(_of("", "UdpConfig"))),
        "DpdkConfig": table("setting", rows_of(_of("", "DpdkConfig"))),
        "ThcCompression": table("setting", rows_of(ThcCompression)),
        "variables": table(
            "variable",
            (
                (f"THC_{name}", f"`{each.default}`" if each.default else "", each.meaning)
                for name, each in VARIABLES.items()
            ),
        ),
        "addresses": table("setting", addresses_rows()),
    }
    return re.sub(r"^TABLE (\w+)$", lambda match: tables[match[1]], TEMPLATE, flags=re.M)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when the page differs")
    check = parser.parse_args().check
    text = page()
    stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text
    if check and stale:
        print(f"{PAGE.relative_to(ROOT)} is out of date: run scripts/generate_settings.py", file=sys.stderr)
        return 1
    if stale:
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What earlier versions had, and what to write instead: one list, and one text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from byteps_thc._scheme.errors import ConfigurationError

_RANKS = "omit it: ranks without servers decode each other's codes"
_LEVELS = (
    'compress(), ThcState and ThcReducer take levels="auto", "flat" or (mesh, dim), compress_replicas() takes '
    'mesh["replicate"], and compress_reduce_scatter() has the mesh of fully_shard()'
)
_WAY = "omit it: workers measure the path"
#: Settings, by name.
SETTINGS = {
    "adaptive_clamp": _RANKS,
    "collective": _RANKS,
    "cuda_graphs": "omit it: a bucket takes few launches",
    "dim": _LEVELS,
    "isolate": "omit it: DPDK receives all packets of its device",
    "mesh": _LEVELS,
    "nodes": _LEVELS,
    "polling_threads": "omit it: a session has one thread",
    "queues": "omit it: a session has one thread",
    "rto_initial_s": _WAY,
    "rto_max_s": _WAY,
    "rto_min_s": _WAY,
    "slots": "omit it: the server decides (thc-ps --slots, a switch's job description)",
    "subtract_rounding": _RANKS,
    "total_bits": "pass bits for codes of gradients, and down_bits for codes of averages",
    "uniform_table": "use ThcConfig.uniform(), or give granularity=2^bits - 1",
    "window_bytes": _WAY,
}
#: Environment variables, by name. {}: the value.
VARIABLES = {
    "THC_BYPASS_ELEMENTS": "set THC_POLICY=bypass_elements={}",
    "THC_DPDK_ISOLATE": "unset it: DPDK receives all packets of its device",
    "THC_DPDK_NEIGHBOURS": "unset it: ARP finds them, or give DpdkConfig(neighbours=...)",
    "THC_EXCLUDE": "set THC_POLICY=exclude={}",
    "THC_LANES": "set THC_SERVERS=10.0.0.1,lanes={}",
    "THC_LOSS_TOLERANT": "set THC_SERVERS=10.0.0.1,loss_tolerant=true, or unset it if it is 0",
    "THC_POLLING_THREADS": "unset it: a session has one thread",
    "THC_QUORUM": "set THC_SERVERS=10.0.0.1,quorum={}",
    "THC_ROWS": "set THC_POLICY=rows={}",
    "THC_STOP_STEP": "set THC_POLICY=stop_step={}",
    "THC_TIMEOUTS": "set THC_SERVERS=10.0.0.1,{}",
    "THC_WARMUP_STEPS": "set THC_POLICY=warmup_steps={}",
}
_RUN = "use thc testbed run, which starts everything, and ends it"
_PLAN = "for Slurm and Kubernetes, start from docs/examples/slurm.sbatch and kubernetes.yaml"
#: Commands and their options, by the words after `thc`. Those of thc-ps are in ps_software/options.cc.
COMMANDS = {
    "break-even": "use thc compare",
    "compare --engine": "omit it: ranks are always compared, and --servers 4 adds servers",
    "compare --gpus-per-node": "use --ranks-per-host",
    "compare --plot": "use --json, and plot its numbers",
    "tables list --p": "omit it, and use grep",
    "tables show --png": "omit it: tables have no picture",
    "tables solve": "use thc tables show",
    "testbed down": _RUN,
    "testbed logs": _RUN,
    "testbed plan --environment-file": _PLAN,
    "testbed plan --format": _PLAN,
    "testbed run --down": "omit it: it ends everything",
    "testbed status": _RUN,
    "testbed up": _RUN,
    "version": "use thc --version",
}
_PRIVATE = "byteps_thc exports what is public of it, the rest is private (_engine, _net, _scheme, ...)"
#: Names of byteps_thc, packages among them.
NAMES = {
    "FaultConfig": "omit it: faults are for this project's tests",
    "StatsWriter": 'write writer.add_scalar(f"thc/{name}", value, step) for the items of stats.as_dict()',
    "baselines": "use torch's hooks of DDP (bf16_compress_hook), or a hook of your own",
    "gpu": _PRIVATE,
    "ops": "use ThcReducer for a collective of your own",
    "pipeline": _PRIVATE,
    "tools": "in a clone, pip install ./lab has thc_lab.demo and thc_lab.testbed",
    "transport": _PRIVATE,
}


def instead_of(name: str) -> str:
    """Return the end of a message about a setting that is not there, empty unless an earlier version had it."""
    return f" any more: {SETTINGS[name]}" if name in SETTINGS else ""


class RefusesGone:
    """Dataclasses of settings: ConfigurationError for a setting that is not there, or of an earlier version."""

    if not TYPE_CHECKING:  # type checkers take it for the signature

        def __new__(cls, *_, **settings):
            names = cls.__dict__.get("__dataclass_fields__", settings)  # pydantic's models check their own
            for name in settings:
                if name in SETTINGS or name not in names:
                    instead = instead_of(name) or f", only {', '.join(own for own in names if own[0] != '_')}"
                    raise ConfigurationError(f"{name}: {cls.__name__} has no such setting{instead}")
            return super().__new__(cls)

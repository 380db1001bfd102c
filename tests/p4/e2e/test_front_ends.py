"""DDP and HSDP through a P4 program, two jobs at once: the averages equal averages over thc-ps, to the bit."""

from pathlib import Path

import torch
from e2e.udp_switch import SERVER, free_udp_ports, job_of, udp_switch

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._scheme.adding.server_codes import ServerCodes
from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).parent / "programs/front_ends_rank.py"
#: As in PROGRAM.
CONFIG = ServerCodes(rotation_block=256, partition_bytes=4096, granularity=30)
RANKS = 4


def test_averages_are_those_of_thc_ps(tmp_path: Path) -> None:
    ports = free_udp_ports(2 * RANKS)
    ddp, hsdp = ports[:RANKS], ports[RANKS:]
    # The replicas of a shard are a job: ranks 0 and 2 have shard 0, ranks 1 and 3 have shard 1.
    jobs = (job_of(5, ddp, CONFIG), job_of(7, hsdp[0::2], CONFIG), job_of(8, hsdp[1::2], CONFIG))
    settings = {"server": SERVER, "ddp_ports": ddp, "hsdp_ports": hsdp}
    with udp_switch("v1model", *jobs):
        through_switch = run_ranks(PROGRAM, RANKS, tmp_path / "switch", settings=settings, timeout_s=200)
    with ParameterServer() as thc_ps:
        settings = {"server": thc_ps.address, "ddp_ports": [], "hsdp_ports": []}
        through_thc_ps = run_ranks(PROGRAM, RANKS, tmp_path / "thc_ps", settings=settings, timeout_s=200)
    for ours, theirs in zip(through_switch, through_thc_ps, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours["ddp"], theirs["ddp"], strict=True))
        for step, other in zip(ours["hsdp"], theirs["hsdp"], strict=True):
            assert step.keys() == other.keys()
            assert all(torch.equal(step[name], other[name]) for name in step if step[name].numel() >= 64)

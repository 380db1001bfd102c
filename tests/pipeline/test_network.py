"""The network engine on real ranks and a real thc-ps, which loses packets on purpose."""

from __future__ import annotations

from pathlib import Path

from gradients import check_case
from ranks import run_ranks

from byteps_thc.tools.launch import ParameterServer

PROGRAM = Path(__file__).with_name("engine_rank.py")


def test_averages_equal_the_simulation(thc_ps: ParameterServer, tmp_path: Path) -> None:
    common = {"policy": {}, "steps": 3, "sizes": [[60_000, 12], [300], [5000]]}
    cases = [
        common | {"name": "reliable", "thc": {"partition_bytes": 1 << 16}, "network": {"job": 1}},
        common | {"name": "faults", "thc": {}, "network": {"job": 2}, "faults": {"drop": 0.02, "reorder": 0.02}},
        common | {"name": "16-bit sums", "thc": {"bits": 8}, "network": {"job": 3}},
    ]
    for case in cases:
        case["network"]["servers"] = [thc_ps.address]
    reports = run_ranks(PROGRAM, 2, tmp_path, settings={"cases": cases})
    for case in cases:
        check_case(case, [report[case["name"]] for report in reports])
    assert sum(report["faults"]["retransmissions"] for report in reports) > 0
    # Codes alone: three steps of two compressed buffers, 4 bits a coordinate.
    assert all(report["reliable"]["sent_bytes"] > 3 * 65_012 // 2 for report in reports)

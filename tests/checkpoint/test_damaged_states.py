"""Damaged states in every front end: a ConfigurationError that says what is wrong, and nothing has changed."""

from __future__ import annotations

from pathlib import Path

from ranks import run_ranks

from byteps_thc.tools.launch import ParameterServer

#: What the error of a damage has in it, beside "ConfigurationError"
WORDS = {
    "empty": "missing",
    "none": "NoneType",
    "list": "list",
    "truncated, sealed": "residual of parameter",
    "no elements, sealed": "has 0 elements",
    "longer, sealed": "residual of parameter",
    "float64": "finite 1-D float32",
    "nan": "finite 1-D float32",
    "enormous": "2^96",
    "a bit": "residuals.",
    "a name gone": "is missing",
    "checksums gone": "checksums are missing",
    "version of the future": "version",
    "another round": "another checksum",
    "a step that is none": "step is True",
    "another worker": "its worker is",
    "another config": "its config has",
    "loss scale nan": "loss_scale is nan",
    "unknown name": "'stranger', which is unknown here",
    "earlier version": "it has residuals, and this compression keeps none. An earlier version",
    "earlier version without residuals": "granularity 'auto', here missing; p 'auto', here missing; uniform_table",
    "earlier settings": "Settings missing here are an earlier version's: byteps_thc.checkpoint.load() reads steps",
    "other bits": "its config has bits 3, here 5: use the same settings",
}


def test_damaged_states_change_nothing(tmp_path: Path, thc_ps: ParameterServer) -> None:
    program, settings = Path(__file__).with_name("damaged_rank.py"), {"server": thc_ps.address}
    for report in run_ranks(program, 2, tmp_path, settings=settings):
        assert len(report) == 5
        for front_end, results in report.items():
            assert results.pop("version 1"), front_end
            assert (results.pop("residuals") > 0) == (front_end == "ddp server"), front_end
            assert ("a bit" in results) == (front_end == "ddp server") != ("earlier version" in results), front_end
            for damage, (error, unchanged) in results.items():
                assert error.startswith("ConfigurationError: "), (front_end, damage, error)
                assert WORDS.get(damage, "") in error, (front_end, damage, error)
                assert unchanged, (front_end, damage)

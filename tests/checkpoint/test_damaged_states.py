"""Damaged states in every front end: a ConfigurationError that names the damage, and nothing has changed."""

from pathlib import Path

from byteps_thc._cli.launch import ParameterServer
from thc_lab.ranks import run_ranks

NO_TENSOR = "residuals of 'weight' is not a finite 1-D float32 tensor; load"
NO_NUMBERS = "residuals of 'weight' is not a finite 1-D float32 tensor, of numbers up to 2^96"
#: The error of every damage contains these words.
WORDS = {
    "empty": "the state lacks ",
    "none": "the state is a NoneType: pass the result of state_dict()",
    "list": "the state is a list: pass the result of state_dict()",
    "truncated, sealed": "has 1199 elements and its gradient 1200",
    "no elements, sealed": "has 0 elements and its gradient 1200",
    "longer, sealed": "has 2400 elements and its gradient 1200",
    "nan": NO_NUMBERS,
    "infinite": NO_NUMBERS,
    "enormous": NO_NUMBERS,
    "a bit": "residuals.weight is not as saved",
    "a name gone": "residuals.weight is missing",
    "a name that is none": "residuals of 7 is not a finite",
    "residuals gone": "the state lacks residuals: pass the whole result",
    "residuals no mapping": "its residuals are not a mapping from parameter names to tensors",
    "unknown name": "'stranger', which is unknown here",
    "checksums gone": "its checksums are missing",
    "checksums no mapping": "its checksums are missing",
    "version gone": "the state lacks version: pass the whole result",
    "another version": "its version is 2, here it is 3: start without the state, or load it with",
    "another round": "another checksum",
    "a step that is none": "its step is True, not a count",
    "an enormous step": "its step is 1099511627776, not a count",
    "another worker": "its worker is",
    "another config": "its config has",
    "loss scale nan": "loss_scale is nan, not a positive number",
    "loss scale 0": "loss_scale is 0.0, not a positive number",
    "residuals of servers": "this compression keeps none: byteps_thc.checkpoint.load() reads steps",
    "more settings": "its config has p 'auto', here missing: use the same settings",
    "other bits": "its config has bits 3, here 4: use the same settings",
}


def test_damaged_states_change_nothing(tmp_path: Path, thc_ps: ParameterServer) -> None:
    program, settings = Path(__file__).with_name("damaged_rank.py"), {"server": thc_ps.address}
    for report in run_ranks(program, 2, tmp_path, settings=settings):
        assert len(report) == 5
        assert {damage for results in report.values() for damage in results} == {*WORDS, "as saved", "residuals"}
        for front_end, results in report.items():
            assert results.pop("as saved"), front_end
            assert (results.pop("residuals") > 0) == (front_end == "ddp server"), front_end
            assert ("a bit" in results) == (front_end == "ddp server") != ("residuals of servers" in results), front_end
            for damage, (error, unchanged) in results.items():
                assert error.startswith("ConfigurationError: "), (front_end, damage, error)
                assert WORDS[damage] in error, (front_end, damage, error)
                assert unchanged, (front_end, damage)

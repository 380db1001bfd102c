"""A rank that cannot begin is no rank to wait for: the others raise at once, and stay in step."""

from pathlib import Path

from thc_lab.ranks import run_ranks

PROGRAM = Path(__file__).with_name("refusal_rank.py")
WORDS = {
    "state": "levels is 'racks'",
    "reducer": "worker and workers are for training without a process group: omit them",
    "fsdp": "policy is an int",
    "hsdp": "log_every",
    "gathers": "bits",
    "compress": "bits",
}


def test_other_random_keys_are_refused_by_name(tmp_path: Path) -> None:
    for result in run_ranks(PROGRAM, 2, tmp_path, settings={"other_version": True}, timeout_s=120):
        assert result.keys() == WORDS.keys() | {"levels"}
        for name, said in result.items():
            assert "ConfigurationError: ranks have different versions of byteps_thc's arithmetic" in said, (name, said)


def test_others_are_told_who_cannot_begin_and_why(tmp_path: Path) -> None:
    # Less than the deadline, which is ten minutes.
    results = run_ranks(PROGRAM, 2, tmp_path, timeout_s=120)
    for number, (name, words) in enumerate(WORDS.items()):
        refuses = number % 2
        refused, told = results[refuses][name], results[1 - refuses][name]
        assert refused[0].startswith("ConfigurationError: ")
        assert words in refused[0]
        reason = refused[0].removeprefix("ConfigurationError: ")
        assert told[0] == f"ConfigurationError: rank {refuses} could not begin: {reason}"
        assert refused[1] == told[1] == "nothing"

"""Checkpoints on disk, written by DCP, loaded into other states: in one process, rank after rank."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from byteps_thc import ServerCodes
from byteps_thc._base.errors import CheckpointError, ConfigurationError
from byteps_thc._engine.adding.residuals import AddingState, Residuals
from byteps_thc._engine.saved_state import VERSION
from byteps_thc.checkpoint import checkpointable, gathered, load

# DCP says so whenever it works for one process alone.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

SIZES = {"layer1.weight": 600, "layer1.bias": 7, "head": 130}


class Worker:
    """The part of an engine that has a state."""

    def __init__(self, worker: int, workers: int, config: ServerCodes | None = None, **values: Any) -> None:
        self.config = config or ServerCodes(error_feedback=True)
        self.identity = {"version": VERSION, "worker": worker, "workers": workers, "config": self.config.model_dump()}
        self.values = {"round": 0, "step": 0, "loss_scale": None} | values
        self.residuals = Residuals()
        self.loads = 0

    def filled(self, seed: int) -> "Worker":
        generator = torch.Generator().manual_seed(1000 * seed + self.identity["worker"])
        self.residuals.load({name: torch.randn(size, generator=generator) for name, size in SIZES.items()})
        self.values |= {"round": 12, "step": 4, "loss_scale": 1024.0}
        return self

    def kept(self) -> dict[str, torch.Tensor]:
        return self.residuals.state()

    def state_dict(self) -> dict[str, Any]:
        return self.identity | self.values | {"residuals": self.kept()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        who = self.identity["worker"], self.identity["workers"], self.identity["config"]
        AddingState(*who).load_state_dict(state)
        self.residuals.load(state["residuals"])
        self.values = {key: state.get(key) for key in self.values}
        self.loads += 1


class Ranks:
    """The checkpoint of all ranks of a job."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers

    def state_dict(self) -> dict[str, Any]:
        return {key: value for worker in self.workers for key, value in checkpointable(worker).state_dict().items()}


def save(folder: Path, workers: Sequence[Worker], **others: Any) -> Path:
    dcp.save({"thc": Ranks(workers).state_dict()} | others, checkpoint_id=folder)
    return folder


def saved_job(folder: Path, workers: int, seed: int = 0) -> list[Worker]:
    job = [Worker(worker, workers).filled(seed) for worker in range(workers)]
    save(folder, job)
    return job


def test_another_version_is_refused(tmp_path: Path) -> None:
    old = Worker(0, 1).filled(0)
    old.identity["version"] = VERSION - 1
    save(tmp_path, [old])
    new = Worker(0, 1)
    with pytest.raises(ConfigurationError, match="its version is 2, here it is 3: start without the state"):
        load(new, tmp_path)
    assert new.loads == 0


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 1)])
def test_another_number_of_ranks_starts_without_residuals(
    tmp_path: Path, old: int, new: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = saved_job(tmp_path, old)
    for rank in range(new):
        worker = Worker(rank, new).filled(9)
        with caplog.at_level(logging.WARNING, "byteps_thc"):
            load(worker, tmp_path)
        assert (worker.values, worker.kept()) == (before[0].values, {})
    said = [record.message for record in caplog.records if record.name == "byteps_thc"]
    assert said == [f"the checkpoint is of {old} ranks, and here are {new} ranks: residuals start at zero"]


def test_only_the_ranks_that_are_needed_are_read(tmp_path: Path) -> None:
    """Rank 1 of 4 needs ranks 0 and 1: the entries of others may be lost."""
    entries = Ranks(saved_job(tmp_path / "all", 4)).state_dict()
    kept = {key: value for key, value in entries.items() if not key.startswith(("rank2.", "rank3."))}
    dcp.save({"thc": kept}, checkpoint_id=tmp_path / "half")
    load(Worker(1, 4), tmp_path / "half")
    with pytest.raises(CheckpointError, match=r"no entry 'thc\.rank2\.header'"):
        load(Worker(2, 4), tmp_path / "half")


def test_the_key_is_the_users(tmp_path: Path) -> None:
    dcp.save({"compression": Ranks([Worker(0, 1).filled(0)]).state_dict()}, checkpoint_id=tmp_path)
    with pytest.raises(CheckpointError, match=r"states of compression in it: compression\.rank0"):
        load(Worker(0, 1), tmp_path)
    load(Worker(0, 1), tmp_path, key="compression")
    load(Worker(0, 1), dcp.FileSystemReader(tmp_path), key="compression")


def test_residuals_survive_other_settings(tmp_path: Path) -> None:
    old = saved_job(tmp_path, 1)[0]
    new = Worker(0, 1, ServerCodes(bits=2, rotation_block=256, partition_bytes=4096, seed=9, error_feedback=True))
    load(new, tmp_path)
    assert all(torch.equal(r, new.kept()[name]) for name, r in old.kept().items())
    assert new.state_dict()["config"]["bits"] == 2


def test_without_error_feedback_residuals_are_dropped_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved_job(tmp_path, 2)
    new = Worker(0, 2, ServerCodes(error_feedback=False))
    with caplog.at_level(logging.WARNING, "byteps_thc"):
        load(new, tmp_path)
    assert new.kept() == {}
    assert new.values["step"] == 4
    assert "error feedback is off: the checkpoint" in caplog.text


def test_counters_of_ranks_go_on_with_servers(tmp_path: Path) -> None:
    """Ranks that decode each other's codes save no residuals."""

    class Decoding(Worker):
        def state_dict(self) -> dict[str, Any]:
            return {key: value for key, value in super().state_dict().items() if key != "residuals"}

    save(tmp_path, [Decoding(0, 1, round=12, step=4)])
    new = Worker(0, 1)
    load(new, tmp_path)
    assert (new.kept(), new.values["round"], new.values["step"]) == ({}, 12, 4)


def parameters(**changes: int | None) -> list[tuple[str, Tensor]]:
    return [(name, nn.Parameter(torch.zeros(size))) for name, size in (SIZES | changes).items() if size is not None]


def test_new_parameters_begin_with_nothing(tmp_path: Path) -> None:
    saved_job(tmp_path, 1)
    new = Worker(0, 1)
    load(new, tmp_path, parameters=parameters(new=50))
    assert new.kept().keys() == SIZES.keys()


def test_parameters_that_are_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved_job(tmp_path, 1)
    new = Worker(0, 1)
    with pytest.raises(ConfigurationError, match=r"the model does not have: \['head'\]; strict=False drops them"):
        load(new, tmp_path, parameters=parameters(head=None))
    assert new.loads == 0
    with caplog.at_level(logging.WARNING, "byteps_thc"):
        load(new, tmp_path, parameters=parameters(head=None), strict=False)
    assert new.kept().keys() == SIZES.keys() - {"head"}
    assert "['head']: dropped" in caplog.text


def test_parameters_of_another_size(tmp_path: Path) -> None:
    saved_job(tmp_path, 1)
    new = Worker(0, 1)
    with pytest.raises(ConfigurationError, match="'head' has 131 elements, and 130 in the checkpoint"):
        load(new, tmp_path, parameters=parameters(head=131), strict=False)
    assert new.loads == 0


def test_scopes_keep_groups_of_ranks_apart(tmp_path: Path) -> None:
    job = [Worker(0, 1).filled(seed) for seed in (1, 2)]
    entries = {}
    for name, worker in zip(("left", "right"), job, strict=True):
        entries |= checkpointable(worker, scope=name).state_dict()
    dcp.save({"thc": entries}, checkpoint_id=tmp_path)
    new = Worker(0, 1)
    load(new, tmp_path, scope="right")
    assert torch.equal(new.kept()["head"], job[1].kept()["head"])
    with pytest.raises(CheckpointError, match=r"in it: thc\.left\.rank0, thc\.right\.rank0"):
        load(new, tmp_path)


def shards_of_stages() -> list[tuple[str, Worker]]:
    """Two stages of two nodes of two ranks, by stage."""
    places = [(stage, shard, node) for stage in range(2) for shard in range(2) for node in range(2)]
    return [
        (f"stage{stage}", Worker(node, 2, scope=f"shard{shard}of2").filled(4 * stage + 2 * shard + node))
        for stage, shard, node in places
    ]


def test_the_users_scope_is_in_front_of_the_shards(tmp_path: Path) -> None:
    entries: dict[str, Any] = {}
    for stage, worker in shards_of_stages():
        mine = checkpointable(worker, scope=stage).state_dict()
        assert entries.keys().isdisjoint(mine)
        entries |= mine
    assert "stage1.shard0of2.rank1.header" in entries
    dcp.save({"thc": entries}, checkpoint_id=tmp_path)
    for stage, old in shards_of_stages():
        new, by_dcp = (Worker(old.identity["worker"], 2, scope=old.values["scope"]).filled(99) for _ in range(2))
        load(new, tmp_path, scope=stage)
        dcp.load({"thc": checkpointable(by_dcp, scope=stage)}, checkpoint_id=tmp_path)
        for loaded in (new, by_dcp):
            assert loaded.values == old.values  # its own scope, too
            assert all(torch.equal(residual, loaded.kept()[name]) for name, residual in old.kept().items())


@pytest.mark.parametrize(("scope", "ranks"), [("shard0of2", 4), ("group0", 2), (None, 2)])
def test_ranks_that_are_not_all_need_a_name(scope: str | None, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    state = checkpointable(Worker(0, 2, scope=scope).filled(0))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    state.state_dict()
    monkeypatch.setattr(dist, "get_world_size", lambda: 8)
    if scope == "group0":  # which says of which ranks it is
        state.state_dict()
        return
    with pytest.raises(ConfigurationError, match=f"the state is of {ranks} of 8 ranks: give scope="):
        state.state_dict()


@pytest.mark.parametrize(("then", "now"), [(0, 2), (2, 0), (4, 2)])
@pytest.mark.parametrize("stage", [None, "stage0"])
def test_other_levels_keep_counters_alone(
    then: int, now: int, stage: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """then, now: shards, 0 in one level."""
    old, new = (Worker(0, 1, scope=f"shard1of{shards}" if shards else None) for shards in (then, now))
    dcp.save({"thc": checkpointable(old.filled(0), scope=stage).state_dict()}, checkpoint_id=tmp_path)
    with caplog.at_level(logging.WARNING, "byteps_thc"):
        load(new, tmp_path, scope=stage, parameters=parameters(head=131))
    assert (new.kept(), new.values) == ({}, old.values | {"scope": new.values["scope"]})
    saved, here = ("1 ranks" + f" for each of {shards} shards" * bool(shards) for shards in (then, now))
    lines = [record.message for record in caplog.records if record.name == "byteps_thc"]
    assert lines == [f"the checkpoint is of {saved}, and here are {here}: residuals start at zero"]


def test_plain_dcp_load_into_a_state_that_knows_its_parameters(tmp_path: Path) -> None:
    old = saved_job(tmp_path, 1)[0]
    new = Worker(0, 1).filled(seed=5)
    dcp.load({"thc": checkpointable(new)}, checkpoint_id=tmp_path)
    assert all(torch.equal(r, new.kept()[name]) for name, r in old.kept().items())


def test_plain_dcp_load_says_when_it_is_not_enough(tmp_path: Path) -> None:
    saved_job(tmp_path, 2)
    for new in (Worker(0, 2), Worker(0, 1).filled(0)):
        with pytest.raises(CheckpointError, match=r"use byteps_thc\.checkpoint\.load"):
            dcp.load({"thc": checkpointable(new)}, checkpoint_id=tmp_path)
        assert new.loads == 0


def damage(folder: Path, kind: str) -> None:
    """Damage a checkpoint as disks and interrupted jobs do."""
    (data,) = folder.glob("*.distcp")
    content = bytearray(data.read_bytes())
    if kind == "nothing there":
        data.unlink()
        (folder / ".metadata").unlink()
    elif kind == "no metadata":
        (folder / ".metadata").unlink()
    elif kind == "metadata cut off":
        metadata = folder / ".metadata"
        metadata.write_bytes(metadata.read_bytes()[:40])
    elif kind == "cut off":
        data.write_bytes(content[: len(content) // 2])
    elif kind == "a bit":
        position = content.index(torch.full((64,), 3.25).numpy().tobytes()) + 17
        content[position] ^= 1
        data.write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nothing there", "not a checkpoint, or an unfinished one"),
        ("no metadata", "not a checkpoint, or an unfinished one"),
        ("metadata cut off", "not a checkpoint, or an unfinished one"),
        ("cut off", "damaged"),
        ("a bit", "another checksum"),
    ],
)
def test_damaged_checkpoints_change_nothing(tmp_path: Path, kind: str, message: str) -> None:
    old = Worker(0, 1).filled(0)
    old.residuals.load({"head": torch.full((130,), 3.25)})
    save(tmp_path, [old])
    damage(tmp_path, kind)
    new = Worker(0, 1).filled(seed=8)
    with pytest.raises(CheckpointError, match=message):
        load(new, tmp_path)
    assert new.loads == 0


@pytest.mark.parametrize("header", ["no json", json.dumps({"values": {}})])
def test_headers_that_are_none(tmp_path: Path, header: str) -> None:
    dcp.save({"thc": {"rank0.header": header}}, checkpoint_id=tmp_path)
    with pytest.raises(CheckpointError, match=r"'thc\.rank0\.header' is damaged"):
        load(Worker(0, 1), tmp_path)


def test_ranks_saved_at_different_times(tmp_path: Path) -> None:
    job = [Worker(worker, 2).filled(0) for worker in range(2)]
    job[1].values["step"] = 5
    save(tmp_path, job)
    with pytest.raises(CheckpointError, match="saved at different times: another step"):
        load(Worker(1, 2), tmp_path)


@pytest.mark.parametrize("wrong", [nn.Linear(2, 2), None, ServerCodes], ids=str)
def test_what_is_no_state_is_refused_at_once(wrong: Any, tmp_path: Path) -> None:
    for user, call in {
        "checkpointable": lambda: checkpointable(wrong),
        "gathered": lambda: gathered(wrong),
        "load": lambda: load(wrong, tmp_path),
    }.items():
        with pytest.raises(ConfigurationError, match=rf"^{user}\(\) takes the result of compress\(\), .* not "):
            call()


def test_parameters_are_pairs(tmp_path: Path) -> None:
    dcp.save({"thc": checkpointable(Worker(0, 1))}, checkpoint_id=tmp_path)
    for wrong in (nn.Linear(2, 2).state_dict(), nn.Linear(2, 2).parameters()):
        with pytest.raises(ConfigurationError, match=r"named_parameters\(\), pairs of name and parameter"):
            load(Worker(0, 1), tmp_path, parameters=wrong)  # type: ignore[arg-type]

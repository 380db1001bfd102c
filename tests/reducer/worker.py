"""A worker without a process group, which averages through thc-ps; settings: {"servers": [addresses]}."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from error_of import error_of
from ranks import Rank
from torch import Tensor

from byteps_thc import ThcConfig, ThcReducer
from byteps_thc._engine.saved_state import sealed
from byteps_thc._reducer import CompressionPolicy, NetworkConfig

CONFIG = ThcConfig(rotation_block=1024)
SHAPES = {"a": (5,), "b": (40, 100), "c": (1 << 20, 1)}


def tensors_of(worker: int, step: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(100 * step + worker)
    return {name: torch.randn(*shape, generator=random) for name, shape in SHAPES.items()}


def run(rank: Rank) -> dict[str, Any]:
    who = {"worker": rank.rank, "workers": rank.ranks}
    network = NetworkConfig(rank.settings["servers"], job=1)
    policy = CompressionPolicy(deadline_s=20)
    odd = rank.rank == 1
    texts = {
        "nobody": error_of(lambda: ThcReducer(network, CONFIG)),
        "no group": error_of(lambda: ThcReducer(None, CONFIG)),
    }
    for setting in ({"warmup_steps": 1}, {"bypass_elements": 1}, {"stop_step": 9}):
        call = lambda setting=setting: ThcReducer(network, CONFIG, policy=CompressionPolicy(**setting), **who)  # noqa: E731
        texts[next(iter(setting))] = error_of(call)
    averages = []
    with ThcReducer(network, CONFIG, policy=policy, **who) as reducer:
        for step in range(2):
            averages.append(tensors_of(rank.rank, step))
            reducer.all_reduce(averages[-1])
        state = reducer.state_dict()
        averages.append(tensors_of(rank.rank, 2))
        big = averages[-1].pop("c")
        # Both are new, so the second waits for the first before the workers compare it.
        works = [reducer.all_reduce(tensors, async_op=True) for tensors in (averages[-1], {"c": big})]
        averages[-1]["c"] = big
        for work in works:
            work.wait()
        texts["new"] = error_of(lambda: reducer.all_reduce({"x" if odd else "y": torch.ones(4000)}))
        averages.append(tensors_of(rank.rank, 3))
        reducer.all_reduce(averages[-1])
        stats = reducer.compression_stats()
    with ThcReducer(NetworkConfig(rank.settings["servers"], job=2), CONFIG, policy=policy, **who) as again:
        again.load_state_dict(state)
        resumed = tensors_of(rank.rank, 2)
        again.all_reduce(resumed)
        loaded = again.state_dict()["step"]
    with ThcReducer(NetworkConfig(rank.settings["servers"], job=3), CONFIG, policy=policy, **who) as known:
        calls = [{name: torch.ones(4000)} for name in ("one", "other")]
        for tensors in calls:
            known.all_reduce(tensors)
        texts["order"] = error_of(lambda: [known.all_reduce(tensors) for tensors in calls[:: -1 if odd else 1]])
    # Tensors that are grouped anew are other buffers; servers must still know which is which.
    with ThcReducer(NetworkConfig(rank.settings["servers"], job=4), CONFIG, policy=policy, **who) as regrouped:
        for names in ("ab", "ac", "a"):
            regrouped.all_reduce({name: torch.ones(4000) for name in names})
        texts["regrouped"] = error_of(
            lambda: regrouped.all_reduce({name: torch.ones(4000) for name in ("ac" if odd else "ab")})
        )
    with ThcReducer(NetworkConfig(rank.settings["servers"], job=5), CONFIG, policy=policy, **who) as stale:
        stale.all_reduce({"w": torch.ones(4000)})
        state = stale.state_dict()
        stale.load_state_dict(sealed(state | {"round": state["round"] + 7 * odd}))
        texts["step"] = error_of(lambda: stale.all_reduce({"w": torch.ones(4000)}))
    return {
        "texts": texts,
        "averages": averages,
        "resumed": resumed,
        "step": loaded,
        "steps": stats.steps,
        "ratio": stats.ratio,
    }


def main() -> None:
    launch = json.loads(os.environ["THC_TEST_RANK"])
    torch.set_num_threads(1)
    rank = Rank(launch["rank"], launch["ranks"], launch["settings"], Path(launch["directory"]))
    rank.report(run(rank))


if __name__ == "__main__":
    main()

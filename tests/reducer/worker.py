"""A worker without a process group, which averages through thc-ps; settings: {"servers": [addresses]}."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from error_of import error_of
from known_gradients import gradients

from byteps_thc import CompressionPolicy, NetworkConfig, ServerCodes, ThcReducer
from thc_lab.ranks import SETTINGS_VARIABLE, Rank

CODES = ServerCodes(rotation_block=1024)
SHAPES = {"a": (5,), "b": (40, 100), "c": (1 << 20, 1)}


def run(rank: Rank) -> dict[str, Any]:
    who = {"worker": rank.rank, "workers": rank.ranks}
    network = NetworkConfig(rank.settings["servers"], job=1, codes=CODES)
    policy = CompressionPolicy(deadline_s=20)
    odd = rank.rank == 1
    texts = {
        "nobody": error_of(lambda: ThcReducer(network)),
        "no group": error_of(lambda: ThcReducer()),
    }
    for setting in ({"warmup_steps": 1}, {"bypass_elements": 1}, {"stop_step": 9}):
        call = lambda setting=setting: ThcReducer(network, policy=CompressionPolicy(**setting), **who)  # noqa: E731
        texts[next(iter(setting))] = error_of(call)
    averages = []
    with ThcReducer(network, policy=policy, **who) as reducer:
        for step in range(2):
            averages.append(gradients(rank.rank, step, SHAPES))
            reducer.all_reduce(averages[-1])
        state = reducer.state_dict()
        averages.append(gradients(rank.rank, 2, SHAPES))
        big = averages[-1].pop("c")
        # Both are new, so the second waits for the first before the workers compare it.
        works = [reducer.all_reduce(tensors, async_op=True) for tensors in (averages[-1], {"c": big})]
        averages[-1]["c"] = big
        for work in works:
            work.wait()
        texts["new"] = error_of(lambda: reducer.all_reduce({"x" if odd else "y": torch.ones(4000)}))
        averages.append(gradients(rank.rank, 3, SHAPES))
        reducer.all_reduce(averages[-1])
        stats = reducer.compression_stats()
    with ThcReducer(NetworkConfig(rank.settings["servers"], job=2, codes=CODES), policy=policy, **who) as again:
        again.load_state_dict(state)
        resumed = gradients(rank.rank, 2, SHAPES)
        again.all_reduce(resumed)
        loaded = again.state_dict()["step"]
    # Tensors that are grouped anew are other buffers; servers must still know which is which.
    with ThcReducer(NetworkConfig(rank.settings["servers"], job=4, codes=CODES), policy=policy, **who) as regrouped:
        for names in ("ab", "ac", "a"):
            regrouped.all_reduce({name: torch.ones(4000) for name in names})
        texts["regrouped"] = error_of(
            lambda: regrouped.all_reduce({name: torch.ones(4000) for name in ("ac" if odd else "ab")})
        )
    return {
        "texts": texts,
        "averages": averages,
        "resumed": resumed,
        "step": loaded,
        "steps": stats.steps,
        "ratio": stats.ratio,
    }


launch = json.loads(os.environ[SETTINGS_VARIABLE])
torch.set_num_threads(1)
rank = Rank(launch["rank"], launch["ranks"], launch["settings"], Path(launch["directory"]))
rank.report(run(rank))

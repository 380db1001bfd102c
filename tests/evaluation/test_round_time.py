"""Parts of rounds: the decompressing server's averages, the stages of a round, and computed times."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from averages.averagers import make
from rounds.bed import STAGES, stages_ms
from rounds.decoding_server import DecodingServer, tune
from rounds.parts import Link, computed_ms, network_ms
from rounds.schemes import COORDINATES, SCHEMES, THC, WORKERS, gradient_of
from rounds.worker import CodecRounds, DenseRounds


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    for end in (ours, theirs):
        tune(end)
    return ours, theirs


@pytest.mark.skipif(os.geteuid() != 0, reason="buffers for a whole partition need root")
@pytest.mark.parametrize("servers", [1, 4])
@pytest.mark.parametrize("name", ["fp32, 16 pieces", "TopK 10 %"])
def test_servers_average_as_simulations_do(name: str, servers: int) -> None:
    scheme, gradients = SCHEMES[name], [gradient_of(worker) for worker in range(WORKERS)]
    pairs = [[connected() for _ in range(WORKERS)] for _ in range(servers)]
    serving = [DecodingServer(scheme, i, servers, [theirs for _, theirs in pair]) for i, pair in enumerate(pairs)]
    workers = []
    for worker, gradient in enumerate(gradients):
        ours = [pair[worker][0] for pair in pairs]
        dense = scheme.config is None
        workers.append(
            DenseRounds(gradient, ours, worker) if dense else CodecRounds(scheme, scheme.config, gradient, ours, worker)
        )
    size = COORDINATES // (servers * scheme.pieces)
    tensors = [slice(start, start + size) for start in range(0, COORDINATES, size)]
    simulated = None if scheme.config is None else make(scheme.config, WORKERS, tensors)
    with ThreadPoolExecutor(servers + WORKERS) as pool:
        for number in (1, 2):  # the second has the first one's residuals
            served = [pool.submit(server.serve, number) for server in serving]
            for one in [pool.submit(worker.run, number) for worker in workers]:
                one.result(30)
            for one in served:
                one.result(30)
            for worker in workers:
                worker.keep()
            stacked = torch.stack(gradients)
            expected = stacked.mean(0) if simulated is None else simulated.average(stacked)
            for worker in workers:
                assert torch.equal(worker.average, workers[0].average)
            # Servers add in the order of arrival: of two coordinates that are all but as large either may be sent.
            far = (workers[0].average - expected).abs() > 1e-5
            assert int(far.sum()) <= 8
    for pair in pairs:
        for both in pair:
            for end in both:
                end.close()


def test_stages_make_up_the_round() -> None:
    workers = [
        {"start": 1.0, "encoded": 1.2, "waited_s": 0.05, "received": 1.9, "done": 2.0},
        {"start": 1.01, "encoded": 1.1, "waited_s": 0.0, "received": 1.8, "done": 2.1},
    ]
    ms = stages_ms(workers, [{"last": 1.5, "reply": 1.6}, {"last": 1.4, "reply": 1.55}])
    assert [round(ms[stage]) for stage in STAGES] == [150, 350, 100, 300, 200]
    assert round(ms["round"]) == 1100
    assert [round(stages_ms(workers, [])[stage]) for stage in STAGES] == [150, 750, 0, 0, 200]


def test_who_encodes_nothing_is_not_late() -> None:
    workers = [{"start": t, "encoded": t, "waited_s": 0.0, "received": 2.0, "done": 2.0} for t in (1.0, 1.3)]
    assert stages_ms(workers, [{"last": 1.5, "reply": 1.6}])["compress"] == 0


def test_network_of_computed_rounds() -> None:
    link = Link(bytes_in=1e6, bytes_out=3e6)
    assert network_ms("fp32", link, 1, 8.0) == pytest.approx(4)
    assert network_ms(THC, link, 1, 8.0) == pytest.approx(3), "both directions at once"
    assert network_ms(THC, link, 4, 8.0) == network_ms("fp32", link, 4, 8.0) == pytest.approx(2)
    parts = {"compress": 1.0, "server": 2.0, "decompress": 4.0}
    assert computed_ms("fp32", parts, link, 1, 8.0) == pytest.approx(11)
    assert computed_ms("fp32", parts, link, 1, 8.0, at_workers=False) == pytest.approx(6)

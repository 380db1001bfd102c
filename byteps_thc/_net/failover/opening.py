"""Opens sessions that resume without a failed server."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event

from byteps_thc._base.errors import ConfigurationError, ThcError, TransportError
from byteps_thc._base.torch_private import Store
from byteps_thc._net.failover.agreement import Agreement
from byteps_thc._net.failover.session import LONGEST_CONNECT_S, FailoverSession
from byteps_thc._net.network_settings import Timeouts
from byteps_thc._net.run import told_run
from byteps_thc._net.servers import NetworkConfig
from byteps_thc._net.session import Session

_SWITCH, _ERROR = "switch", "error: "
#: The servers have let this rank in just before.
_LONGEST_ANSWER_S = 2.0


def open_failover_session(
    network: NetworkConfig,
    store: Store,
    worker: int,
    workers: int,
    deadline_s: float,
    moved: Callable[[], None],
    lost: Callable[[], None],
) -> FailoverSession | Session:
    """Join the servers' job as one of the ranks that share `store`, which is for nothing else.

    network: with a run. deadline_s, moved, lost: of FailoverSession. Returns a Session without failover for switches,
    whose tables have the workers' addresses. Raises Session's errors, ConfigurationError if failover is asked for with
    a switch, DeadlineError if a rank does not come.
    """
    agreement = Agreement(store, worker, workers, Event())
    try:
        first = network.open_session(worker, workers, deadline_s)
    except ThcError as error:
        agreement.tell("kind", f"{_ERROR}{error}")  # the others then report this rank's problem, not a missing rank
        raise
    timeouts = network.timeouts or Timeouts(operation_s=deadline_s)
    try:
        ask = first.inquiry()
        # Only together: a rank whose question was lost would wait for others that never move.
        kinds = agreement.exchange(
            "kind",
            _SWITCH if "other" in ask(_LONGEST_ANSWER_S, 0.0) else "",
            time.monotonic() + timeouts.connect_s + _LONGEST_ANSWER_S + deadline_s,
        )
        for rank, kind in enumerate(kinds):
            if kind.startswith(_ERROR):
                raise TransportError(f"rank {rank} could not join the servers: {kind.removeprefix(_ERROR)}")
        if _SWITCH in kinds and network.failover:
            raise ConfigurationError("failover=True works with thc-ps, and a server is a switch: omit it")
    except ThcError:
        first.close()
        raise
    if _SWITCH in kinds:
        return first
    codes = network.codes.model_copy(update={"codes_per_packet": first.codes_per_packet})
    timeouts = replace(timeouts, connect_s=min(timeouts.connect_s, LONGEST_CONNECT_S))
    addresses = dict(zip(network.servers, first.addresses, strict=True))

    def open_again(servers: Sequence[str], generation: int) -> Session:
        # A server rejects workers of another run: of another generation, or with other servers.
        run = f"{told_run(network.run)} generation {generation} {' '.join(servers)}"
        # Names are not looked up again: the others use the first addresses, and a move may lack a name server.
        found = tuple(addresses[server] for server in servers)
        moved_network = replace(network, codes=codes, servers=found, run=run, timeouts=timeouts)
        return moved_network.open_session(worker, workers, deadline_s)

    return FailoverSession(
        first, network.servers, open_again, ask, deadline_s, store, worker, workers, moved=moved, lost=lost
    )

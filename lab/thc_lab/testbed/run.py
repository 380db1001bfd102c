"""`thc testbed run`: carries out a plan, shows the workers' output, and ends everything with itself."""

import asyncio
import contextlib
import re
import signal
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version

from byteps_thc._base.errors import ConfigurationError, TransportError
from thc_lab.namespaces import Namespaces, bridge, connect
from thc_lab.testbed.host import Events, Host
from thc_lab.testbed.process import Plan, PlannedProcess
from thc_switch.targets import INSTALL_MODEL

_LAST_LINES = 20
#: They end with the last worker, a moment before or after its process.
_OF_ONE_TRAINING = ("scheduler", "server")

#: Shows a line that a process has printed.
Show = Callable[[PlannedProcess, str], None]


async def run(
    plan: Plan, say: Callable[[str], None], show: Show, time_limit_s: float, private: Mapping[str, str] | None = None
) -> str | None:
    """Start everything, wait until all workers have ended with exit status 0, and end everything.

    Args:
        plan: The hosts, cables, files and processes.
        say: Gets a sentence for each process that is ready.
        show: Gets each line of the processes' output.
        time_limit_s: From when the workers start.
        private: Values of the variables of which the plan has the names only.

    Returns the text of the training's results, if the plan has any. Raises ConfigurationError with all that `check`
    finds, and TransportError if a process or a host fails: which one, how, and the last lines of its output.
    """
    async with _opened(plan) as (hosts, events):
        if problems := await _problems(plan, hosts):
            raise ConfigurationError("\n".join(problems))
        await _all(host.put([file for file in plan.files if file.host == host.name]) for host in hosts.values())
        await _Run(plan, hosts, events, say, show).until_done(time_limit_s, private or {})
        return None if plan.results is None else await hosts[plan.results.host].read(plan.results.path)


async def check(plan: Plan) -> list[str]:
    """Return obstacles to the plan on its hosts; namespaces are made for it, and removed."""
    try:
        async with _opened(plan) as (hosts, _):
            return await _problems(plan, hosts)
    except ConfigurationError as error:
        return [str(error)]


@contextlib.asynccontextmanager
async def _opened(plan: Plan) -> AsyncIterator[tuple[dict[str, Host], Events]]:
    """Make the namespaces, open a session on each host, and end everything."""
    if plan.reach != "namespaces":
        raise ConfigurationError(
            'reach = "hosts": `thc testbed` starts processes in namespaces alone; start those of its plan on the hosts '
            "yourself"
        )
    events: Events = asyncio.Queue()
    hosts: dict[str, Host] = {}
    with Namespaces() as made:
        names = {host.name: made.add(host.name) for host in plan.hosts}
        _lay_cables(plan, names)
        try:
            for host in plan.hosts:
                hosts[host.name] = await Host.open(host, names[host.name], events)
            yield hosts, events
        finally:
            await asyncio.shield(_all(host.close() for host in hosts.values()))


def _lay_cables(plan: Plan, names: Mapping[str, str]) -> None:
    for cable in plan.cables:
        connect(
            replace(cable, a=replace(cable.a, host=names[cable.a.host]), b=replace(cable.b, host=names[cable.b.host]))
        )
    for name in plan.bridges:
        bridge(names[name], [cable.b.interface for cable in plan.cables if cable.b.host == name])


async def _problems(plan: Plan, hosts: Mapping[str, Host]) -> list[str]:
    results = await asyncio.gather(*(_problems_of(plan, host) for host in hosts.values()), return_exceptions=True)
    found: list[str] = []
    for result in results:
        if isinstance(result, TransportError):
            found.append(str(result))
        elif isinstance(result, BaseException):
            raise result
        else:
            found += result
    # Namespaces of one machine lack the same.
    return list(dict.fromkeys(found))


async def _problems_of(plan: Plan, host: Host) -> list[str]:
    """Missing parts of a host, with the remedies."""
    processes = [process for process in plan.processes if process.host == host.name]
    programs = list(dict.fromkeys(process.argv[0] for process in processes))
    found = await host.probe(programs, [address for process in processes for address in process.listens])
    versions, problems = found["versions"], []
    if (there := versions["byteps_thc"]) != (here := version("byteps_thc")):
        problems.append(f"this machine: byteps_thc {there or 'is not installed'}; {here} is here: install the same")
    if any(process.role == "scheduler" for process in processes) and versions["byteps"] is None:
        problems.append("this machine: BytePS is not installed: make byteps, in a clone of byteps_thc")
    if (
        any("model" in process.argv for process in processes if process.role == "switch")
        and not versions["thc_p4_model"]
    ):
        problems.append(f"this machine: no P4 model: in a clone of byteps_thc, {INSTALL_MODEL}")
    if missing := found["missing_programs"]:
        problems.append(f"this machine: not on PATH: {', '.join(missing)}; name their folder with bin")
    problems += [f"this machine: cannot be bound: {each}" for each in found["refused_addresses"]]
    return problems


class _Run:
    """State of the processes."""

    def __init__(
        self, plan: Plan, hosts: Mapping[str, Host], events: Events, say: Callable[[str], None], show: Show
    ) -> None:
        self._plan = plan
        self._hosts = hosts
        self._events = events
        self._say = say
        self._show = show
        self._ready: set[str] = set()
        self._left = set(plan.workers)
        self._last: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_LAST_LINES))

    async def until_done(self, time_limit_s: float, private: Mapping[str, str]) -> None:
        """Start all processes in their order, and wait for the workers."""
        for process in self._plan.processes:
            for name in process.after:
                await self._until_ready(self._plan.process(name))
            await self._hosts[process.host].start(process, private)
            if process.ready is None:
                self._ready.add(process.name)
        try:
            async with asyncio.timeout(time_limit_s):
                while self._left:
                    self._take(await self._events.get())
        except TimeoutError:
            raise TransportError(f"the workers did not end within --time-limit, {time_limit_s:g} s") from None

    async def _until_ready(self, process: PlannedProcess) -> None:
        try:
            async with asyncio.timeout(process.ready_timeout_s):
                while process.name not in self._ready:
                    self._take(await self._events.get())
        except TimeoutError:
            how = f"was not ready after {process.ready_timeout_s:g} s: no line of its output matches {process.ready!r}"
            raise self._failure(process, how) from None

    def _take(self, event: tuple[str, str | int] | TransportError) -> None:
        """TransportError if a process has ended that should not."""
        if isinstance(event, TransportError):
            raise event
        name, what = event
        process = self._plan.process(name)
        if isinstance(what, str):
            self._last[name].append(what)
            self._show(process, what)
            if process.ready is not None and name not in self._ready and re.search(process.ready, what):
                self._ready.add(name)
                self._say(f"{name} runs on {process.host}")
        elif what == 0 and process.role == "worker":
            self._left.discard(name)
        elif what != 0 or process.role not in _OF_ONE_TRAINING:
            raise self._failure(process, how_it_ended(what) + ("" if name in self._ready else " before it was ready"))

    def _failure(self, process: PlannedProcess, how: str) -> TransportError:
        lines = [f"  {line}" for line in self._last[process.name]]
        said = ["The last lines of its output:", *lines] if lines else ["It printed nothing"]
        return TransportError("\n".join([f"{process.name} on {process.host} {how}. {said[0]}", *said[1:]]))


def how_it_ended(status: int) -> str:
    """Say it in words; status: negative for a signal."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"was ended by signal {-status} ({name})"


async def _all(work: Iterable[object]) -> None:
    """Run all to their ends, and raise the first error."""
    for result in await asyncio.gather(*work, return_exceptions=True):  # type: ignore[call-overload]
        if isinstance(result, BaseException):
            raise result

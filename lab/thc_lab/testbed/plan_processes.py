"""The processes of a run, each with its command and its conditions for starting."""

import shlex
from collections.abc import Iterator
from dataclasses import replace

from byteps_thc._cli.launch import READY_PREFIX
from thc_lab.testbed.agent import RUN_FOLDER
from thc_lab.testbed.description import PREFIX_LENGTH, Testbed, Worker, aggregator_nic, racks_of
from thc_lab.testbed.plan_environment import (
    address_of_thc_ps,
    byteps_environment,
    byteps_worker_environment,
    eal_arguments,
    path_environment,
    torch_environment,
)
from thc_lab.testbed.process import JOB_DESCRIPTION, PlannedFile, PlannedProcess, Role
from thc_lab.testbed.sections import Dpdk, HostDescription, Racks, SwitchAggregator, ThcPs
from thc_lab.testbed.switch import deployment_of, text_of, words_of_run
from thc_switch.software import READY as SWITCH_READY

AGENT_READY = "agent ready on "


class Processes:
    """Makes the processes of a testbed. bin: folder of the commands; None: they are on PATH."""

    def __init__(self, testbed: Testbed, workers: tuple[Worker, ...], bin: str | None) -> None:
        self._testbed = testbed
        self._workers = workers
        self._bin = bin

    def all(self) -> tuple[PlannedProcess, ...]:
        """Every process, in the order in which they start."""
        summing = tuple(self._aggregators())
        launched = self._torchrun if self._testbed.training.launcher == "torchrun" else self._bpslaunch
        return (*summing, *launched(tuple(process.name for process in summing)))

    def files(self) -> Iterator[PlannedFile]:
        """Files and folders that the processes need."""
        if isinstance(self._testbed.aggregator, SwitchAggregator):
            deployment = deployment_of(self._testbed, self._testbed.aggregator, self._workers)
            yield PlannedFile(self._testbed.aggregator.host, self._job_description, text_of(deployment))
        if self._testbed.training.launcher == "bpslaunch":
            for worker in self._workers:
                yield PlannedFile(worker.host.name, f"{RUN_FOLDER}/worker{worker.number}")

    @property
    def _rendezvous(self) -> str:
        return f"tcp:{self._testbed.coordinator.management_ip}:{self._testbed.training.port}"

    @property
    def _job_description(self) -> str:
        return f"{RUN_FOLDER}/{JOB_DESCRIPTION}"

    def command(self, name: str) -> str:
        """Path of a command on the hosts."""
        return name if self._bin is None else f"{self._bin}/{name}"

    def _aggregators(self) -> Iterator[PlannedProcess]:
        aggregator = self._testbed.aggregator
        if isinstance(aggregator, SwitchAggregator):
            tofino = aggregator.runner == "tofino"
            yield self._agent(aggregator) if tofino else self._software_switch(aggregator)
        elif isinstance(aggregator, Racks):
            yield from self._racks(aggregator)
        else:
            for number, host in enumerate(self._testbed.aggregator_hosts):
                yield self._thc_ps(aggregator, f"thc-ps{number}", host)

    def _racks(self, aggregator: Racks) -> Iterator[PlannedProcess]:
        root = self._testbed.host(aggregator.root)
        yield self._thc_ps(aggregator, "root", root)
        racks = racks_of(self._testbed, aggregator)
        shared = (
            "--upstream",
            address_of_thc_ps(self._testbed, root),
            "--racks",
            ",".join(rack.range for rack in racks),
        )
        for rack in racks:
            leaf = self._thc_ps(aggregator, f"leaf{rack.number}", rack.leaf, (*shared, "--rack", str(rack.number)))
            yield replace(leaf, after=("root",))

    def _thc_ps(
        self, aggregator: ThcPs | Racks, name: str, host: HostDescription, upstream: tuple[str, ...] = ()
    ) -> PlannedProcess:
        nic = aggregator_nic(self._testbed, host)
        argv = [self.command("thc-ps"), "--listen", str(nic.ip), "--port", str(aggregator.port), *upstream]
        if self._testbed.job.key_file is not None:
            argv += ["--key-file", self._testbed.job.key_file]
        if aggregator.metrics_port:
            argv += ["--metrics-port", str(aggregator.metrics_port), "--metrics-listen", str(host.management_ip)]
        transport = self._testbed.transport
        if isinstance(transport, Dpdk):
            arguments = eal_arguments(self._testbed, transport, host, nic, name)
            argv += ["--dpdk", "--eal-args", shlex.join(arguments), "--dpdk-prefix", str(PREFIX_LENGTH)]
        return PlannedProcess(
            name=name,
            host=host.name,
            role="aggregator",
            argv=(*argv, *aggregator.options),
            environment=path_environment(self._bin),
            ready=READY_PREFIX,
            listens=() if isinstance(transport, Dpdk) else (f"udp:{nic.ip}:{aggregator.port}",),
        )

    def _software_switch(self, aggregator: SwitchAggregator) -> PlannedProcess:
        return PlannedProcess(
            name="switch",
            host=aggregator.host,
            role="switch",
            argv=(self.command("thc"), *words_of_run(self._testbed, aggregator, self._job_description)),
            environment=path_environment(self._bin),
            ready=SWITCH_READY,
        )

    def _agent(self, aggregator: SwitchAggregator) -> PlannedProcess:
        return PlannedProcess(
            name="agent",
            host=aggregator.host,
            role="agent",
            # Installed when it starts, and only then: that closes all jobs of the switch.
            argv=(self.command("thc"), "switch", "serve", self._job_description, "--target", "grpc", "--install"),
            environment=path_environment(self._bin),
            ready=AGENT_READY,
        )

    def _bpslaunch(self, aggregators: tuple[str, ...]) -> Iterator[PlannedProcess]:
        coordinator = self._testbed.coordinator
        path = path_environment(self._bin)
        servers = tuple(f"server{number}" for number in range(self._testbed.training.byteps_servers))
        for name in ("scheduler", *servers):
            role: Role = "scheduler" if name == "scheduler" else "server"
            yield PlannedProcess(
                name=name,
                host=coordinator.name,
                role=role,
                argv=(self.command("bpslaunch"),),
                environment=path | byteps_environment(self._testbed, role, coordinator),
                after=() if role == "scheduler" else ("scheduler",),
                listens=(self._rendezvous,) if role == "scheduler" else (),
            )
        for worker in self._workers:
            sockets = f"{RUN_FOLDER}/worker{worker.number}"
            words = (shlex.quote(word) for word in self._testbed.training.command)  # bpslaunch gives them to a shell
            yield PlannedProcess(
                name=f"worker{worker.number}",
                host=worker.host.name,
                role="worker",
                argv=(self.command("bpslaunch"), *words),
                environment=path | byteps_worker_environment(self._testbed, worker, sockets),
                private=tuple(self._testbed.training.environment),
                folder=self._testbed.training.folder,
                after=(*aggregators, "scheduler", *servers),
            )

    def _torchrun(self, aggregators: tuple[str, ...]) -> Iterator[PlannedProcess]:
        testbed = self._testbed
        coordinator = testbed.coordinator
        firsts = [worker for worker in self._workers if worker.local == 0]
        for node, first in enumerate(firsts):
            host = first.host
            options = {
                "nnodes": len(firsts),
                "nproc-per-node": host.workers,
                "node-rank": node,
                "master-addr": coordinator.management_ip,
                "master-port": testbed.training.port,
            }
            words = (f"--{name}={value}" for name, value in options.items())
            yield PlannedProcess(
                name=f"worker{node}",
                host=host.name,
                role="worker",
                argv=(self.command("torchrun"), *words, "--no-python", *testbed.training.command),
                environment=path_environment(self._bin) | torch_environment(testbed, first),
                private=tuple(testbed.training.environment),
                folder=testbed.training.folder,
                after=aggregators,
                listens=() if node else (self._rendezvous,),
            )

"""An engine's communicators over a process group, by the group's back ends."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from byteps_thc._base.errors import ConfigurationError, ThcError
from byteps_thc._base.settings import describe
from byteps_thc._base.torch_private import PrefixStore, Store, backend_of
from byteps_thc._net.communicator import Communicator, translate
from byteps_thc._net.connecting import connect_groups
from byteps_thc._net.ending import collect_forgotten
from byteps_thc._net.gloo import GlooCommunicator
from byteps_thc._net.nccl import DeviceCommunicator
from byteps_thc._net.store import StoreCommunicator
from byteps_thc._net.watch import Watch


def choose_process_group(given: object, caller: str) -> dist.ProcessGroup:
    """Return the process group in a front end's first argument; None: the default group.

    caller: the front end's name. Raises ConfigurationError with the right argument if `given` is no group, or this rank
    is not in it.
    """
    group = dist.group.WORLD if given is None else given
    if isinstance(group, dist.ProcessGroup):
        return group
    if group is None:
        raise ConfigurationError(f"call torch.distributed.init_process_group() before {caller}()")
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ConfigurationError(f"this rank is not in the process group: call {caller} on its ranks only")
    if isinstance(group, DeviceMesh):
        names = group.mesh_dim_names or ()
        name = repr(names[0]) if group.ndim > 1 and names else ""
        right = f"{caller}(mesh.get_group({name}))"
        if name:
            right += f" averages over that dimension, {caller}(None, levels=(mesh, {name})) in two levels"
    elif isinstance(group, nn.Module):
        right = f"{caller}(None), or byteps_thc.ddp.compress(ddp) for a DDP model"
    else:
        right = f"{caller}(torch.distributed.new_group(ranks)), or {caller}(None) for the default one"
    raise ConfigurationError(f"the first argument of {caller} is a process group, not {describe(group)}: {right}")


@contextmanager
def refusals_told(
    process_group: dist.ProcessGroup | None, questions: StoreCommunicator | None = None
) -> Iterator[None]:
    """Answer the other ranks' next question with errors of the block, which they raise, too.

    process_group: None: tell nobody. questions: default: of the next Communicators.
    """
    try:
        yield
    except Exception as error:
        if process_group is not None and process_group.size() > 1:
            with suppress(ThcError):  # from a lost store: the others see that, too
                questions = questions or _questions(process_group, _new_store(process_group), 0.0)
                questions.refuse(f"rank {dist.get_rank()} could not begin: {error}")
        raise


class Communicators:
    """Communicators of one engine over the ranks of a process group (gloo or NCCL); they end with it.

    Device tensors travel over NCCL, host tensors over gloo: threads would start NCCL's collectives in other orders on
    other ranks (two levels with kernels on the host risk that within a node). All ranks must open the same
    communicators in the same order. timeout_s: of every collective. callers: number of later for_caller() calls, whose
    communicators connect with the first ones of of_host(). It raises ConfigurationError for other back ends.
    """

    def __init__(self, process_group: dist.ProcessGroup, timeout_s: float, *, callers: int = 0) -> None:
        names = backends(process_group)
        if not {"gloo", "nccl"} & set(names):
            raise ConfigurationError(f"process groups of back ends {names} are not supported: use gloo or nccl")
        collect_forgotten()  # before the ranks meet: then no rank is in a server's job of an earlier training
        self._process_group, self._timeout_s = process_group, timeout_s
        self._store, self._stores = _new_store(process_group), 0
        self._questions = _questions(process_group, self._store, timeout_s)
        self._opened: list[GlooCommunicator | DeviceCommunicator] = []
        self._callers, self._for_callers = callers, list[GlooCommunicator]()

    def for_questions(self) -> StoreCommunicator:
        """Return a communicator without connections, for rare, small host tensors and texts."""
        return self._questions

    def of_host(self, count: int) -> list[GlooCommunicator]:
        """Return `count` of host tensors, which connect together. Raises TransportError or DeadlineError."""
        opened = self._connect(count)
        self._opened += opened
        return opened

    def for_caller(self) -> GlooCommunicator:
        """Return one of host tensors, which the caller closes. Raises of_host()'s errors."""
        if not self._for_callers:
            self._callers = max(1, self._callers)
            self._connect(0)
        return self._for_callers.pop(0)

    def _connect(self, count: int) -> list[GlooCommunicator]:
        opened = _connect(self._questions, self._process_group, self._timeout_s, count + self._callers)
        self._for_callers += opened[count:]
        self._callers = 0
        return opened[:count]

    def of_device(self) -> Communicator:
        """Return one of GPU tensors; the process group has NCCL. Raises of_host()'s errors."""
        group, timeout = self._process_group, timedelta(seconds=self._timeout_s)
        try:
            opened = DeviceCommunicator(self.new_store(), group.rank(), group.size(), timeout)
        except RuntimeError as error:
            raise translate(error) from error
        self._opened.append(opened)
        return opened

    def new_store(self) -> PrefixStore:
        number, self._stores = self._stores, self._stores + 1
        return PrefixStore(f"store{number}", self._store)

    def watch(self, hint: str, *parts: "Communicators") -> Watch | None:
        """Return a new watch of gradients on the device; None for one rank.

        hint: last sentence of its errors. parts: communicators over some of the ranks that it ends; default: these.
        """
        group, parts = self._process_group, parts or (self,)
        if group.size() == 1:
            return None
        watch = Watch(self.new_store(), group.rank(), self._timeout_s, hint, [part.abort for part in parts])
        for part in parts:
            part.for_questions().meanwhile = watch.require_same
        return watch

    def abort(self) -> None:
        """End collectives on the device that other ranks never start, from any thread."""
        for communicator in [*self._opened]:
            if isinstance(communicator, DeviceCommunicator):
                communicator.abort()

    def close(self) -> None:
        """End all communicators in the order of their opening, the same on all ranks. May be called again."""
        while self._opened:
            self._opened.pop(0).close()


def _connect(
    questions: StoreCommunicator, process_group: dist.ProcessGroup, timeout_s: float, count: int
) -> list[GlooCommunicator]:
    try:
        groups = connect_groups(questions, process_group.rank(), process_group.size(), timeout_s, count)
    except RuntimeError as error:
        lost = translate(error)
        raise type(lost)(
            f"{lost}. Ranks exchange host tensors over gloo, with NCCL, too: where host names do not lead to the "
            "network, name its interface in GLOO_SOCKET_IFNAME, as in NCCL_SOCKET_IFNAME"
        ) from error
    return [GlooCommunicator(group, timeout_s) for group in groups]


def _questions(group: dist.ProcessGroup, store: Store, timeout_s: float) -> StoreCommunicator:
    return StoreCommunicator(PrefixStore("questions", store), group.rank(), group.size(), timeout_s)


class GroupPart(dist.ProcessGroup):
    """Some ranks of a process group: number, size, store and back ends, which is enough to open communicators.

    Without connections or threads: torch's collectives do not work on it, and it needs no close().
    """

    def __init__(self, whole: dist.ProcessGroup, ranks: Sequence[int], store: PrefixStore) -> None:
        """ranks: their numbers in `whole`, this rank's included. store: for `ranks` alone."""
        # torch has another constructor, with a store, that makes no subclasses.
        super().__init__(ranks.index(whole.rank()), len(ranks))  # type: ignore[call-arg]
        members = world_ranks(whole)
        self.world_ranks = [members[rank] for rank in ranks]
        self.whole, self._part_store = whole, store

    @override
    def get_group_store(self) -> PrefixStore:
        return self._part_store


def world_ranks(process_group: dist.ProcessGroup) -> list[int]:
    """Return a group's ranks by their numbers in the world, in the group's order."""
    if isinstance(process_group, GroupPart):
        return process_group.world_ranks
    ranks: list[int] = dist.get_process_group_ranks(process_group)
    return ranks


def group_of(ranks: Sequence[int]) -> GroupPart:
    """Return a group of some ranks of the world, in ascending order; only these ranks call it."""
    world = dist.group.WORLD
    assert world is not None
    name = hashlib.blake2b(repr(ranks).encode(), digest_size=8).hexdigest()
    return GroupPart(world, ranks, PrefixStore(f"thc/ranks {name}", world.get_group_store()))


def cut_group(process_group: dist.ProcessGroup, parts: Sequence[Sequence[Sequence[int]]]) -> list[GroupPart]:
    """Return this rank's parts of a process group, one of each division; collective.

    parts[d]: disjoint groups of ranks, by their numbers in the process group, which together contain all ranks.
    """
    store, own = _new_store(process_group), process_group.rank()
    return [
        GroupPart(process_group, ranks, PrefixStore(f"division{division}/part{number}", store))
        for division, groups in enumerate(parts)
        for number, ranks in enumerate(groups)
        if own in ranks
    ]


def _new_store(process_group: dist.ProcessGroup) -> PrefixStore:
    """Return a store in which the ranks of a new communicator find each other."""
    # dist.new_group() is not used: it takes all ranks of the job, or with use_local_synchronization names the group
    # after the process's number of groups, which may differ between ranks.
    store = process_group.get_group_store()
    number = store.add(f"thc/communicators/{process_group.rank()}", 1)
    return PrefixStore(f"thc/communicator{number}", store)


def backends(process_group: dist.ProcessGroup) -> list[str]:
    """Return the back ends of host and device tensors; dist.get_backend() may say "undefined"."""
    if isinstance(process_group, GroupPart):
        return backends(process_group.whole)
    names = []
    for device in ("cpu", "cuda"):
        with suppress(RuntimeError):  # none for this device
            names.append(backend_of(process_group, torch.device(device)).name())
    return list(dict.fromkeys(names))

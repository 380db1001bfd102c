"""Racks of a job: one thc-ps for each, and one above them that adds their sums."""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate
from typing import Self

from byteps_thc._cli.launch import ParameterServer


class RackServers:
    """A root and its leaves, for racks of so many workers. All thc-ps get `arguments`, leaves also `leaf_arguments`."""

    def __init__(
        self, sizes: Sequence[int], arguments: Sequence[str] = (), *, leaf_arguments: Sequence[str] = ()
    ) -> None:
        self.sizes = sizes
        self._arguments = list(arguments)
        self._leaf_arguments = list(leaf_arguments)
        self._stack = ExitStack()
        self.root_port = 0
        self.root: ParameterServer
        self.leaves: list[ParameterServer] = []

    def __enter__(self) -> Self:
        try:
            self.start_root()
            self.leaves = [self.start_leaf(rack) for rack in range(len(self.sizes))]
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_root(self) -> None:
        """Start the root, or start it again at its address."""
        self.root = self._stack.enter_context(ParameterServer(self._arguments, port=self.root_port))
        self.root_port = int(self.root.address.rpartition(":")[2])

    def start_leaf(self, rack: int, port: int = 0, arguments: Sequence[str] = ()) -> ParameterServer:
        """Start the leaf of a rack."""
        ends = list(accumulate(self.sizes))
        racks = ",".join(f"{end - size}-{end - 1}" for end, size in zip(ends, self.sizes, strict=True))
        place = ["--upstream", f"127.0.0.1:{self.root_port}", "--rack", str(rack), "--racks", racks]
        command = [*self._arguments, *self._leaf_arguments, *place, *arguments]
        return self._stack.enter_context(ParameterServer(command, port=port))

    def address_of(self, worker: int) -> str:
        """Return the address of the worker's leaf."""
        rack = next(rack for rack, end in enumerate(accumulate(self.sizes)) if worker < end)
        return self.leaves[rack].address

    @property
    def workers(self) -> int:
        """The number of workers in all racks."""
        return sum(self.sizes)

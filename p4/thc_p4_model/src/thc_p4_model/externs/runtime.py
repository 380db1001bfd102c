"""Makes the tables and externs of one program instance, from an architecture's classes and functions."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from thc_p4_model.interfaces import CallInfo, ExternInfo, P4Error, TableInfo
from thc_p4_model.tables import CountedTable, Table


@dataclass(eq=False)
class PassState:
    """The externs' view of the pass in progress: one trip of a packet through ingress or egress."""

    random: random.Random
    number: int = 0
    """Counts passes; two calls with the same number happen in the same pass."""
    packet_bytes: int = 0
    """Length of the packet as it entered the pass."""


FunctionBinder = Callable[[Any, CallInfo], Callable[..., Any]]
"""From an architecture's state and one call in the source to the function that does it."""


class DirectCounter:
    """Counts packets and bytes per entry of the table it belongs to; see the architectures for when."""

    def __init__(self, info: ExternInfo, state: PassState) -> None:
        self.info = info
        self.state = state

    def hit(self, entry: Any) -> None:
        """The table's match found this entry."""
        raise NotImplementedError


class ExternRuntime:
    """Implements `interfaces.Runtime`."""

    def __init__(
        self,
        state: PassState,
        classes: Mapping[str, Callable[[ExternInfo, Any], Any]],
        functions: Mapping[str, FunctionBinder],
        default_table_size: int,
    ) -> None:
        self.state = state
        self._classes = classes
        self._functions = functions
        self._default_table_size = default_table_size

    def new_extern(self, info: ExternInfo) -> Any:
        """Construct an extern instance."""
        if info.extern not in self._classes:
            raise P4Error(info.location, f"extern {info.extern} is not supported by the model")
        return self._classes[info.extern](info, self.state)

    def new_table(self, info: TableInfo) -> Table:
        """Construct a table."""
        for unsupported in ("meters", "registers", "support_timeout", "idle_timeout"):
            if info.properties.get(unsupported):
                raise P4Error(info.location, f"table {info.name}: property {unsupported} is not supported by the model")
        counter = info.properties.get("counters")
        if counter is not None:
            return CountedTable(info, self._default_table_size, counter.hit)
        return Table(info, self._default_table_size)

    def bind_function(self, call: CallInfo) -> Callable[..., Any]:
        """The function behind one call of an extern function."""
        if call.name not in self._functions:
            raise P4Error(call.location, f"function {call.name} is not supported by the model")
        return self._functions[call.name](self.state, call)

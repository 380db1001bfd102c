"""Stateful ALUs: Register, RegisterAction and RegisterParam, with the hardware's rules.

A register is accessed once per packet and pass, by one of at most four RegisterActions; its values are 1, 8, 16 or 32
bits, or a pair of such.
"""

from collections.abc import Callable
from typing import Any

from thc_p4_model.errors import ControlError
from thc_p4_model.externs.registers import RegisterArray
from thc_p4_model.externs.tna_state import TnaState
from thc_p4_model.interfaces import CallInfo, ExternInfo, Kind, P4Error, TypeInfo
from thc_p4_model.match import check_value

PART_BITS = (1, 8, 16, 32)
MAX_ACTIONS = 4


def check_value_type(info: ExternInfo, type_info: TypeInfo) -> None:
    """Refuse values a stateful ALU does not have."""
    parts = [field for _, field in type_info.fields] if type_info.kind is Kind.STRUCT else [type_info]
    if len(parts) > 2 or any(part.width not in PART_BITS for part in parts) or len({part.width for part in parts}) != 1:
        raise P4Error(
            info.location,
            f"register {info.name} holds {type_info.name}: a stateful ALU takes 1, 8, 16 or 32 bits, or a struct of two"
            " such fields of the same width",
        )


class Register(RegisterArray):
    """`Register<T, I>(size, initial_value)`."""

    def __init__(self, info: ExternInfo, state: TnaState) -> None:
        check_value_type(info, info.type_args[0])
        super().__init__(info, info.args[0], info.args[1] if len(info.args) > 1 else None)
        self.state = state
        self.actions: list[ExternInfo] = []
        self.last_pass = 0

    def use(self, call: CallInfo) -> None:
        """Refuse a second access in the same pass."""
        if self.last_pass == self.state.number:
            raise P4Error(call.location, f"second access to register {self.name} by one packet in one pass")
        self.last_pass = self.state.number

    def bind_read(self, call: CallInfo) -> Callable[[int], Any]:
        """`T read(in I index)`."""

        def read(index: int) -> Any:
            self.use(call)
            if not 0 <= index < len(self.values):
                raise self.outside(call, index)
            value = self.values[index]
            return value.copy() if self.is_struct else value

        return read

    def bind_write(self, call: CallInfo) -> Callable[[int, Any], Any]:
        """`T write(in I index, in T value)`: returns the earlier value."""

        def write(index: int, value: Any) -> Any:
            self.use(call)
            if not 0 <= index < len(self.values):
                raise self.outside(call, index)
            before = self.values[index]
            self.values[index] = value.copy() if self.is_struct else value
            return before

        return write


class RegisterAction:
    """`RegisterAction<T, I, U>(reg)`; `apply` is the program's."""

    def __init__(self, info: ExternInfo, _: TnaState) -> None:
        register = info.args[0]
        if not isinstance(register, Register):
            raise P4Error(info.location, f"RegisterAction {info.name} needs a Register")
        register.actions.append(info)
        if len(register.actions) > MAX_ACTIONS:
            names = ", ".join(action.name.rpartition(".")[2] for action in register.actions)
            message = f"register {register.name} has more than {MAX_ACTIONS} RegisterActions: {names}"
            raise P4Error(info.location, message)
        self.register = register
        self.apply = info.abstract["apply"]

    def bind_execute(self, call: CallInfo) -> Callable[[int], Any]:
        """`U execute(in I index)`; on Tofino 2 also with up to three more results."""
        if not call.params or call.params[0].direction != "in":
            raise P4Error(call.location, "execute needs an index")
        register, values, state, apply = self.register, self.register.values, self.register.state, self.apply
        outputs = len(call.params) - 1
        nothing: Any = (0,) * (outputs + 1) if outputs else 0

        def results(given: tuple[Any, ...]) -> Any:
            """The results of apply besides the new value, as callers of execute take them; 0 for absent ones."""
            return (*given, *nothing[len(given) :]) if outputs else given[0]

        def execute_scalar(index: int) -> Any:
            if register.last_pass == state.number:
                register.use(call)
            register.last_pass = state.number
            if not 0 <= index < len(values):
                raise register.outside(call, index)
            result = apply(values[index])
            if type(result) is not tuple:  # apply without rv
                values[index] = result
                return nothing
            values[index] = result[0]
            return results(result[1:]) if outputs else result[1]

        def execute_struct(index: int) -> Any:
            register.use(call)
            if not 0 <= index < len(values):
                raise register.outside(call, index)
            result = apply(values[index])
            if result is None:
                return nothing
            return results(result if isinstance(result, tuple) else (result,))

        return execute_struct if register.is_struct else execute_scalar


class RegisterParam:
    """`RegisterParam<T>(initial_value)`: a constant of a RegisterAction that the control plane may change."""

    def __init__(self, info: ExternInfo, _: TnaState) -> None:
        self.info = info
        self.value: int = info.args[0]

    def read(self) -> int:
        """`T read()`."""
        return self.value

    def set(self, value: int) -> None:
        """For the control plane."""
        if not isinstance(value, int):
            raise ControlError(f"register parameter {self.info.name} takes an integer, not {value!r}")
        self.value = check_value(f"register parameter {self.info.name}", self.info.type_args[0], value)

"""Arrays of register values, read and written by programs and by the control plane."""

from collections.abc import Callable
from typing import Any

from thc_p4_model.errors import ControlError
from thc_p4_model.interfaces import CallInfo, ExternInfo, Kind, P4Error, TypeInfo
from thc_p4_model.match import check_value
from thc_p4_model.values import Struct


class RegisterArray:
    """Values of one type. Structs are kept as objects and handed to the control plane as dictionaries."""

    def __init__(self, info: ExternInfo, size: int, initial: Any = None) -> None:
        self.info = info
        self.name = info.name
        self.type: TypeInfo = info.type_args[0]
        self.is_struct = self.type.kind is Kind.STRUCT
        if not self.is_struct and self.type.kind not in (Kind.BIT, Kind.INT, Kind.BOOL):
            raise P4Error(info.location, f"{info.extern} {info.name} cannot hold values of type {self.type.name}")
        self._initial = initial
        self.values: list[Any] = [self._new() for _ in range(size)]

    def _new(self) -> Any:
        value = self.type.new()
        if self._initial is None:
            return value
        if not self.is_struct:
            return self._initial
        given = self._initial
        fields = [getattr(given, name) for name in given.FIELDS] if isinstance(given, Struct) else given
        for name, field in zip(value.FIELDS, fields, strict=True):
            setattr(value, name, field)
        return value

    def __len__(self) -> int:
        return len(self.values)

    def outside(self, call: CallInfo, index: int) -> P4Error:
        """The error of a call with an index past the end."""
        return P4Error(call.location, f"index {index} is outside {self.name}, which has {len(self.values)} values")

    def get(self, index: int) -> Any:
        """For the control plane: an int, or a dictionary of a struct's fields."""
        return self._export(self.values[self._check(index)])

    def get_range(self, first: int, count: int) -> list[Any]:
        """For the control plane: `count` values from `first` on."""
        if count:
            self._check(first)
            self._check(first + count - 1)
        return [self._export(value) for value in self.values[first : first + count]]

    def set(self, index: int, value: Any) -> None:
        """From the control plane: an int, or a dictionary of all fields of a struct."""
        self.values[self._check(index)] = self._import(value)

    def reset(self, first: int = 0, count: int | None = None) -> None:
        """Reset `count` elements from `first`, or all to the end, to initial values."""
        stop = len(self.values) if count is None else first + count
        if stop > first:
            self._check(first)
            self._check(stop - 1)
        self.values[first:stop] = [self._new() for _ in range(first, stop)]

    def _check(self, index: int) -> int:
        if not 0 <= index < len(self.values):
            raise ControlError(f"index {index} is outside register {self.name}, which has {len(self.values)} values")
        return index

    def _export(self, value: Any) -> Any:
        if not self.is_struct:
            return value
        return {name: getattr(value, slot) for slot, (name, _) in zip(value.FIELDS, self.type.fields, strict=True)}

    def _import(self, value: Any) -> Any:
        if not self.is_struct:
            return check_value(f"register {self.name}", self.type, value)
        names = [name for name, _ in self.type.fields]
        if not isinstance(value, dict) or set(value) != set(names):
            raise ControlError(f"register {self.name} takes a dictionary of {', '.join(names)}, not {value!r}")
        result = self.type.new()
        for slot, (name, field_type) in zip(result.FIELDS, self.type.fields, strict=True):
            setattr(result, slot, check_value(f"{name} of register {self.name}", field_type, value[name]))
        return result


class IndexedRegister(RegisterArray):
    """A register that programs read and write by index, as in v1model."""

    def __init__(self, info: ExternInfo, state: object) -> None:  # noqa: ARG002 - the signature of all externs
        super().__init__(info, info.args[0])
        if self.is_struct:
            raise P4Error(info.location, f"register {info.name} cannot hold structs")

    def bind_read(self, call: CallInfo) -> Callable[[int], Any]:
        """`void read(out T result, in I index)`."""
        values = self.values

        def read(index: int) -> Any:
            if not 0 <= index < len(values):
                raise self.outside(call, index)
            return values[index]

        return read

    def bind_write(self, call: CallInfo) -> Callable[[int, Any], None]:
        """`void write(in I index, in T value)`."""
        values = self.values

        def write(index: int, value: Any) -> None:
            if not 0 <= index < len(values):
                raise self.outside(call, index)
            values[index] = value

        return write

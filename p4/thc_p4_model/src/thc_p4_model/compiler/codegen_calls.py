"""Calls of built-in methods, externs and functions."""

from typing import Any

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.calls import CallKind
from thc_p4_model.compiler.codegen_base import ExternInstance, literal
from thc_p4_model.compiler.codegen_invoke import InvokeGenerator
from thc_p4_model.compiler.codegen_types import attribute
from thc_p4_model.compiler.constants import SIZES, NotConstant, evaluate, size_of
from thc_p4_model.interfaces import CallInfo, P4Error, Param


class CallGenerator(InvokeGenerator):
    """Adds calls."""

    def inlined_call(self, call: s.Call) -> None:
        """Emit the call of an action, or of a parser or control."""
        raise NotImplementedError

    def applied_table(self, call: s.Call) -> None:
        """Emit the application of a table whose result is not used."""
        raise NotImplementedError

    def call_value(self, call: s.Call) -> str:
        """Emit a call and give code for its result."""
        return self._call(call)

    def call_statement(self, call: s.Call) -> None:
        """Emit a call for its effects."""
        self._call(call)

    def _call(self, call: s.Call) -> str:
        """Emit a call; gives code for its result, empty for void."""
        match call.target.kind:
            case CallKind.BUILT_IN:
                return self._built_in(call)
            case CallKind.EXTERN_FUNCTION:
                return self._extern_function(call)
            case CallKind.EXTERN_METHOD:
                return self._extern_method(call)
            case CallKind.FUNCTION:
                return self.function_call(call)
            case CallKind.ACTION | CallKind.BLOCK:
                self.inlined_call(call)
                return ""
            case CallKind.TABLE:
                self.applied_table(call)
                return ""
        raise P4Error(call.location, "an instance cannot be made here")

    def _built_in(self, call: s.Call) -> str:
        target = call.target
        if target.name in SIZES:
            measured = target.constructed or self.type_of(target.base)  # type: ignore[arg-type]
            return literal(size_of(target.name, measured))
        assert target.base is not None
        if target.name == "isValid":
            return f"{self.value(target.base)}.valid"
        place = self.place(target.base)
        match target.name:
            case "setValid":
                if place.union is not None:
                    self.emit(f"{place.union[0]}.select({place.union[1]!r})")
                self.emit(f"{place.code}.valid = True")
            case "setInvalid":
                self.emit(f"{place.code}.set_invalid()")
            case name:
                count = target.args[0].value
                assert count is not None
                self.emit(f"{place.code}.{name}({evaluate(count)})")
        return ""

    # Externs

    def _extern_function(self, call: s.Call) -> str:
        target = call.target
        if target.name == "verify":
            condition, error = self.values([arg.value for arg in target.args if arg.value is not None])
            self.emit(f"if not {condition}: raise ParserError({error})")
            return ""
        if target.name == "static_assert":
            self._static_assert(call)
            return "True"
        name = self.name(target.name)
        self.setup.append(f"{name} = bind_function({self.add_info(self._call_info(call))})")
        return self.invoke(call, name)

    def _static_assert(self, call: s.Call) -> None:
        condition, *message = [arg.value for arg in call.target.args]
        assert condition is not None
        try:
            holds = evaluate(condition, self.constants())
        except NotConstant:
            self.fail(call, "the condition of static_assert must be known at compile time")
        if not holds:
            text = evaluate(message[0]) if message and message[0] is not None else "static_assert failed"
            self.fail(call, str(text))

    def _extern_method(self, call: s.Call) -> str:
        target = call.target
        assert target.base is not None
        binding = self.bindings.get(target.base.decl) if isinstance(target.base, s.Name) else None
        if isinstance(binding, ExternInstance):
            name = self.name(f"{binding.name.rpartition('.')[2]}_{target.name}")
            info = self.add_info(self._call_info(call))
            self.setup.append(f"{name} = bind_method({binding.code}, {target.name!r}, {info})")
            return self.invoke(call, name)
        base = self.value(target.base)
        base_type = self.type_of(target.base)
        assert isinstance(base_type, t.ExternType)
        if base_type.decl.name == "packet_in" and target.name == "lookahead":
            return self._lookahead(base, self.substituted(target.result), call)
        if base_type.decl.name == "packet_out" and target.name == "emit":
            value = target.args[0].value
            assert value is not None
            self._emit_packet(base, self.value(value), self.type_of(value), call)
            return ""
        return self.invoke(call, f"{base}.{target.name}")

    def _lookahead(self, packet: str, type_: t.Type, call: s.Call) -> str:
        width = t.width_of(type_)
        if not width or t.has_varbit(type_):
            self.fail(call, f"lookahead of {type_} is not supported: it has no fixed width")
        bits = self.temp(f"{packet}.lookahead_bits({width})", "ahead")
        if isinstance(t.strip(type_), t.BitType) and not t.strip(type_).signed:  # type: ignore[attr-defined]
            return bits
        unpack = self.name("unpack")
        self.setup.append(f"{unpack} = {self.add_info(self.types.info(type_))}.unpack")
        return self.temp(f"{unpack}({bits})", "ahead")

    def _emit_packet(self, packet: str, code: str, type_: t.Type, call: s.Call) -> None:
        """Emit statements that emit the headers of a value, structs taken apart."""
        match type_:
            case t.RecordType(keyword="header"):
                self.emit(f"if {code}.valid: {packet}.emit({code})")
            case t.RecordType(fields=fields):
                for field, field_type in fields.items():
                    self._emit_packet(packet, f"{code}.{attribute(field)}", field_type, call)
            case t.StackType():
                self.emit(f"{packet}.emit({code})")
            case t.TupleType(items):
                for index, item in enumerate(items):
                    self._emit_packet(packet, f"{code}[{index}]", item, call)
            case _:
                self.fail(call, f"only headers can be emitted, not {type_}")

    def _call_info(self, call: s.Call) -> CallInfo:
        target = call.target
        params, constants = [], []
        for arg in self.passed(target.args):
            type_ = self.type_of(arg.value) if arg.value is not None else self.substituted(arg.type)
            params.append(Param(arg.param.name, arg.param.direction, self.types.info(type_)))
            constants.append(self._constant(arg.value))
        return CallInfo(
            name=target.name,
            type_args=tuple(self.types.info(self.substituted(arg)) for arg in target.type_args),
            params=tuple(params),
            result=self.types.info(self.substituted(target.result)),
            constants=tuple(constants),
            location=call.location,
        )

    def _constant(self, value: s.Expr | None) -> Any:
        if value is None:
            return None
        try:
            return evaluate(value, self.constants())
        except NotConstant:
            return None

"""Places that can be written, and stores into them."""

from dataclasses import dataclass, field

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler import types as t
from thc_p4_model.compiler.codegen_base import SIMPLE, Variable, is_literal
from thc_p4_model.compiler.codegen_operators import number_type
from thc_p4_model.compiler.codegen_types import attribute
from thc_p4_model.compiler.codegen_values import ValueGenerator
from thc_p4_model.compiler.never_valid import NeverValid
from thc_p4_model.interfaces import P4Error


@dataclass(eq=False)
class Place:
    """A place that can store a value."""

    code: str
    """The Python expression or target."""
    type: t.Type
    guard: str = ""
    """Writes are dropped unless this header is valid."""
    slice: tuple[int, int] | None = None
    """High and low bit, if only a part of the number is written."""
    union: tuple[str, str] | None = None
    """Code of the header union and the member, if the place is one."""
    after: list[str] = field(default_factory=list)
    """Statements to run once the place was filled by a call."""


class PlaceGenerator(ValueGenerator):
    """Adds places."""

    never_valid: NeverValid

    def place(self, expr: s.Expr) -> Place:
        """The place an expression names; emits code that must run once."""
        type_ = self.type_of(expr)
        match expr:
            case s.Name():
                return self._variable(expr, type_)
            case s.Member():
                return self._member_place(expr, type_)
            case s.Index():
                return self._index_place(expr, type_)
            case s.Slice():
                base = self.place(expr.base)
                high, low = expr.bounds
                offset = base.slice[1] if base.slice is not None else 0
                return Place(base.code, base.type, base.guard, (high + offset, low + offset))
        raise P4Error(expr.location, "this is not a place a value can be written to")

    def _variable(self, expr: s.Name, type_: t.Type) -> Place:
        binding = self.bindings.get(expr.decl)
        if not isinstance(binding, Variable):
            self.fail(expr, f"{expr.name} cannot be written here")
        if binding.cell:
            self.function_state.nonlocals.add(binding.code)
        return Place(binding.code, type_)

    def _member_place(self, expr: s.Member, type_: t.Type) -> Place:
        base = self.place(expr.base)
        base_type = self.type_of(expr.base)
        if isinstance(base_type, t.StackType):
            element = self.temp(f"{base.code}.{expr.name}()", "element")
            after = [f"{base.code}.next_index += 1"] if expr.name == "next" else []
            return Place(element, type_, after=after)
        code = f"{base.code}.{attribute(expr.name)}"
        if t.is_header(base_type):
            guard = "" if expr.base in self.never_valid else f"{base.code}.valid"
            return Place(code, type_, guard, after=base.after)
        union = None
        if isinstance(base_type, t.RecordType) and base_type.keyword == "header_union":
            union = (base.code, attribute(expr.name))
        return Place(code, type_, base.guard, union=union, after=base.after)

    def _index_place(self, expr: s.Index, type_: t.Type) -> Place:
        base = self.place(expr.base)
        constant = self.constant_code(expr.index)
        if constant is not None:
            return Place(f"{base.code}.items[{constant}]", type_)
        return Place(self.temp(f"{base.code}.at({self.value(expr.index)})", "element"), type_)

    def store(self, place: Place, code: str) -> None:
        """Emit the assignment of a value to a place."""
        if t.is_object(place.type):
            self.emit(f"{place.code}.assign({code})")
            if place.union is not None:
                union, member = place.union
                self.emit(f"if {place.code}.valid: {union}.select({member!r})")
            return
        if place.slice is not None:
            code = self._spliced(place, code)
        self.emit(f"if {place.guard}: {place.code} = {code}" if place.guard else f"{place.code} = {code}")

    def store_call(self, place: Place, code: str) -> None:
        """Emit the assignment of the result of a call, which happens even if the write is dropped."""
        if place.guard or place.slice is not None:
            code = self.temp(code)
        self.store(place, code)

    def _spliced(self, place: Place, code: str) -> str:
        """The number with some bits replaced."""
        assert place.slice is not None
        high, low = place.slice
        mask = ((1 << (high - low + 1)) - 1) << low
        type_ = number_type(place.type)
        assert isinstance(type_, t.BitType)
        if not low:
            shifted = code
        elif is_literal(code):
            shifted = hex(int(code, 0) << low)
        else:
            shifted = f"({code} << {low})" if SIMPLE.match(code) or code.endswith(")") else f"(({code}) << {low})"
        kept = f"({place.code} & {type_.mask & ~mask:#x})"
        number = f"{kept} | {shifted}"
        if type_.signed:
            half = 1 << (type_.width - 1)
            return f"(({number}) ^ {half:#x}) - {half:#x}"
        return number

    def copy_of(self, place: Place) -> str:
        """Code for the present value of a place."""
        if place.slice is None:
            return place.code
        high, low = place.slice
        return f"(({place.code} >> {low}) & {(1 << (high - low + 1)) - 1:#x})"

    def assign(self, stmt: s.Assign) -> None:
        """Emit an assignment."""
        place = self.place(stmt.target)
        self.current[stmt] = self.copy_of(place)
        self.store(place, self.value(stmt.value))

"""Names and their meanings."""

from thc_p4_model.compiler import syntax as s
from thc_p4_model.compiler.unsupported import refusal
from thc_p4_model.interfaces import Location, P4Error


class Scope:
    """Declarations of one block, with the enclosing scope behind it. Functions may be overloaded."""

    def __init__(self, parent: "Scope | None" = None) -> None:
        self._parent = parent
        self._declarations: dict[str, list[s.Decl]] = {}

    def define(self, decl: s.Decl) -> None:
        """Add a declaration. Raises P4Error if the name is taken in this scope."""
        previous = self._declarations.get(decl.name)
        if previous is None:
            self._declarations[decl.name] = [decl]
        elif isinstance(decl, s.Callable) and all(isinstance(other, s.Callable) for other in previous):
            self._check_overload(decl, previous)
            previous.append(decl)
        else:
            raise P4Error(decl.location, f"{decl.name} is already declared at {previous[0].location}")

    def _check_overload(self, decl: s.Callable, previous: list[s.Decl]) -> None:
        for other in previous:
            assert isinstance(other, s.Callable)
            if len(other.params) == len(decl.params):
                count = len(decl.params)
                raise P4Error(
                    decl.location, f"{decl.name} with {count} parameters is already declared at {other.location}"
                )

    def own(self, name: str) -> s.Decl | None:
        """The name's declaration in this very scope."""
        declarations = self._declarations.get(name)
        return declarations[0] if declarations else None

    def lookup(self, name: str) -> list[s.Decl]:
        """The name's declarations here, innermost first; may be empty."""
        scope: Scope | None = self
        while scope is not None:
            found = scope._declarations.get(name)
            if found is not None:
                return found
            scope = scope._parent
        return []

    def lookup_global(self, name: str) -> list[s.Decl]:
        """The name's declarations at top level."""
        scope = self
        while scope._parent is not None:
            scope = scope._parent
        return scope._declarations.get(name, [])

    def require(self, name: str, location: Location, what: str) -> s.Decl:
        """The declaration of a name. Raises P4Error if none exists."""
        found = self.lookup(name)
        if not found:
            raise P4Error(location, refusal(name) or f"unknown {what} {name}")
        return found[0]

"""Who may import whom: the architecture, as data and one check.

cli > node, console, spark, mobile > client > io > the pure rooms > model. Never up; never sideways, so pure rooms meet
only in model. `testing` stands on the pure rooms, io and the client library, which its clusters hand to tests; only cli
imports it.
"""

import ast
from pathlib import PurePath

PURE = frozenset({"bus", "message_manager", "client_manager", "gateway", "doors", "message_server"})
PACKAGE = ""  # alphorn/__init__.py itself: the version, and the names users import
DISCOVERED = "pyspark_alphorn"  # the package beside alphorn by which Spark finds the room spark

_BELOW_IO = PURE | {"model"}
_BELOW_CLIENT = _BELOW_IO | {"io"}
_BELOW_NODE = _BELOW_CLIENT | {"aio", "client", "cluster", PACKAGE}
_SURFACES = frozenset({"node", "console", "spark", "mobile"})

MAY_IMPORT: dict[str, frozenset[str]] = {
    "model": frozenset(),
    **dict.fromkeys(PURE, frozenset({"model"})),
    "io": _BELOW_IO,
    "client": _BELOW_CLIENT,
    PACKAGE: frozenset({"aio", "api", "cluster"}),
    "api": frozenset({"client", "model"}),
    "aio": frozenset({"client", "model"}),
    "cluster": frozenset({"client", "model"}),
    "testing": _BELOW_NODE,
    **dict.fromkeys(_SURFACES, _BELOW_NODE),
    "cli": _BELOW_NODE | _SURFACES | {"testing"},
    "__main__": frozenset({"cli"}),
    DISCOVERED: frozenset({"spark"}),
}


def module_of(path: PurePath) -> str:
    """The dotted name of a file below src/."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The room of a module of alphorn; the package itself is `PACKAGE`."""
    parts = module.split(".")
    if parts[0] == DISCOVERED:
        return DISCOVERED
    return parts[1] if len(parts) > 1 else PACKAGE


def imports_of(tree: ast.AST) -> list[tuple[int, str]]:
    """The modules of alphorn imported anywhere in the tree, with their lines. Relative imports are ruff's to refuse."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "alphorn":
            names = [f"alphorn.{alias.name}" if alias.name in MAY_IMPORT else "alphorn" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        else:
            continue
        found += [(node.lineno, name) for name in names if name.split(".")[0] == "alphorn"]
    return found


def faults_of_imports(path: PurePath, text: str) -> list[str]:
    """One sentence for each import that goes up, or sideways."""
    room = room_of(module_of(path))
    if room not in MAY_IMPORT:
        return [f"{path}: {room} is no room; put the module into one, or add the room to tests/tidy/rooms.py"]
    allowed = MAY_IMPORT[room] | {room}
    return [
        f"{path}:{line}: {room or 'the package'} imports {module}, which is not below it"
        for line, module in imports_of(ast.parse(text))
        if room_of(module) not in allowed
    ]

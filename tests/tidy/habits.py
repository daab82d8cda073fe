"""Habits that keep the source readable: short modules, no reminders, named tests, no state outside of objects."""

import ast
import re
from pathlib import PurePath

MODULE_LINES_MAX = 500

_REMINDER = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*|__[a-z]+__")
_MAKERS = frozenset(
    {"list", "dict", "set", "bytearray", "defaultdict", "deque", "OrderedDict", "Counter", "count", "iter"}
)
_CHANGERS = frozenset(
    "add append appendleft clear discard extend insert pop popitem popleft remove setdefault update".split()
)


def faults_of_reminders(path: PurePath, text: str) -> list[str]:
    """A reminder that ships is forgotten: finish it, or write it down where work is planned."""
    lines = enumerate(text.splitlines(), start=1)
    return [
        f"{path}:{line}: {found[0]} ships with the source" for line, row in lines if (found := _REMINDER.search(row))
    ]


def faults_of_size(path: PurePath, text: str) -> list[str]:
    """A module has one idea; above the limit it has several."""
    lines = text.count("\n")
    return [f"{path}: {lines} lines, at most {MODULE_LINES_MAX}; give each idea its module"] * (
        lines > MODULE_LINES_MAX
    )


def faults_of_test_names(path: PurePath, text: str) -> list[str]:
    """A test's name says what holds; a number at its end says that nobody knew."""
    numbered = re.compile(r"test_\w*\d")
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [(node.lineno, node.name) for node in ast.walk(ast.parse(text)) if isinstance(node, functions)]
    names.append((1, path.stem))
    return [
        f"{path}:{line}: {name} ends in a number; say what it tests" for line, name in names if numbered.fullmatch(name)
    ]


def faults_of_module_state(path: PurePath, text: str) -> list[str]:
    """Modules hold constants. Tables in capitals are constants when nothing in their module changes them."""
    tree = ast.parse(text)
    found: list[tuple[int, str]] = []
    tables: set[str] = set()
    for node in tree.body:
        for name in _names_assigned_mutable(node):
            if _CONSTANT.fullmatch(name):
                tables.add(name)
            else:
                found.append((node.lineno, f"{name} is mutable and belongs to the module; give it to an object"))
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            found.append((inner.lineno, f"global {', '.join(inner.names)} changes the module's state"))
        elif (name := _table_changed(inner)) in tables:
            found.append((getattr(inner, "lineno", 0), f"the constant {name} is changed"))
    return [f"{path}:{line}: {fault}" for line, fault in sorted(found)]


def _names_assigned_mutable(node: ast.stmt) -> list[str]:
    match node:
        case ast.Assign(targets=targets, value=value):
            pass
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            targets = [target]
        case _:
            return []
    return [target.id for target in targets if isinstance(target, ast.Name)] if _is_mutable(value) else []


def _is_mutable(value: ast.expr) -> bool:
    match value:
        case ast.List() | ast.Dict() | ast.Set() | ast.ListComp() | ast.DictComp() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in _MAKERS
        case ast.BinOp(left=left, right=right):
            return _is_mutable(left) or _is_mutable(right)
    return False


def _table_changed(node: ast.AST) -> str | None:
    """The name that this node changes in place, if it does so plainly."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in _CHANGERS:
            return name
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
            return name
    return None

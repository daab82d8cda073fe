"""What a pure core may not touch: the network, the disk, the clock, chance, threads, and waiting.

A core takes values and time in and gives values out; that is what lets one seed replay a whole cluster. It gets
chance as a `random.Random`, so that type, and nothing else of the module, may be named.
"""

import ast
from pathlib import PurePath

from tests.tidy.rooms import PURE, module_of, room_of

PURE_ROOMS = PURE | {"model"}

BANNED_MODULES = frozenset(
    "asyncio concurrent fcntl io lmdb logging mmap multiprocessing os pathlib secrets select selectors shutil signal "
    "socket sqlite3 ssl subprocess sys tempfile threading time uuid uvloop".split()
)
BANNED_CALLS = frozenset({"breakpoint", "input", "open", "print"})
BANNED_CLOCKS = frozenset({"now", "today", "utcnow"})  # of datetime and date


def faults_of_purity(path: PurePath, text: str) -> list[str]:
    """One sentence for each thing in a pure room that acts, waits, or asks the world."""
    if room_of(module_of(path)) not in PURE_ROOMS:
        return []
    tree = ast.parse(text)
    random_names = _names_of_random(tree)
    found = [(node.lineno, fault) for node in ast.walk(tree) for fault in _faults_of_node(node, random_names)]
    return [f"{path}:{line}: a pure core {fault}" for line, fault in sorted(found)]


def _names_of_random(tree: ast.AST) -> set[str]:
    """Under which names the tree has imported the module random."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    return {alias.asname or alias.name for node in imports for alias in node.names if alias.name == "random"}


def _faults_of_node(node: ast.AST, random_names: set[str]) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [f"imports {alias.name}" for alias in names if alias.name.split(".")[0] in BANNED_MODULES]
        case ast.ImportFrom(module="random", names=names):
            return [f"imports random.{alias.name}" for alias in names if alias.name != "Random"]
        case ast.ImportFrom(module=str(module)) if module.split(".")[0] in BANNED_MODULES:
            return [f"imports {module}"]
        case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in random_names and attr != "Random":
            return [f"uses random.{attr}"]
        case (
            ast.Call(func=ast.Attribute(attr="Random"), args=[], keywords=[])
            | ast.Call(func=ast.Name(id="Random"), args=[], keywords=[])
        ):
            return ["makes a Random without a seed"]
        case ast.Call(func=ast.Name(id=name)) if name in BANNED_CALLS:
            return [f"calls {name}"]
        case (
            ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=attr)
            | ast.Attribute(value=ast.Attribute(attr="datetime" | "date"), attr=attr)
        ) if attr in BANNED_CLOCKS:
            return [f"asks the clock with {attr}"]
        case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith() | ast.Await():
            return ["waits"]
    return []

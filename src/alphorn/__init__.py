"""alphorn: a message server cluster with one order everywhere.

The names are those of `alphorn/api.py`, and `aio` and `cluster`. They are loaded when one is used: every module of
alphorn begins with this one, and most have no use for the client library.
"""

import importlib

__version__ = "0.1.0"

TYPE_CHECKING = False  # as in typing, whose import takes longer than all of this

if TYPE_CHECKING:
    from alphorn import aio as aio
    from alphorn import cluster as cluster
    from alphorn.api import *  # noqa: F403 - they are listed there
else:

    def __getattr__(name: str) -> object:
        if name in ("aio", "cluster"):
            return importlib.import_module(f"alphorn.{name}")
        names = importlib.import_module("alphorn.api")
        if name == "__all__":
            return [*names.__all__, "__version__", "aio", "cluster"]
        if name not in names.__all__:
            raise AttributeError(f"module 'alphorn' has no attribute {name!r}")
        value = globals()[name] = getattr(names, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})

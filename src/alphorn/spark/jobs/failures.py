"""What went wrong within Spark, as the one sentence that whoever raised it wrote."""

import contextlib
import re
from collections.abc import Iterator

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from alphorn.model import errors
from alphorn.model.errors import Error, Unavailable

_OURS = re.compile(r"^(?:\w*Error: )?alphorn\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Spark wraps errors of data sources and tasks into its own, with tracebacks as text; this unwraps them.

    An error of alphorn comes out as itself. Another one comes out as `Unavailable` with its first line.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise error_in(str(error)) from error


def error_in(text: str) -> Error:
    """The error of alphorn that a text of Spark's holds, the innermost; else `Unavailable` with the first line."""
    found = _OURS.findall(text)
    if not found:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "it gave no reason")
        return Unavailable(f"Spark could not do it: {first}")
    name, sentence = found[-1]
    kind = getattr(errors, name, Unavailable)
    return kind(sentence) if isinstance(kind, type) and issubclass(kind, Error) else Unavailable(sentence)

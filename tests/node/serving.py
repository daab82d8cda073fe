"""Whole servers in the process of a test."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from alphorn.io.cluster_file import read_cluster_file
from alphorn.io.local_cluster import FILE_NAME, LocalShape, url_of, write_cluster_file
from alphorn.io.probe import until_serving
from alphorn.node.main import NodeRunner
from alphorn.testing.clusters import _lay_out_free


@contextlib.asynccontextmanager
async def server(directory: Path, **shape: int) -> AsyncIterator[str]:
    """All nodes of a cluster of this shape in this process; gives their URL."""
    path = directory / FILE_NAME
    write_cluster_file(path, _lay_out_free(directory, LocalShape(**shape)))
    file = read_cluster_file(path)
    runner = NodeRunner(file, [node.name for node in file.nodes])
    try:
        await runner.start(found=True)
        await until_serving(file, deadline_s=60, whole=True)
        yield url_of(file)
    finally:
        await runner.stop()

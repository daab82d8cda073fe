"""What all examples share: the URL of a cluster, yours or one for the occasion."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import alphorn.testing


@contextmanager
def cluster_url() -> Iterator[str]:
    """`ALPHORN_URL` where it is set; otherwise a small cluster that ends with the example."""
    if url := os.environ.get("ALPHORN_URL"):
        yield url
        return
    with alphorn.testing.cluster() as cluster:
        yield cluster.url

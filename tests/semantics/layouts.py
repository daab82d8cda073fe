"""The layouts in which tests try what users rely on: nodes apart, nodes together, and `alphorn single`."""

import contextlib
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import alphorn.testing
from alphorn.cli.single import SHAPE
from alphorn.io.cluster_file import read_cluster_file
from alphorn.io.local_cluster import FILE_NAME, tunnel_url_of, url_of, write_cluster_file
from alphorn.testing.clusters import _lay_out_free
from tests.semantics.waiting import WAIT_S


def run(layout, **shape):
    """Two Client Managers, a primary and a backup, each a process, or two processes of one each; or one of all."""
    if layout == "single":
        return single()
    return alphorn.testing.cluster(client_managers=2, together=layout == "together", **shape)


def name_of(test):
    """Of each test another one, without the words of its parameters: what is expected of an error stands among them,
    and an error names its destination."""
    return f"{test.originalname}-{zlib.crc32(test.name.encode()):08x}"


class Single:
    """`alphorn single`, with what a test asks of a cluster."""

    def __init__(self, path, process):
        file = read_cluster_file(path)
        self.url, self.tunnel_url = url_of(file), tunnel_url_of(file)
        self._names = [node.name for node in file.nodes]
        self._process = process

    @property
    def nodes(self):
        """The pid of each node, which are all the same; 0 when it has ended."""
        pid = self._process.pid if self._process.poll() is None else 0
        return dict.fromkeys(self._names, pid)


@contextlib.contextmanager
def single():
    """Starts it as its users do, with a directory and a loopback address of its own."""
    with tempfile.TemporaryDirectory(prefix="alphorn-single-") as directory:
        path = Path(directory) / FILE_NAME
        write_cluster_file(path, _lay_out_free(path.parent, SHAPE))
        command = [sys.executable, "-m", "alphorn", "single", "--dir", directory]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("ready ")
                yield Single(path, process)
            finally:
                process.send_signal(signal.SIGTERM)
                assert process.wait(WAIT_S) == 0

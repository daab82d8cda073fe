"""Nodes that keep a file instead of a log and answer clients with a status, for the processes around nodes.

What a node does is written in `NAME.does` in the cluster's directory: `refuse` cannot start, `full` finds no space on
its disk, `chatter` prints something of its own before it runs, `hang` starts for ever, `fall` falls silent once it
runs, `stuck` does not stop, `leaderless` knows no primary. Nothing written there serves.
"""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

from alphorn.doors import native
from alphorn.io.cluster_file import ClusterFile
from alphorn.io.disk import NO_SPACE
from alphorn.io.streams import FrameStream
from alphorn.io.supervisor import LINE_BYTES_MAX
from alphorn.model import conversation
from alphorn.model.errors import Unavailable
from alphorn.node.main import main

ROOT = Path(__file__).resolve().parent.parent.parent


class FakeNode:
    """Any kind."""

    def __init__(self, file: ClusterFile, name: str, *, founding: bool, beside: object = ()) -> None:
        self._file = file
        self._me = file.node(name)
        self._founding = founding
        self._server: asyncio.Server | None = None
        does = Path(file.directory) / f"{name}.does"
        self._does = does.read_text() if does.exists() else "serve"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[str] = loop.create_future()
        with (Path(self._file.directory) / self._me.name / "starts").open("a") as starts:
            starts.write(f"{'founding' if self._founding else 'continuing'}\n")
        if self._does == "refuse":
            raise Unavailable(f"{self._me.name} cannot start on this disk; replace it")
        if self._does == "full":
            raise Unavailable(f"{NO_SPACE} store {self._me.name}; free some, then start this node again")
        if self._does == "chatter":
            print("a library says something")
            print("x" * (LINE_BYTES_MAX + 1), flush=True)
        if self._does == "hang":
            await loop.create_future()
        host, _, port = (self._me.clients or self._me.link or self._me.witness).rpartition(":")
        if port:  # a message server keeps no port: nobody joins it
            self._server = await loop.create_server(self._accept, host, int(port))
        if self._does == "fall":
            loop.call_soon(self.stopped.set_result, "fsync failed")

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._does == "stuck":
            await asyncio.get_running_loop().create_future()
        with (Path(self._file.directory) / "stops").open("a") as stops:
            stops.write(f"{self._me.name}\n")

    def meet(self, half: object) -> None:
        pass

    def die_at(self, step: str, count: int) -> None:
        (Path(self._file.directory) / f"{self._me.name}.dies").write_text(f"{step} {count}")

    def describe(self) -> dict[str, object]:
        return {"name": self._me.name, "founding": self._founding}

    def _accept(self) -> FrameStream:
        return FrameStream(on_frames=self._on_frames, on_closed=lambda stream, reason: None, frame_bytes_max=1 << 20)

    def _on_frames(self, stream: FrameStream, frames: list[memoryview]) -> None:
        for frame in frames:
            match native.decode_client(frame):
                case conversation.Hello():
                    addresses = [node.clients for node in self._file.client_managers]
                    stream.send(
                        native.encode(conversation.Welcome(native.VERSION, b"c" * 16, self._me.name, addresses))
                    )
                case conversation.Status(request):
                    stream.send(native.encode(conversation.StatusAnswer(request, json.dumps(self._status()).encode())))
        stream.flush()

    def _status(self) -> dict[str, object]:
        nodes = [
            {
                "name": node.name,
                "kind": node.kind,
                "pid": os.getpid(),
                "address": node.clients or node.link,
                "channel": node.channel,
                "role": "primary" if node.rank == 1 else "backup" if node.rank else "",
                "epoch": 1,
                "lag": 0,
            }
            for node in self._file.nodes
            if not node.link or _answers(node.link)
            if not (node.rank == 1 and self._does == "leaderless")
        ]
        return {"nodes": nodes, "channels": [{"name": c.name} for c in self._file.channels], "destinations": []}


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def find_fake(kind: str) -> type[FakeNode]:
    return FakeNode


def fake_command(path: Path, name: str) -> list[str]:
    """As `alphorn.io.supervisor.node_command`."""
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'src')!r}, {str(ROOT)!r}]; "
        "from tests.node import fake_nodes; sys.exit(fake_nodes.run())"
    )
    return [sys.executable, "-c", code, "--config", str(path), "--name", name, "--found", "--controlled"]


def run() -> int:
    return main(sys.argv[1:], find=find_fake)

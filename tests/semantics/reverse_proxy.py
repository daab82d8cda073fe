"""A reverse proxy as they stand before web services: it reads the request, writes its own, and passes bytes on.

No CONNECT, and nothing of WebSocket: whoever may upgrade through it may do so with any HTTP server.
"""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator


class ReverseProxy:
    """Listens on the loopback interface, in a thread of its own."""

    def __init__(self, target: str, context: ssl.SSLContext | None = None) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._context = context
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.requests: list[str] = []  # first lines

    def start(self) -> str:
        self._thread.start()
        return self._run(self._listen())

    def cut(self) -> None:
        """Every connection ends, as when a proxy is restarted."""
        self._run(self._cut())

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        up: asyncio.StreamWriter | None = None
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            self.requests.append(head[0])
            lines = [line for line in head[1:] if line and not line.lower().startswith("host:")]
            down, up = await asyncio.open_connection(*self._target)
            self._writers.add(up)
            new = [head[0], "Host: upstream", "X-Forwarded-For: 192.0.2.1", "Via: 1.1 proxy", *lines]
            up.write("\r\n".join([*new, "", ""]).encode())
            await asyncio.gather(self._pass_on(reader, up), self._pass_on(down, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for end in (writer, up):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError, NotImplementedError):
            writer.write_eof()


@contextlib.contextmanager
def proxied(target: str, context: ssl.SSLContext | None = None) -> Iterator[tuple[ReverseProxy, str]]:
    """A proxy and where it listens."""
    proxy = ReverseProxy(target, context)
    address = proxy.start()
    try:
        yield proxy, address
    finally:
        proxy.close()

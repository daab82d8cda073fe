"""One member on several buses: a transport on each, behind the same `send`.

A frame for the group goes out on every bus, one for a member on the bus that its address is on. Whatever is heard on
any of them is heard; what comes twice, the protocol knows. Nothing is passed on from one bus to another: a member that
is on one bus only asks for what was said on the others, as for everything it has not heard.
"""

import ipaddress
from collections.abc import Callable, Mapping, Sequence

import msgspec

from alphorn.bus.frames import Parts
from alphorn.bus.machine import CONTROL_GROUP, DATA_GROUP
from alphorn.io.transport import Transport, TransportSettings


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """A member's place on one bus."""

    address: str  # "host:port"
    network: str = ""  # of the bus; empty where there is no other
    data: str = ""  # "host:port" of the group's bulk lane there; empty derives it from the group's id
    control: str = ""  # of the control lane

    def settings(self, base: TransportSettings) -> TransportSettings:
        """The same transport, there."""
        host, _, port = self.address.rpartition(":")
        multicast = msgspec.structs.replace(
            base.multicast, host=host, port=int(port), data=self.data, control=self.control
        )
        return msgspec.structs.replace(base, multicast=multicast, capture=None)


class Homes:
    """A transport like any other (transport.py), on several buses, or under addresses of another bus (`aliases`)."""

    def __init__(
        self,
        settings: TransportSettings,
        further: Sequence[Home],
        aliases: Mapping[str, str],
        *,
        on_frames: Callable[[list[bytes]], None],
    ) -> None:
        self._aliases = dict(aliases)
        self._networks = [ipaddress.ip_network(home.network) for home in further]
        self._transports = [Transport(settings, on_frames=on_frames)]
        self._transports += [Transport(home.settings(settings), on_frames=on_frames) for home in further]
        self._ways: dict[str, Transport] = {}

    @property
    def address(self) -> str:
        """Where others reach this member, once open: on the first bus."""
        return self._transports[0].address

    @property
    def datagram_bytes(self) -> int:
        """The largest frame that can be multicast on all buses."""
        return min(transport.datagram_bytes for transport in self._transports)

    @property
    def buffer_bytes(self) -> int:
        """What the kernel gave each socket to receive into, where it gave least."""
        return min(transport.buffer_bytes for transport in self._transports)

    def open(self) -> None:
        """Takes the ports on every bus. Raises `Misuse` as `Transport.open` does."""
        for transport in self._transports:
            transport.open()

    async def start(self, origin: bytes) -> None:
        """Begins to receive; `origin` is this run's."""
        for transport in self._transports:
            await transport.start(origin)

    def send(self, to: str, parts: Parts) -> None:
        """Sends one frame at the next `flush`; until then what it refers to must stay as it is."""
        if to in (DATA_GROUP, CONTROL_GROUP):
            for transport in self._transports:
                transport.send(to, parts)
            return
        address = self._aliases.get(to, to)
        self._way_to(address).send(address, parts)

    def flush(self) -> None:
        """Hands everything gathered to the kernel."""
        for transport in self._transports:
            transport.flush()

    def hear(self) -> None:
        """Hands over the datagrams that have arrived, without waiting to be woken for them."""
        for transport in self._transports:
            transport.hear()

    async def close(self) -> None:
        """Closes all sockets; what waits is lost."""
        for transport in self._transports:
            await transport.close()

    def describe(self) -> dict[str, object]:
        """All counters, by bus."""
        return {transport.address: transport.describe() for transport in self._transports}

    def _way_to(self, address: str) -> Transport:
        """The transport on the bus that an address is on; the first one where it is on none of the others."""
        host = address.rpartition(":")[0]
        way = self._ways.get(host)
        if way is None:
            way = self._transports[0]
            for network, transport in zip(self._networks, self._transports[1:], strict=True):
                if _is_within(host, network):
                    way = transport
            self._ways[host] = way
        return way


def _is_within(host: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        return False

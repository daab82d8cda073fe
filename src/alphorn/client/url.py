"""Where a cluster is, how to get there and who asks: `alphorn://user:password@host:7700,host2:7701`.

`alphorn+ws://host:80/alphorn` leads through a WebSocket, `alphorn+wss://` through one inside of TLS.
"""

import ssl
from collections.abc import Mapping
from urllib.parse import unquote

import msgspec

from alphorn.doors.tunnel import PATH
from alphorn.model.errors import Misuse

DEFAULT_URL = "alphorn://127.0.0.1:7700"
URL_VARIABLE = "ALPHORN_URL"
PORT_DEFAULT = 7700
TUNNELS = {"alphorn+ws": 80, "alphorn+wss": 443}  # with the port where a URL names none

Address = tuple[str, int]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL says. The password is never printed."""

    addresses: tuple[Address, ...]
    user: str = ""
    password: str = ""
    path: str = ""  # of the WebSocket that leads there; empty where none does
    is_sealed: bool = False  # that WebSocket is inside of TLS

    def __repr__(self) -> str:
        return f"Target({', '.join(map(format_address, self.addresses))})"


def choose_url(url: str | None, environment: Mapping[str, str]) -> str:
    """The URL of this call, of the environment, or the local cluster's; raises `Misuse` for what is no text."""
    if url is not None and not isinstance(url, str):
        raise Misuse(f"the URL of a cluster is a str like 'alphorn://127.0.0.1:7700', not {type(url).__name__}")
    return url or environment.get(URL_VARIABLE) or DEFAULT_URL


def parse_url(url: str) -> Target:
    """Reads a URL; raises `Misuse` that never repeats the password."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("alphorn", "alphorns", *TUNNELS):
        raise Misuse("the URL of a cluster begins with alphorn://, as in alphorn://127.0.0.1:7700")
    if scheme == "alphorns":
        raise Misuse("alphorns:// (TLS) comes with a later version; use alphorn:// on a network you trust")
    credentials, at, hosts = rest.rpartition("@")
    user, _, password = credentials.partition(":") if at else ("", "", "")
    hosts = hosts.rstrip("/")
    path = ""
    if scheme in TUNNELS:
        hosts, _, path = hosts.partition("/")
        path = f"/{path}" if path else PATH
    if not hosts:
        raise Misuse(f"the URL names no host; write {scheme}://host:port")
    if any(character in hosts for character in "/?#"):
        raise Misuse("the URL has something behind its hosts; write alphorn://host:7700,host2:7701 and no more")
    if any(not 0x20 < ord(character) < 0x7F or character == "#" for character in path):
        raise Misuse("the URL's path has characters that no path has; write alphorn+ws://host:port/alphorn")
    addresses = tuple(parse_address(part, TUNNELS.get(scheme, PORT_DEFAULT)) for part in hosts.split(","))
    return Target(
        addresses=addresses,
        user=unquote(user),
        password=unquote(password),
        path=path,
        is_sealed=scheme == "alphorn+wss",
    )


def choose_tls(target: Target, tls: object) -> ssl.SSLContext | None:
    """How the tunnel is sealed; None where it is not. Raises `Misuse`."""
    if tls is not None and not (target.is_sealed and isinstance(tls, ssl.SSLContext)):
        raise Misuse("tls is an ssl.SSLContext for alphorn+wss:// URLs; other connections have none in this version")
    if not target.is_sealed:
        return None
    return tls if isinstance(tls, ssl.SSLContext) else ssl.create_default_context()


def parse_address(text: str, port_default: int = PORT_DEFAULT) -> Address:
    """Reads `host:port`, `host` or `[address]:port`; raises `Misuse`."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(port_default)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise Misuse(f"{text!r} is no address; put an IPv6 address in brackets, as in [::1]:7700")
    if not host:
        raise Misuse(f"the address {text!r} names no host; write host:7700")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise Misuse(f"the port {port!r} of {host} is no number from 1 to 65535")
    return host, int(port)


def format_address(address: Address) -> str:
    """An address as URLs have it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

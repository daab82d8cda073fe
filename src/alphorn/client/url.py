"""Where a cluster is and who asks: `alphorn://user:password@host:7700,host2:7701`."""

from collections.abc import Mapping
from urllib.parse import unquote

import msgspec

from alphorn.model.errors import Misuse

DEFAULT_URL = "alphorn://127.0.0.1:7700"
URL_VARIABLE = "ALPHORN_URL"
PORT_DEFAULT = 7700

Address = tuple[str, int]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL says. The password is never printed."""

    addresses: tuple[Address, ...]
    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"Target({', '.join(map(format_address, self.addresses))})"


def choose_url(url: str | None, environment: Mapping[str, str]) -> str:
    """The URL of this call, of the environment, or the local cluster's."""
    return url or environment.get(URL_VARIABLE) or DEFAULT_URL


def parse_url(url: str) -> Target:
    """Reads a URL; raises `Misuse` that never repeats the password."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("alphorn", "alphorns"):
        raise Misuse("the URL of a cluster begins with alphorn://, as in alphorn://127.0.0.1:7700")
    if scheme == "alphorns":
        raise Misuse("alphorns:// (TLS) comes with a later version; use alphorn:// on a network you trust")
    credentials, at, hosts = rest.rpartition("@")
    user, _, password = credentials.partition(":") if at else ("", "", "")
    hosts = hosts.rstrip("/")
    if not hosts:
        raise Misuse("the URL names no host; write alphorn://host:7700")
    if any(character in hosts for character in "/?#"):
        raise Misuse("the URL has something behind its hosts; write alphorn://host:7700,host2:7701 and no more")
    addresses = tuple(parse_address(part) for part in hosts.split(","))
    return Target(addresses=addresses, user=unquote(user), password=unquote(password))


def parse_address(text: str) -> Address:
    """Reads `host:port`, `host` or `[address]:port`; raises `Misuse`."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(PORT_DEFAULT)
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

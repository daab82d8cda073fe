"""Machines of their own on one: network namespaces joined by a bridge, made for a test and deleted with it."""

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_CLONE_NEWNET = 0x4000_0000

needs_namespaces = [
    pytest.mark.namespaces,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="network namespaces need the ip command (iproute2)"),
]


def ip(*words: str) -> str:
    """Runs one ip command; a failure shows what ip said."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout


@contextlib.contextmanager
def switch(machines: int) -> Iterator[list[str]]:
    """As many namespaces on one bridge, each with its address 10.77.0.1, 10.77.0.2, … on eth0."""
    hub = f"ah{os.getpid()}hub"
    names = [f"ah{os.getpid()}m{number}" for number in range(1, machines + 1)]
    made: list[str] = []
    try:
        for name in (hub, *names):
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", hub, "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
        ip("-n", hub, "link", "set", "bridge", "addrgenmode", "none", "up")
        for number, name in enumerate(names, 1):
            port = f"port{number}"
            ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", hub, "link", "set", port, "master", "bridge", "addrgenmode", "none", "up")
            ip("-n", name, "link", "set", "eth0", "addrgenmode", "none")
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        while not is_forwarding(hub):  # The kernel brings ports up on its own time, and drops frames until then.
            pass
        yield names
    finally:
        for name in made:
            ip("netns", "delete", name)


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """New sockets of this thread belong to the namespace; those made before stay where they are."""
    library = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as home, Path(f"/run/netns/{name}").open() as there:
        assert library.setns(there.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert library.setns(home.fileno(), _CLONE_NEWNET) == 0


def is_forwarding(hub: str) -> bool:
    """Whether all ports of the bridge pass frames on."""
    links = json.loads(ip("-n", hub, "-d", "-j", "link", "show", "master", "bridge"))
    states = [(link["operstate"], link["linkinfo"]["info_slave_data"]["state"]) for link in links]
    return all(state == ("UP", "forwarding") for state in states)


def bytes_sent(name: str) -> int:
    """Everything that left the namespace's interface, headers included."""
    (link,) = json.loads(ip("-n", name, "-s", "-j", "link", "show", "eth0"))
    return int(link["stats64"]["tx"]["bytes"])

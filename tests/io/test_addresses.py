import errno
import os

import pytest

from alphorn.io.addresses import Interface, Lane, find_interface, group_address, parse_address, why_not_bound
from alphorn.model.errors import Misuse


def test_the_addresses_of_neighbouring_groups_differ():
    addresses = {group_address(group, lane) for group in range(500) for lane in (Lane.DATA, Lane.CONTROL)}

    assert len(addresses) == 1000
    assert group_address(1, Lane.DATA) == "239.192.0.2:21000"
    assert group_address(1, Lane.CONTROL) == "239.192.0.3:21001"


@pytest.mark.parametrize("group", [0, 1, 0x1FFFF, 0x20000, 0xFFFF_FFFF])
def test_every_group_has_addresses_in_the_organisation_local_range(group):
    host, port = parse_address(group_address(group, Lane.CONTROL))

    assert host.split(".")[0] == "239"
    assert 192 <= int(host.split(".")[1]) <= 195
    assert 21_000 <= port < 31_000


@pytest.mark.parametrize("address", ["", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "node:80", "::1:80"])
def test_an_address_that_is_no_ipv4_host_and_port_is_refused(address):
    with pytest.raises(Misuse, match="cannot be sent to"):
        parse_address(address)


def test_the_loopback_interface_carries_large_datagrams():
    interface = find_interface("127.0.0.1")

    assert interface.name == "lo"
    assert interface.datagram_bytes(overhead_bytes=40) == 60_000


def test_a_real_interface_carries_its_mtu_less_headers_and_seal():
    interface = Interface(name="eth0", index=2, mtu=1500)

    assert interface.datagram_bytes(overhead_bytes=0) == 1472
    assert interface.datagram_bytes(overhead_bytes=40) == 1432


def test_an_interface_that_is_not_there_is_named_in_the_refusal():
    with pytest.raises(Misuse, match="'nowhere'"):
        find_interface("127.0.0.1", "nowhere")
    with pytest.raises(Misuse, match=r"192\.0\.2\.77"):
        find_interface("192.0.2.77")


@pytest.mark.parametrize(
    ("number", "way_out"),
    [
        (errno.EADDRINUSE, "end that, or choose another port"),
        (errno.EADDRNOTAVAIL, "write one that it has"),
        (errno.EACCES, "choose one above 1023"),
        (errno.EMFILE, "Too many open files; choose another address"),
    ],
)
def test_an_address_that_cannot_be_bound_is_told_with_its_own_way_out(number, way_out):
    assert why_not_bound(OSError(number, os.strerror(number))).endswith(way_out)

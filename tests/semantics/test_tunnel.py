"""The native protocol through HTTP: by a WebSocket, a reverse proxy, and one with TLS; with both shells."""

import contextlib
import datetime
import ipaddress
import socket
import ssl
from http.client import HTTPConnection

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import alphorn
from tests.client.shells import make_connect
from tests.semantics.reverse_proxy import proxied
from tests.semantics.waiting import WAIT_S, Gathered, bodies, is_quiet, send, take

pytestmark = [pytest.mark.processes, pytest.mark.requirement("API-19")]


@pytest.fixture(params=["blocking", "asyncio"])
def connect_by(request):
    with make_connect(request.param) as made:
        yield made


@pytest.fixture
def http(cluster):
    """The HTTP address of the first Client Manager."""
    return cluster.tunnel_url.partition("://")[2].split(",")[0]


@pytest.fixture
def proxy(http):
    with proxied(http) as (running, address):
        yield running, f"alphorn+ws://{address}"


@pytest.fixture
def place(request):
    """A name for this test and shell alone."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def test_every_kind_of_call_works_through_a_websocket(connect_by, cluster, place):
    with connect_by(cluster.tunnel_url, client_id=place) as connection:
        session = connection.session(ack="individual")
        producer = session.producer(f"queue:{place}")
        receipts = [producer.send(number, properties={"n": number}) for number in range(10)]
        producer.flush()
        assert len({receipt.result() for receipt in receipts}) == 10
        assert bodies(session.browser(f"queue:{place}")) == list(range(10))
        consumer = session.consumer(f"queue:{place}", selector="n >= 5")
        found = take(consumer, 5)
        assert bodies(found) == [5, 6, 7, 8, 9]
        session.recover()
        assert {message.delivery_count for message in take(consumer, 5)} == {2}
        consumer.close()
        patterns = session.consumer(alphorn.glob(f"topic:{place}.*"), subscription="s")
        send(session, f"topic:{place}.a", ["news"])
        assert bodies(take(patterns, 1)) == ["news"]
        patterns.close()
        session.unsubscribe("s")
        assert f"queue:{place}" in [found["name"] for found in connection.destinations.list()]
        connection.destinations.delete(f"queue:{place}")


def test_large_messages_and_many_small_ones_pass_both_ways(connect_by, cluster, place):
    with connect_by(cluster.tunnel_url) as connection:
        session = connection.session()
        consumer = session.consumer(f"queue:{place}")
        producer = session.producer(f"queue:{place}")
        producer.send(b"x" * 2_900_000)
        producer.send_many([b"y" * 100] * 20_000)
        producer.flush()
        assert len(take(consumer, 1)[0].body) == 2_900_000
        count = 0
        while count < 20_000:
            messages = consumer.receive_many(1000, WAIT_S)
            assert messages
            count += len(messages)
        assert count == 20_000


def test_messages_cross_from_a_tunnel_to_the_native_door(connect_by, cluster, connect, place):
    with connect_by(cluster.tunnel_url) as connection:
        consumer = connect().session().consumer(f"queue:{place}")
        send(connection.session(), f"queue:{place}", ["over the wall"])
        assert bodies(take(consumer, 1)) == ["over the wall"]


def test_a_reverse_proxy_is_no_obstacle_and_its_restart_loses_nothing(connect_by, proxy, place):
    running, url = proxy
    events = Gathered()
    with connect_by(url, on_event=lambda name, detail: events(name)) as connection:
        session = connection.session()
        consumer = session.consumer(f"queue:{place}")
        send(session, f"queue:{place}", ["before"])
        assert bodies(take(consumer, 1)) == ["before"]
        running.cut()
        send(session, f"queue:{place}", ["after"])
        assert bodies(take(consumer, 1)) == ["after"]
        assert is_quiet(consumer)
        events.until_heard("resumed")
    assert len(running.requests) == 2, "the addresses that Client Managers know of each other are not tried"
    assert set(running.requests) == {"GET /alphorn HTTP/1.1"}


def certificate(directory, host: str) -> tuple[str, str]:
    """A certificate for a host, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "alphorn test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = str(directory / "certificate.pem"), str(directory / "key.pem")
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    for path, data in zip(paths, (made.public_bytes(pem), private), strict=True):
        with open(path, "wb") as file:
            file.write(data)
    return paths


@pytest.mark.cluster_only
def test_a_proxy_with_tls_is_reached_by_who_trusts_its_certificate_and_by_nobody_else(
    connect_by, http, place, tmp_path
):
    paths = certificate(tmp_path, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*paths)
    with proxied(http, context) as (_, address):
        trusting = ssl.create_default_context(cafile=paths[0])
        with connect_by(f"alphorn+wss://{address}", tls=trusting) as connection:
            session = connection.session()
            consumer = session.consumer(f"queue:{place}")
            send(session, f"queue:{place}", [b"x" * 500_000, "sealed"])
            assert [len(body) for body in bodies(take(consumer, 2))] == [500_000, 6]
        with pytest.raises(alphorn.Unavailable, match=r"(?i)certificate"):
            connect_by(f"alphorn+wss://{address}", connect_timeout=2.0)


@pytest.mark.cluster_only
def test_a_wrong_path_or_port_gives_one_clear_error(connect_by, cluster, http):
    with pytest.raises(alphorn.Unavailable, match="HTTP 404: there is nothing here but the tunnel"):
        connect_by(f"alphorn+ws://{http}/elsewhere", connect_timeout=2.0)
    native = cluster.url.partition("://")[2].split(",")[0]
    with pytest.raises(alphorn.Unavailable, match="does not speak WebSocket"):
        connect_by(f"alphorn+ws://{native}", connect_timeout=2.0)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 400),
        ("/alphorn", {"Origin": "http://evil.example"}, 400),
        ("/metrics", {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}, 400),
    ],
)
def test_who_is_no_client_is_refused_in_words_and_others_are_served_on(http, other, queue, path, headers, status):
    host, _, port = http.rpartition(":")
    asking = HTTPConnection(host, int(port), timeout=WAIT_S)
    asking.request("GET", path, headers=headers)
    answer = asking.getresponse()
    assert (answer.status, answer.read()[:5]) == (status, b"only ")
    asking.close()
    send(other.session(), queue, ["still"])
    assert bodies(take(other.session().consumer(queue), 1)) == ["still"]


@pytest.mark.cluster_only
def test_whoever_never_ends_its_handshake_is_hung_up(http):
    host, _, port = http.partition("/")[0].rpartition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as stranger:
        stranger.sendall(b"GET /alphorn HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1000) == b""

"""Sealing: authenticated encryption of everything a group says, with the cluster's key.

     0        10     16        24
     | origin | salt | counter | ciphertext ... | tag of 16 bytes

origin   the sender's run (model/ids.py)          salt     random per run, so that no clock can make a key return
counter  one more for each sealed thing of a lane; a stream puts its length, 4 bytes, before the whole

A group's key comes from the cluster's, a sender's key from the group's with origin and salt (HKDF-SHA-256). The nonce
is the lane and the counter; so no nonce is used twice under one key, and what was sealed for one lane opens on no
other. The header is associated data. AES-256-GCM is three times as fast here as ChaCha20-Poly1305 (docs/transport.md).

Whatever fails to open is foreign; whatever was opened before, or is older than the window, is a replay. Both are
counted and dropped. The key proves membership, not which member spoke. Windows live in memory: after a restart an old
datagram may be accepted once more, which the protocol bears as it bears any duplicate.
"""

import os
import re
import stat
import struct
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from alphorn.io.addresses import Lane
from alphorn.model.errors import Misuse
from alphorn.model.ids import ORIGIN_BYTES

KEY_BYTES = 32
SALT_BYTES = 6
HEADER_BYTES = 24
TAG_BYTES = 16
OVERHEAD_BYTES = HEADER_BYTES + TAG_BYTES
WINDOW = 1024  # counters of one lane that may arrive out of order
SENDERS_MAX = 1024  # senders whose windows are remembered; beyond it the one silent for longest is forgotten

_RUN_BYTES = ORIGIN_BYTES + SALT_BYTES
_WINDOW_MASK = (1 << WINDOW) - 1
_NONCE = struct.Struct(">IQ")
_COUNTER = struct.Struct(">Q")

WAY_TO_KEY = "copy it from another node, or make the first one with: openssl rand -hex 32"
Buffer = bytes | bytearray | memoryview


def load_cluster_key(path: Path) -> bytes:
    """The cluster's key from a file of 64 hexadecimal digits that only its owner can read; raises `Misuse`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Misuse(f"cluster key {path} cannot be read ({error.strerror}); {WAY_TO_KEY}") from error
    with open(descriptor, encoding="ascii", errors="replace") as file:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o077:
            raise Misuse(f"cluster key {path} is open to other users (mode {mode:04o}); run chmod 600 on it")
        text = file.read(4096).strip()
    if not re.fullmatch(f"[0-9a-fA-F]{{{2 * KEY_BYTES}}}", text):
        raise Misuse(f"cluster key {path} is not {2 * KEY_BYTES} hexadecimal digits; {WAY_TO_KEY}")
    return bytes.fromhex(text)


def write_cluster_key(path: Path) -> None:
    """Makes a new cluster key; raises `Misuse` rather than replacing one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise Misuse(f"cluster key {path} exists; remove it first if no node uses it any more") from error
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(os.urandom(KEY_BYTES).hex() + "\n")


class ReplayWindow:
    """Which counters have been seen, of the newest `WINDOW`."""

    __slots__ = ("_newest", "_seen")

    def __init__(self) -> None:
        self._newest = 0
        self._seen = 0  # bit n is the counter n below the newest

    def has_seen(self, counter: int) -> bool:
        """Whether this counter was added before, or is too old to tell."""
        age = self._newest - counter
        return age >= WINDOW or (age >= 0 and bool(self._seen >> age & 1))

    def add(self, counter: int) -> None:
        """Remembers a counter that proved genuine."""
        ahead = counter - self._newest
        if ahead >= WINDOW:
            self._seen, self._newest = 1, counter
        elif ahead > 0:
            self._seen, self._newest = (self._seen << ahead | 1) & _WINDOW_MASK, counter
        else:
            self._seen |= 1 << -ahead


class _Sender:
    __slots__ = ("cipher", "windows")

    def __init__(self, cipher: AESGCM) -> None:
        self.cipher = cipher
        self.windows = tuple(ReplayWindow() for _ in Lane)


class Seal:
    """Seals what one run of one member says to a group, and opens what others say."""

    __slots__ = ("_cipher", "_counters", "_group_key", "_own_run", "_senders", "foreign", "replayed")

    def __init__(self, cluster_key: bytes, *, group: int, origin: bytes, salt: bytes | None = None) -> None:
        assert len(cluster_key) == KEY_BYTES
        assert len(origin) == ORIGIN_BYTES
        info = b"alphorn bus seal 1" + group.to_bytes(4, "big")
        self._group_key = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(cluster_key)
        self._own_run = origin + (os.urandom(SALT_BYTES) if salt is None else salt)
        assert len(self._own_run) == _RUN_BYTES
        self._cipher = self._cipher_of(self._own_run)
        self._counters = [0] * len(Lane)
        self._senders: OrderedDict[bytes, _Sender] = OrderedDict()
        self.foreign = 0  # dropped: not sealed with this cluster's key for this group and lane, or changed on the way
        self.replayed = 0  # dropped: opened before, or older than the window

    def seal(self, lane: Lane, parts: Sequence[Buffer]) -> tuple[bytes, bytes]:
        """Header and ciphertext of the parts, joined."""
        counter = self._counters[lane] + 1
        self._counters[lane] = counter
        header = self._own_run + _COUNTER.pack(counter)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return header, self._cipher.encrypt(_NONCE.pack(lane, counter), data, header)

    def open(self, lane: Lane, sealed: Buffer) -> bytes | None:
        """What was sealed, or None for what must be dropped. This run's own words are dropped without being counted."""
        if len(sealed) < OVERHEAD_BYTES:
            self.foreign += 1
            return None
        header = bytes(sealed[:HEADER_BYTES])
        run = header[:_RUN_BYTES]
        if run == self._own_run:
            return None
        (counter,) = _COUNTER.unpack_from(header, _RUN_BYTES)
        sender = self._senders.get(run)
        known = sender is not None
        if sender is None:
            sender = _Sender(self._cipher_of(run))
        window = sender.windows[lane]
        if window.has_seen(counter):
            self.replayed += 1
            return None
        try:
            data = sender.cipher.decrypt(_NONCE.pack(lane, counter), memoryview(sealed)[HEADER_BYTES:], header)
        except InvalidTag:
            self.foreign += 1
            return None
        window.add(counter)
        if known:
            self._senders.move_to_end(run)
        else:
            self._remember(run, sender)
        return data

    def describe(self) -> dict[str, object]:
        """Counters and the number of senders remembered."""
        return {"senders": len(self._senders), "foreign": self.foreign, "replayed": self.replayed}

    def _cipher_of(self, run: bytes) -> AESGCM:
        return AESGCM(HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=run).derive(self._group_key))

    def _remember(self, run: bytes, sender: _Sender) -> None:
        # Only senders that proved they hold the key get here, so strangers cannot push out members.
        self._senders[run] = sender
        if len(self._senders) > SENDERS_MAX:
            self._senders.popitem(last=False)

"""What belongs to an archive: a folder of numbered versions, each saying which files came and which went.

    ARCHIVE/_manifest/0000000012.json            version 12: files added and removed, with ranges and hashes
    ARCHIVE/_manifest/0000000012.snapshot.json   every file of the archive at version 12, so that readers begin there
    ARCHIVE/destination=topic%3Aorders/date=2026-01-31/….parquet

A version is made whole under another name and then linked to its own, which fails when it is there: so it appears at
once, and two writers cannot both make it. A file that no version names does not belong to the archive.
The folder must be one that driver and executors see under the same path: a disk of this machine, or a shared one.
"""

import contextlib
import datetime
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from alphorn.model.errors import Corruption, Misuse, Unavailable

FOLDER = "_manifest"
SNAPSHOT_EVERY = 50
FORMAT = 1

Outlet = tuple[str, str]  # destination, channel


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file: messages of one destination and day, from `first` to `last` log entry."""

    path: str  # below the archive
    destination: str
    channel: str
    date: str
    rows: int
    first: int
    last: int
    hash: str  # jobs/hashing.py, of its rows
    bytes: int
    sha256: str  # of the file


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One change of an archive, or, as a snapshot, everything so far."""

    format: int = FORMAT
    version: int
    why: str  # "append", "compact" or "snapshot"
    time: str
    added: list[ArchivedFile] = []
    removed: list[str] = []


class Manifest:
    """An archive at its newest version."""

    def __init__(self, root: Path, version: int, files: dict[str, ArchivedFile]) -> None:
        self.root = root
        self.version = version
        self.files = files  # by path

    @property
    def marks(self) -> dict[Outlet, int]:
        """The last log entry that is archived of each destination; later ones are not."""
        found: dict[Outlet, int] = {}
        for file in self.files.values():
            outlet = file.destination, file.channel
            found[outlet] = max(found.get(outlet, 0), file.last)
        return found

    def commit(self, why: str, *, added: Iterable[ArchivedFile], removed: Iterable[str] = ()) -> "Manifest":
        """The archive with this change; raises `Unavailable` when another writer was faster."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        change = Version(version=self.version + 1, why=why, time=now, added=list(added), removed=list(removed))
        if not _write(_path(self.root, change.version), change):
            raise Unavailable(
                f"another job has changed the archive {self.root} meanwhile; let one write at a time, and start again"
            )
        changed = Manifest(self.root, change.version, _applied(self.files, change))
        if change.version % SNAPSHOT_EVERY == 0:
            snapshot = Version(version=change.version, why="snapshot", time=now, added=list(changed.files.values()))
            _write(_path(self.root, change.version, kind=".snapshot"), snapshot)
        return changed


def open_manifest(root: Path, *, create: bool = False) -> Manifest:
    """The newest version; raises `Misuse` where there is no archive, `Corruption` for one that cannot be read."""
    folder = root / FOLDER
    if create:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Misuse(f"the archive {root} cannot be made: {error.strerror}; choose another place") from None
    if not folder.is_dir():
        raise Misuse(f"{root} is no archive; make one with: alphorn spark archive --archive {root}")
    names = sorted(path.name for path in folder.glob("*.json"))
    snapshots = [int(name.split(".")[0]) for name in names if name.endswith(".snapshot.json")]
    versions = [int(name.split(".")[0]) for name in names if name.count(".") == 1]
    files: dict[str, ArchivedFile] = {}
    version = max(snapshots, default=0)
    if version:
        files = _applied({}, _read(_path(root, version, kind=".snapshot")))
    for number in versions:
        if number <= version:
            continue
        if number != version + 1:
            raise Corruption(f"version {version + 1} of the archive {root} is missing; restore it from a copy")
        files, version = _applied(files, _read(_path(root, number))), number
    return Manifest(root, version, files)


def _applied(files: dict[str, ArchivedFile], change: Version) -> dict[str, ArchivedFile]:
    gone = set(change.removed)
    kept = {path: file for path, file in files.items() if path not in gone}
    return kept | {file.path: file for file in change.added}


def _path(root: Path, version: int, *, kind: str = "") -> Path:
    return root / FOLDER / f"{version:010}{kind}.json"


def _read(path: Path) -> Version:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Version)
    except (OSError, msgspec.MsgspecError) as error:
        raise Corruption(f"the manifest {path} cannot be read: {error}; restore it from a copy") from None
    if found.format != FORMAT:
        raise Corruption(f"the manifest {path} has format {found.format}; this alphorn reads format {FORMAT}")
    return found


def _write(path: Path, version: Version) -> bool:
    """Whether the version was not there; then it is now, whole and on stable storage."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(version)))
        stream.flush()
        os.fsync(stream.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    with contextlib.closing(_Folder(path.parent)) as folder:
        os.fsync(folder.descriptor)
    return True


class _Folder:
    """An open folder, whose entries are to be durable."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        """Closes it."""
        os.close(self.descriptor)

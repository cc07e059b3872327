"""The durable run log: every decision is written before it takes effect, so that a crash loses none.

One SQLite file (write-ahead log, ``synchronous=FULL``), owned by one process at a time. Each record carries
a checksum over itself and its place, verified on every read. Writers share commits: what arrives while a
commit runs goes into the next one (group commit). Bodies are JSON of a closed, versioned schema; nothing is
ever unpickled or imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import queue
import sqlite3
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from pandacore import errors
from pandacore.planted import PLANTED

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Journal", "Kind", "Record", "RunInfo"]

SCHEMA_VERSION: Final = 3
"""Raised with every change of the tables or of what a record says; other versions are refused."""
MAX_PENDING: Final = 10_000
"""Records that wait for a commit; more block the writers."""
MAX_BATCH: Final = 1_000
"""Most records of one commit."""
_TOGETHER: Final = 32
"""Most rows of one statement; a statement of each number is kept prepared."""
_DAMAGE: Final = (sqlite3.Error, UnicodeDecodeError)  # a flipped bit in a text is found when it is decoded
_APPLICATION_ID: Final = 0x70_61_6E_64  # "pand"


_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Kind(StrEnum):
    """What a record says. Adding one raises :data:`SCHEMA_VERSION`."""

    RUN = "run"
    PLAN = "plan"
    CHECKPOINT = "checkpoint"
    SPENT = "spent"
    ANSWER = "answer"
    RESUMED = "resumed"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a run's log; ``seq`` counts from 1 within the run, ``at`` is a Unix time for people."""

    run_id: str
    seq: int
    kind: Kind
    body: Any
    at: float


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as the list shows it. ``status`` is ``open`` until the run ends."""

    run_id: str
    status: str
    pattern: str
    text: str
    records: int
    began: float
    last: float


@dataclass(slots=True)
class _Write:
    run_id: str
    seq: int
    kind: Kind
    body: str
    at: float
    written: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop


class Journal:
    """Append and read run logs.

    Parameters
    ----------
    path : path
        The database file; its folder is made if missing.
    durability : ``"sync"`` or ``"async"``
        ``sync``: :meth:`append` returns once the record is on disk (fsync). ``async``: it returns at once;
        a crash may lose the records of the last commit interval, some tens of milliseconds, never older
        ones, and never their order.
    read_only : bool
        True: only :meth:`read` and :meth:`runs`, beside the process that owns the file.

    Raises
    ------
    DataDirLocked
        Another process owns the file.
    IncompatibleJournal
        The file was written by another schema version, or is no journal.
    JournalCorrupt
        SQLite or a checksum found damage.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Literal["sync", "async"] = "sync",
        read_only: bool = False,
    ) -> None:
        if durability not in ("sync", "async"):
            raise errors.ConfigError(
                f"no durability {durability!r}", where="Journal.durability", hint="use 'sync' or 'async'"
            )
        self.path = Path(path)
        self.durability = durability
        self._pid = os.getpid()
        self._lock: _FileLock | None = None
        with contextlib.ExitStack() as undo:  # a file that turns out damaged is let go of
            if not read_only:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._lock = _FileLock(self.path.with_name(self.path.name + ".lock"))
                undo.callback(self._lock.release)
            self._reader = undo.enter_context(contextlib.closing(_open(self.path)))
            if read_only:
                self._reader.execute("PRAGMA query_only=ON")
            self._next = _last_numbers(self._reader, self.path)
            undo.pop_all()
        self._doors: list[dict[str, str]] = []
        self._mutex = threading.Lock()
        self._room = threading.Condition(self._mutex)
        self._fresh: list[_Write] = []  # of this turn of the event loop that will hand them over
        self._turn: asyncio.AbstractEventLoop | None = None
        self._pending = 0
        self._queue: queue.SimpleQueue[list[_Write] | threading.Event | None] = queue.SimpleQueue()
        self._failed: errors.PandacoreError | None = None
        self._closed = False
        self.commits = 0
        """Commits so far; fewer than records when writers shared them."""
        self._writer: threading.Thread | None = None
        if not read_only:
            self._writer = threading.Thread(target=self._write_loop, name="pandacore-journal", daemon=True)
            self._writer.start()

    async def append(self, run_id: str, kind: Kind, body: Any) -> int:
        """Write one record; answers its ``seq``.

        Raises
        ------
        StorageFull, JournalCorrupt
            It could not be written; nothing of it is in the log. After ``StorageFull`` a later call tries
            again.
        StateError, ForkError
            The journal is closed, or belongs to another process.
        """
        seq, written = self._put(run_id, kind, body)
        if self.durability == "sync" and "acknowledge_before_commit" not in PLANTED:
            await written
        return seq

    def write(self, run_id: str, kind: Kind, body: Any) -> asyncio.Future[None] | None:
        """As :meth:`append`, without waiting: the future is done when the record is on disk.

        Records are on disk in the order in which they were written. None: nothing is to be waited for,
        with ``durability="async"``.
        """
        _, written = self._put(run_id, kind, body)
        if self.durability == "sync" and "acknowledge_before_commit" not in PLANTED:
            return written
        return None

    def _put(self, run_id: str, kind: Kind, body: Any) -> tuple[int, asyncio.Future[None]]:
        loop = asyncio.get_running_loop()
        text = _ENCODE(body)
        written: asyncio.Future[None] = loop.create_future()
        # A failure that nobody awaits is raised by the next call.
        written.add_done_callback(_heed)
        with self._mutex:
            self._check()
            while self._pending >= MAX_PENDING:
                self._hand_over()  # or there would be nothing to wait for
                self._room.wait()
            seq = self._next.get(run_id, 1)
            self._next[run_id] = seq + 1
            self._fresh.append(_Write(run_id, seq, kind, text, time.time(), written, loop))
            self._pending += 1
            later = self._turn is not loop
            self._turn = loop
        if later:
            # Once a turn: each time the writer is woken the two threads wrestle for the interpreter.
            loop.call_soon(self._end_turn)
        return seq, written

    def _end_turn(self) -> None:
        with self._mutex:
            self._hand_over()

    def _hand_over(self) -> None:
        """Give the writer what is fresh; with the mutex held."""
        self._turn = None
        if self._fresh:
            self._queue.put(self._fresh)
            self._fresh = []

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise errors.ForkError(
                f"the journal {self.path} belongs to process {self._pid}",
                hint="open a journal of its own in the child",
            )
        if self._closed:
            raise errors.StateError(f"the journal {self.path} is closed", hint="open it again")
        if self._writer is None:
            raise errors.StateError(f"the journal {self.path} is read only", hint="open it to write")
        if isinstance(self._failed, errors.StorageFull) and self._pending == 0:
            # Nothing that failed is in the file: number on from what is, and let the next commit try.
            self._next = _last_numbers(self._reader, self.path)
            self._failed = None
        if self._failed is not None:
            raise self._failed

    def _write_loop(self) -> None:
        with contextlib.closing(_open(self.path)) as connection:
            stop = False
            while not stop:
                writes: list[_Write] = []
                waiting: list[threading.Event] = []
                item = self._queue.get()
                while True:
                    if item is None:
                        stop = True
                    elif isinstance(item, threading.Event):
                        waiting.append(item)
                    else:
                        writes += item
                    if len(writes) >= MAX_BATCH:
                        break
                    try:
                        item = self._queue.get_nowait()
                    except queue.Empty:
                        break
                self._commit(connection, writes)
                with self._mutex:
                    self._pending -= len(writes)
                    self._room.notify_all()
                for event in waiting:
                    event.set()

    def _commit(self, connection: sqlite3.Connection, writes: list[_Write]) -> None:
        if not writes:
            return
        if self._failed is None:
            # The head tells a log that ends from one whose tail was lost.
            heads = {w.run_id: w.seq for w in writes}
            try:
                with connection:
                    _insert(
                        connection,
                        "INSERT INTO records (run_id, seq, kind, body, at, sum)",
                        [
                            (
                                w.run_id,
                                w.seq,
                                w.kind.value,
                                w.body,
                                w.at,
                                _sum(w.run_id, w.seq, w.kind, w.body, w.at),
                            )
                            for w in writes
                        ],
                    )
                    _insert(
                        connection,
                        "INSERT OR REPLACE INTO heads (run_id, last, sum)",
                        [(run, last, _sum(run, last, "head", "", 0.0)) for run, last in heads.items()],
                    )
                self.commits += 1
            except sqlite3.Error as failure:
                self._failed = _storage_error(failure, self.path)
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for write in writes:
            by_loop.setdefault(write.loop, []).append(write.written)
        for loop, futures in by_loop.items():
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
                loop.call_soon_threadsafe(_settle, futures, self._failed)

    def read(self, run_id: str, *, after: int = 0) -> Iterator[Record]:
        """The records of a run in order, each verified.

        Raises
        ------
        UnknownRun
            There is none with this id.
        JournalCorrupt
            A record is damaged, missing or out of place; the error names it.
        """
        expected = after + 1
        last = self._head(run_id)
        rows = self._query(
            "SELECT seq, kind, body, at, sum FROM records WHERE run_id = ? AND seq > ? ORDER BY seq",
            (run_id, after),
        )
        for seq, kind, body, at, checksum in rows:
            where = f"{self.path}, run {run_id}, record {expected}"
            damaged = checksum != _sum(run_id, seq, kind, body, at) and "skip_checksum" not in PLANTED
            if seq != expected or damaged:
                raise errors.JournalCorrupt(
                    "the record is missing" if seq != expected else "the checksum does not match",
                    where=where,
                    hint="restore the file from a backup; the records before it are intact",
                )
            try:
                yield Record(run_id, seq, Kind(kind), json.loads(body), at)
            except ValueError as error:
                raise errors.IncompatibleJournal(
                    f"cannot read a record of kind {kind!r}: {error}",
                    where=where,
                    hint="read it with the version that wrote it",
                ) from error
            expected += 1
        if expected <= last and "lost_tail" not in PLANTED:
            raise errors.JournalCorrupt(
                "the record is missing",
                where=f"{self.path}, run {run_id}, record {expected}",
                hint="restore the file from a backup; the records before it are intact",
            )

    def _head(self, run_id: str) -> int:
        """The number of the run's last record, verified."""
        heads = self._query("SELECT last, sum FROM heads WHERE run_id = ?", (run_id,))
        if not heads:
            if self._query("SELECT 1 FROM records WHERE run_id = ? LIMIT 1", (run_id,)):
                raise errors.JournalCorrupt(
                    "the head of the run is missing",
                    where=f"{self.path}, run {run_id}",
                    hint="restore a backup",
                )
            raise errors.UnknownRun(
                f"no run {run_id!r} in {self.path}", hint="list them with `pandacore runs`"
            )
        [(last, checksum)] = heads
        if checksum != _sum(run_id, last, "head", "", 0.0):
            raise errors.JournalCorrupt(
                "the checksum of the head does not match",
                where=f"{self.path}, run {run_id}",
                hint="restore the file from a backup",
            )
        return int(last)

    def runs(self, *, limit: int = 1_000) -> list[RunInfo]:
        """The latest runs, newest first.

        Raises
        ------
        JournalCorrupt
            The first or last record of one is damaged.
        """
        spans = self._query(
            "SELECT h.run_id, h.last FROM heads h LEFT JOIN records r ON r.run_id = h.run_id AND r.seq = 1"
            " ORDER BY r.at DESC, h.run_id LIMIT ?",
            (limit,),
        )
        found = []
        for run_id, count in spans:
            first = next(self.read(run_id))
            final = next(self.read(run_id, after=count - 1))
            status = final.body["status"] if final.kind is Kind.FINISH else "open"
            found.append(
                RunInfo(
                    run_id,
                    status,
                    first.body["pattern"],
                    first.body["task"]["text"],
                    count,
                    first.at,
                    final.at,
                )
            )
        return found

    def _query(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        self._settle()
        with self._mutex:
            try:
                return self._reader.execute(sql, values).fetchall()
            except _DAMAGE as failure:
                raise _storage_error(failure, self.path) from failure

    def _settle(self) -> None:
        """Wait until what was appended so far is committed, so that reads see it."""
        if self._closed:
            raise errors.StateError(f"the journal {self.path} is closed", hint="open it again")
        if os.getpid() == self._pid and self._writer is not None and self._writer.is_alive():
            reached = threading.Event()
            self._end_turn()
            self._queue.put(reached)
            reached.wait(30)

    def close(self) -> None:
        """Commit what waits, and let go of the file. Idempotent."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        if self._writer is not None:
            self._end_turn()
            self._queue.put(None)
            self._writer.join(30)
        self._reader.close()
        if self._doors:
            _door_file(self.path).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.release()

    def announce(self, address: str, token: bytes) -> None:
        """Leave word beside the file, for its owner's eyes only, where answers to questions are taken."""
        self._doors.append({"address": address, "token": token.hex()})
        path = _door_file(self.path)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        with open(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii"
        ) as file:
            json.dump(self._doors, file)
        fresh.replace(path)

    @staticmethod
    def doors(path: str | os.PathLike[str]) -> list[tuple[str, bytes]]:
        """Where the process that owns a journal takes answers: addresses, each with its token."""
        try:
            found = json.loads(_door_file(Path(path)).read_text("ascii"))
            return [(str(door["address"]), bytes.fromhex(door["token"])) for door in found]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _insert(connection: sqlite3.Connection, into: str, rows: list[tuple[Any, ...]]) -> None:
    """Insert rows, some at a time: SQLite lets go of the interpreter at each step, and has to win it back."""
    places = "(" + ",".join("?" * len(rows[0])) + ")"
    for start in range(0, len(rows), _TOGETHER):
        some = rows[start : start + _TOGETHER]
        connection.execute(
            f"{into} VALUES {','.join([places] * len(some))}", tuple(itertools.chain.from_iterable(some))
        )


def _settle(futures: list[asyncio.Future[None]], error: errors.PandacoreError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _heed(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


def _door_file(path: Path) -> Path:
    return path.with_name(path.name + ".answers")


def _open(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, check_same_thread=False, timeout=5, isolation_level="IMMEDIATE")
    except sqlite3.Error as failure:
        raise _storage_error(failure, path) from failure
    try:
        [application] = connection.execute("PRAGMA application_id").fetchone()
        [version] = connection.execute("PRAGMA user_version").fetchone()
        [tables] = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION_ID:
            raise errors.IncompatibleJournal(
                "the file is an SQLite database, but no journal", where=str(path), hint="choose another path"
            )
        if tables and version != SCHEMA_VERSION:
            raise errors.IncompatibleJournal(
                f"the journal has schema version {version}, this version reads {SCHEMA_VERSION}",
                where=str(path),
                hint="open it with the version that wrote it",
            )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'OFF' if 'skip_fsync' in PLANTED else 'FULL'}")
        if not tables:
            with connection:
                connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
                connection.execute(
                    "CREATE TABLE records (run_id TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL,"
                    " body TEXT NOT NULL, at REAL NOT NULL, sum BLOB NOT NULL, PRIMARY KEY (run_id, seq))"
                    " WITHOUT ROWID"
                )
                connection.execute(
                    "CREATE TABLE heads (run_id TEXT PRIMARY KEY, last INTEGER NOT NULL, sum BLOB NOT NULL)"
                    " WITHOUT ROWID"
                )
    except _DAMAGE as failure:
        connection.close()
        raise _storage_error(failure, path) from failure
    except BaseException:
        connection.close()
        raise
    return connection


def _last_numbers(connection: sqlite3.Connection, path: Path) -> dict[str, int]:
    """The next number of every run."""
    try:
        return {run_id: last + 1 for run_id, last in connection.execute("SELECT run_id, last FROM heads")}
    except (*_DAMAGE, TypeError) as failure:
        raise _storage_error(failure, path) from failure


def _sum(run_id: str, seq: int, kind: str, body: str, at: float) -> bytes:
    """Binds a record to its place: swapped records do not verify either."""
    text = f"{run_id}\0{seq}\0{kind}\0{at!r}\0{body}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _storage_error(failure: Exception, path: Path) -> errors.PandacoreError:
    code = getattr(failure, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY):
        return errors.StorageFull(
            f"cannot write: {failure}", where=str(path), hint="free some disk space; the log is intact so far"
        )
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return errors.JournalCorrupt(str(failure), where=str(path), hint="restore the file from a backup")
    return errors.JournalCorrupt(
        f"{type(failure).__name__}: {failure}", where=str(path), hint="check the file and its folder"
    )


class _FileLock:
    """One owner at a time; the operating system frees it when the owner dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "a+", encoding="ascii")  # noqa: SIM115 - held until release
        try:
            _lock(self._file)
        except OSError:
            self._file.seek(0)
            owner = self._file.read().strip() or "unknown"
            self._file.close()
            raise errors.DataDirLocked(
                f"process {owner} owns it", where=str(path), hint="stop that process, or use another path"
            ) from None
        self._file.seek(0)
        self._file.truncate()
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def _lock(file: IO[str]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

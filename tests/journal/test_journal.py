"""The run log: durable, verified, owned by one process, and never half written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pandacore import errors
from pandacore.journal import Journal, Kind, _open

FIRST: dict[str, Any] = {"pattern": "star", "task": {"text": "question"}}


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


async def fill(path: Path, records: int = 5, run_id: str = "r1") -> None:
    with Journal(path) as journal:
        await journal.append(run_id, Kind.RUN, FIRST)
        for n in range(records - 1):
            await journal.append(run_id, Kind.CHECKPOINT, {"subtask": f"s{n}", "output": "x" * 50})


async def test_records_come_back_in_order_and_runs_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "runs.db"
    await fill(path)
    with Journal(path) as journal:
        assert [r.seq for r in journal.read("r1")] == [1, 2, 3, 4, 5]
        assert [r.body["subtask"] for r in journal.read("r1", after=3)] == ["s2", "s3"]
        assert await journal.append("r2", Kind.RUN, FIRST) == 1
        assert await journal.append("r2", Kind.FINISH, {"status": "completed"}) == 2
        runs = {r.run_id: r for r in journal.runs()}
        assert (runs["r1"].status, runs["r2"].status) == ("open", "completed")
        assert (runs["r1"].records, runs["r1"].text, runs["r1"].pattern) == (5, "question", "star")
        with pytest.raises(errors.UnknownRun, match="no run 'r3'"):
            list(journal.read("r3"))


async def test_writers_share_commits(tmp_path: Path) -> None:
    with Journal(tmp_path / "runs.db") as journal:
        await asyncio.gather(*(journal.append(f"r{n}", Kind.RUN, FIRST) for n in range(500)))
        assert journal.commits < 250
        assert len(journal.runs()) == 500


async def test_fc_12_a_second_process_is_refused_with_the_owners_id(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    program = f"from pandacore.journal import Journal\nJournal({str(path)!r})\nprint('open')"
    with Journal(path) as journal:
        await journal.append("r", Kind.RUN, FIRST)
        done = run(program)
        assert f"DataDirLocked: {path}.lock: process {os.getpid()} owns it" in done.stderr
        with pytest.raises(errors.DataDirLocked):
            Journal(path)
    assert run(program).stdout == "open\n"


async def test_fc_38_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs.db")

    def write(worker: int) -> None:
        async def many() -> None:
            for _ in range(50):
                await journal.append(f"w{worker}", Kind.CHECKPOINT, {"n": 1})

        asyncio.run(many())

    threads = [threading.Thread(target=write, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, 60)
    assert all(len(list(journal.read(f"w{n}"))) == 50 for n in range(20))
    journal.close()


KILLED = """
import asyncio, sys
from pandacore.journal import Journal, Kind, _open
async def main():
    journal = Journal(sys.argv[1])
    await journal.append("r", Kind.RUN, {"pattern": "star", "task": {"text": "q"}})
    for n in range(100_000):
        await journal.append("r", Kind.CHECKPOINT, {"n": n, "pad": "x" * 500})
        print(n, flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("after", [0, 3, 17, 60])
async def test_fc_52_what_was_acknowledged_survives_kill_9(tmp_path: Path, after: int) -> None:
    path = tmp_path / "runs.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    acknowledged = -1
    while acknowledged < after:
        acknowledged = int(await process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    rest = (await process.stdout.read()).decode().split()
    acknowledged = int(rest[-1]) if rest else acknowledged
    await process.wait()
    with Journal(path) as journal:  # the dead owner's lock is free
        numbers = [r.body["n"] for r in journal.read("r") if r.kind is Kind.CHECKPOINT]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > acknowledged


async def test_fc_52_every_flipped_bit_of_a_record_is_found(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await fill(path, records=30)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    with Journal(path) as journal:
        intact = [(r.seq, r.kind, r.body) for r in journal.read("r1")]
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    original = path.read_bytes()
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    found = 0
    for _ in range(300):
        bit = rng.randrange(len(original) * 8)
        damaged = bytearray(original)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        for side in ("-wal", "-shm"):
            path.with_name(path.name + side).unlink(missing_ok=True)
        try:
            with Journal(path) as journal:
                # Unused bytes of a page may flip unseen; what is read is then still the truth.
                assert [(r.seq, r.kind, r.body) for r in journal.read("r1")] == intact, (
                    f"seed {seed}, bit {bit}"
                )
        except (
            errors.JournalCorrupt,
            errors.IncompatibleJournal,
            errors.UnknownRun,
            errors.StorageFull,
        ) as error:
            found += str(path) in str(error)
    assert found > 50


async def test_a_missing_or_swapped_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await fill(path)
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM records WHERE seq = 3")
    connection.commit()
    with (
        Journal(path) as journal,
        pytest.raises(errors.JournalCorrupt, match="record 3: the record is missing"),
    ):
        list(journal.read("r1"))
    connection.execute("UPDATE records SET seq = 3 WHERE seq = 4")
    connection.commit()
    connection.close()
    with Journal(path) as journal, pytest.raises(errors.JournalCorrupt, match=r"record 3: the checksum"):
        list(journal.read("r1"))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"not a database, and longer than any header " * 30, errors.JournalCorrupt),
        (b"SQLite format 3\x00" + b"\x00" * 200, errors.JournalCorrupt),
    ],
)
def test_a_foreign_file_is_refused_and_left_alone(
    tmp_path: Path, content: bytes, error: type[errors.PandacoreError]
) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(content)
    with pytest.raises(error, match=r"runs\.db"):
        Journal(path)
    assert path.read_bytes() == content
    path.unlink()
    Journal(path).close()


async def test_fc_34_another_schema_version_or_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(errors.IncompatibleJournal, match="version 99"):
        Journal(path)
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(errors.IncompatibleJournal, match="no journal"):
        Journal(foreign)


FULL = """
import asyncio, resource, signal, sys
from pandacore import errors
from pandacore.journal import Journal, Kind, _open
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def main():
    journal = Journal(sys.argv[1])
    await journal.append("r", Kind.RUN, {"pattern": "star", "task": {"text": "q"}})
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    written = 0
    try:
        for n in range(1000):
            await journal.append("r", Kind.CHECKPOINT, {"n": n, "pad": "x" * 2000})
            written += 1
    except errors.StorageFull as error:
        assert error.hint
    assert len([r for r in journal.read("r") if r.kind is Kind.CHECKPOINT]) == written
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await journal.append("r", Kind.CHECKPOINT, {"n": written})
    assert [r.body["n"] for r in journal.read("r", after=1)] == list(range(written + 1))
    journal.close()
    print("written", written)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_f12_a_full_disk_is_typed_and_writing_goes_on_when_there_is_space(tmp_path: Path) -> None:
    done = run(FULL, str(tmp_path / "runs.db"))
    assert done.stdout.startswith("written "), done.stderr
    assert 5 < int(done.stdout.split()[1]) < 1000


async def test_closed_and_async_journals(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs.db", durability="async")
    for n in range(100):
        await journal.append("r", Kind.CHECKPOINT, {"n": n})
    assert [r.body["n"] for r in journal.read("r")] == list(range(100))
    journal.close()
    journal.close()
    with pytest.raises(errors.StateError, match="closed"):
        await journal.append("r", Kind.CHECKPOINT, {})
    with pytest.raises(errors.StateError, match="closed"):
        journal.runs()
    with pytest.raises(errors.ConfigError, match="durability"):
        Journal(tmp_path / "x.db", durability="perhaps")  # type: ignore[arg-type]


ACKNOWLEDGED = """
import asyncio, os, sys
from pandacore.journal import Journal, Kind, _open
async def main():
    with Journal(sys.argv[1]) as journal:
        for n in range(20):
            await journal.append("r", Kind.CHECKPOINT, {"n": n})
            os.write(1, b"acknowledged\\n")
asyncio.run(main())
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_f15_every_acknowledgement_follows_an_fsync(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    calls = "trace=fsync,fdatasync,write"
    command = ["strace", "-f", "-e", calls, "-o", str(trace), sys.executable, "-c", ACKNOWLEDGED]
    done = subprocess.run(
        [*command, str(tmp_path / "runs.db")], capture_output=True, timeout=120, check=False
    )
    if done.returncode:
        pytest.skip(f"strace may not trace here: {done.stderr.decode()[-200:]}")
    synced, seen = False, 0
    for line in trace.read_text(encoding="utf-8").splitlines():
        if re.search(r"f(data)?sync.*= 0$", line):
            synced = True
        elif 'write(1, "acknowledged' in line:
            seen += 1
            assert synced, f"acknowledgement {seen} before its fsync"
            synced = False
    assert seen == 20


def test_f15_both_connections_sync_every_commit(tmp_path: Path) -> None:
    """The same without strace: what SQLite was told. 2 is FULL."""
    for _ in range(2):  # the file is made, then opened
        with contextlib.closing(_open(tmp_path / "runs.db")) as connection:
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


async def test_a_lost_tail_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await fill(path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM records WHERE seq = 5")
    with (
        Journal(path) as journal,
        pytest.raises(errors.JournalCorrupt, match="record 5: the record is missing"),
    ):
        list(journal.read("r1"))

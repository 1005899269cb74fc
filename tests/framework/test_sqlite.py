# SPDX-License-Identifier: Apache-2.0
"""sqlite: byte-range locks, rollback journals, the shared memory of WAL."""
import os
import sqlite3

import pytest

from calls import read

pytestmark = pytest.mark.modes("passthrough", "served")

JOURNALS = ["delete", "truncate", "persist", "memory", "wal"]


def connect(path, journal="delete", **more):
    db = sqlite3.connect(path, timeout=20, **more)
    mode, = db.execute(f"pragma journal_mode={journal}").fetchone()
    assert mode == journal
    return db


def fill(db, start, n=200):
    with db:
        db.execute("create table if not exists run(step integer, loss real, "
                   "blob blob)")
        db.executemany("insert into run values(?, ?, ?)",
                       ((i, i / 7, bytes([i % 256]) * 500)
                        for i in range(start, start + n)))


def rows(db):
    return db.execute("select step, loss, blob from run order by step"
                      ).fetchall()


def check(db):
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("journal", JOURNALS)
def test_write_and_read(d, m, journal):
    db = connect(d / "run.db", journal)
    for k in range(5):
        fill(db, k * 200)
    want = rows(db)
    db.close()
    m.evict("nvme", d)
    db = connect(d / "run.db", journal)
    check(db)
    assert rows(db) == want and len(want) == 1000
    db.close()


@pytest.mark.parametrize("journal", JOURNALS)
def test_rollback(d, journal):
    db = connect(d / "run.db", journal)
    fill(db, 0)
    want = rows(db)
    with pytest.raises(ZeroDivisionError):
        with db:
            db.execute("delete from run where step > 10")
            raise ZeroDivisionError
    assert rows(db) == want
    check(db)
    db.close()


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_several_processes(d, journal):
    """Each adds its rows; none is lost, the file is sound."""
    connect(d / "run.db", journal).close()
    pids = []
    for worker in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                db = connect(d / "run.db", journal)
                for k in range(5):
                    fill(db, worker * 1000 + k * 20, 20)
                db.close()
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(p, 0)[1] for p in pids] == [0] * 4
    db = connect(d / "run.db", journal)
    check(db)
    assert len(rows(db)) == 400
    db.close()


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_writer_that_dies(d, journal):
    """In the middle of a transaction: the next one rolls it back."""
    db = connect(d / "run.db", journal)
    fill(db, 0)
    want = rows(db)
    db.close()
    pid = os.fork()
    if pid == 0:
        db = connect(d / "run.db", journal, isolation_level=None)
        db.execute("pragma cache_size=1")
        db.execute("begin")
        db.execute("delete from run")
        db.executemany("insert into run values(?, 1, zeroblob(3000))",
                       ((i,) for i in range(500)))
        os._exit(0)
    os.waitpid(pid, 0)
    db = connect(d / "run.db", journal)
    assert rows(db) == want
    check(db)
    db.close()


def test_committed_is_durable(fresh):
    """synchronous=extra, which syncs the removal of the journal, too: after
    each commit the machine may be lost."""
    m = fresh()
    for k in range(4):
        db = connect(m.path / "run.db")
        db.execute("pragma synchronous=extra")
        fill(db, k * 50, 50)
        db.close()
        m.lose_dram()
        db = connect(m.path / "run.db")
        check(db)
        assert len(rows(db)) == (k + 1) * 50
        db.close()


def test_wal_with_a_reader(d):
    """The reader sees what was when it began."""
    db = connect(d / "run.db", "wal")
    fill(db, 0)
    reader = connect(d / "run.db", "wal", isolation_level=None)
    reader.execute("begin")
    assert len(rows(reader)) == 200
    fill(db, 200)
    assert len(rows(reader)) == 200
    reader.execute("commit")
    assert len(rows(reader)) == 400
    reader.close()
    db.execute("pragma wal_checkpoint(truncate)")
    db.close()
    assert read(d / "run.db")[:15] == b"SQLite format 3"


def test_vacuum_and_backup(d, m):
    db = connect(d / "run.db")
    fill(db, 0, 1000)
    with db:
        db.execute("delete from run where step % 2")
    db.execute("vacuum")
    copy = sqlite3.connect(d / "copy.db")
    db.backup(copy)
    want = rows(db)
    copy.close()
    db.close()
    m.evict("nvme", d)
    for name in ("run.db", "copy.db"):
        db = connect(d / name)
        check(db)
        assert rows(db) == want
        db.close()


def test_memory_mapped(d, m):
    db = connect(d / "run.db")
    db.execute("pragma mmap_size=268435456")
    fill(db, 0, 2000)
    want = rows(db)
    fill(db, 2000, 10)
    assert len(rows(db)) == 2010
    db.close()
    m.evict("nvme", d)
    db = connect(d / "run.db")
    db.execute("pragma mmap_size=268435456")
    check(db)
    assert rows(db)[:2000] == want
    db.close()

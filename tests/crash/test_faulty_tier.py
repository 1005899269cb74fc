# SPDX-License-Identifier: Apache-2.0
"""An NVMe tier that fails (-o faulty=, engine/tier_faulty.c says how): who
asked is told, the status says so, the watermark waits, and when the fault
has passed nothing is lost. The daemon lives on."""
import ctypes
import errno
import fcntl
import os
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile
import time

import pytest

import calls
import journal
import mounted
import oplist
import power

pytestmark = [pytest.mark.modes("passthrough", "served"), pytest.mark.root]
MB = 1 << 20


def nvme(m):
    return m.status()["tiers"][1]


def rules(*specs):
    """As one option: commas in it are not the end of it."""
    return "\\,".join(specs)


def fsync(path):
    with calls.opened(path, os.O_RDONLY) as fd:
        return calls.errno_of(os.fsync, fd)


@pytest.mark.modes("passthrough")
@pytest.mark.parametrize("spec,told", [
    ("write:error=EIO:times=3", errno.EIO),
    ("write:full:times=3", errno.ENOSPC),
    ("sync:error=EIO:times=3", errno.EIO),
    ("sync_names:error=EIO:times=3", errno.EIO),
    ("create:error=EIO:times=3", None),
    ("preallocate:error=ENOSPC:times=3", None),
    ("open:error=EIO:times=2", None),
])
def test_error_is_told(fresh, spec, told):
    """By fsync and in the status, as long as it lasts; then all is well."""
    m = fresh(faulty=spec)
    path = m.path / "f"
    errors, shown = [], []
    try:
        calls.write(path, calls.noise(5 * MB))
    except OSError as e:  # at close: no room could be set aside
        errors.append(e.errno)
    calls.write(m.path / "small", b"small")

    def passes():
        error = fsync(path)
        if error:
            errors.append(error)
            shown.append(nvme(m)["error"])
        return error == 0

    mounted.until(passes, 60, 0.05)
    assert set(errors) <= {told or errno.EIO, errno.ENOSPC}, errors
    if told:
        assert told in errors, "no fsync said a word"
        assert any(shown), "the status knew nothing"
    assert nvme(m)["error"] == ""
    assert m.alive()
    m.lose_dram(faulty=None)
    assert calls.read(m.path / "f") == calls.noise(5 * MB)
    assert calls.read(m.path / "small") == b"small"


def failing(m, spec, seed, seconds=1.5, **more):
    """A job on a failing tier, for a while."""
    one = Here(m)
    try:
        work = journal.Work(one, seed, tolerate=True, **more)
        mounted.until(lambda: nvme(m)["error"] != "", 60)
        time.sleep(seconds)
        assert m.alive(), f"{spec} killed it: {m.log_tail()}"
        assert os.listdir(m.path)
    finally:
        one.end_processes()
    return work.read()


class Here:
    def __init__(self, m):
        self.m, self.processes = m, []

    def spawn(self, command):
        self.processes.append(self.m.popen(command))
        return self.processes[-1]

    def end_processes(self):
        for p in self.processes:
            p.kill()
            p.wait()


def may_fail(work):
    """Opening for writing what cannot be flushed may say so, too."""
    return not work.error or work.error[1] == errno.EIO \
        and work.ops[work.error[0]][0] in oplist.WRITES


FOREVER = ["write:error=EIO:after=12", "sync:error=EIO:after=8",
           "sync_names:error=EIO:after=4"]


@pytest.mark.parametrize("spec", FOREVER)
def test_cut_while_it_fails(fresh, spec):
    """The watermark has passed nothing that was not flushed."""
    m = fresh(faulty=spec, dram="256M")
    seed = f"stands {spec} {m.mode}"
    work = failing(m, spec, seed)
    assert may_fail(work), work.trouble()
    assert fsync(m.path)
    m.lose_dram(faulty=None)
    n = work.judge(m.path, 0)
    print(f"{spec}: done {work.done}, failed fsyncs {len(work.failed)}, "
          f"there is {n}")
    assert n < work.last_change()


@pytest.mark.modes("served")
@pytest.mark.parametrize("spec", FOREVER)
def test_nothing_is_lost(fresh, spec):
    """The daemon is stopped, and mounted with a disk that works."""
    m = fresh(faulty=spec, dram="256M")
    work = failing(m, spec, f"kept {spec} {m.mode}", 0.5)
    assert may_fail(work), work.trouble()
    m.kill()
    m.start(faulty=None)
    check_all(work, m)
    m.wait("nvme")
    m.lose_dram()
    check_all(work, m)


def check_all(work, m):
    wrong = oplist.judge_written(work.ops, m.path, work.done, work.begun)
    assert not wrong, f"seed {work.seed}, done {work.done}:\n{wrong}"


def test_errors_come_and_go(fresh):
    m = fresh(dram="256M", faulty=rules(
        "write:error=EIO:after=10:times=4", "write:full:after=30:times=3",
        "sync:error=EIO:after=12:times=3", "write:delay=3ms",
        "sync_names:error=EIO:after=4:times=3", "write:short"))
    work = failing(m, "come and go", f"come {m.mode}", 3)
    assert not work.error, work.trouble()
    mounted.until(lambda: fsync(m.path) == 0, 60, 0.1)
    m.lose_dram(faulty=None)
    check_all(work, m)


@pytest.mark.limit(120 * journal.ROUNDS)
def test_cut_of_a_slow_tier(mode):
    """Delays everywhere, so that the cut finds everything under way."""
    spec = rules("write:delay=15ms", "sync:delay=30ms",
                 "sync_names:delay=30ms", "remove:delay=5ms")
    for seed in journal.seeds(f"slow-tier-{mode}"):
        with power.Machine(mode, faulty=spec) as one:
            work = journal.Work(one, seed)
            work.wait_for(random.Random(seed).randrange(50, 400))
            cut_at = time.monotonic()
            one.cut()
            n = work.judge(one.m.path, cut_at)
            print(f"seed {seed}: done {work.done}, there is {n}")
            assert n < work.last_change()


@pytest.mark.parametrize("fault", ["flip", "torn"])
def test_a_bad_copy_is_not_published(fresh, fault):
    """A disk that lies: what it garbled never gets to the remote."""
    m = fresh(remote=True, faulty=f"write:{fault}:times=1")
    away = m.base / "away"
    os.rename(m.remote_dir, away)
    data = calls.noise(3 * MB)
    calls.write(m.path / "f", data)
    m.evict("nvme")
    os.rename(away, m.remote_dir)
    end = time.monotonic() + 4
    said = ""
    while time.monotonic() < end and not said:
        said = m.status()["tiers"][2]["error"]
        if (m.remote_dir / "f").exists():
            assert calls.read(m.remote_dir / "f") == data
            break
        time.sleep(0.02)
    time.sleep(0.5)
    assert m.alive()
    if (m.remote_dir / "f").exists():
        assert calls.read(m.remote_dir / "f") == data


@pytest.mark.limit(120 * journal.ROUNDS)
def test_disk_is_full(mode):
    """Somebody else fills the disk. What was accepted is kept, cut or not."""
    with power.Machine(mode, size=700 << 20) as one:
        filler = one.image.path / "filler"
        work = journal.Work(one, f"full-{mode}")
        work.wait_for(60)
        fill(filler)
        mounted.until(lambda: work.read().error or work.ended, 60)
        assert work.error[1] == errno.ENOSPC, work.trouble()
        assert one.m.alive()
        work.process.wait(30)  # what it had open is closed then
        os.unlink(filler)
        mounted.until(lambda: fsync(one.m.path) == 0, 30, 0.1)
        before = oplist.look(one.m.path)
        calls.write(one.m.path / "again", calls.noise(MB))
        one.cut()
        after = oplist.look(one.m.path)
        after.pop("again", None)
        assert not calls.difference(before, after)
        wrong = oplist.judge_written(work.ops, one.m.path, work.done,
                                     work.begun)
        (one.m.path / "again").exists() and os.unlink(one.m.path / "again")
        assert not wrong, wrong


def fill(path):
    """All that is free, but a little."""
    room = os.statvfs(path.parent)
    with open(path, "wb") as f:
        calls.fallocate(f.fileno(), 0, 0,
                        room.f_bavail * room.f_frsize - 24 * MB)


class ThinDisk:
    """ext4 on a disk that promised more than it has: its image lies on a tmpfs
    which is full. What is taken from under a file cannot be written to it."""
    SIZE = 400

    def __enter__(self):
        if not shutil.which("mkfs.ext4"):
            mounted.missing("no mkfs.ext4")
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="ckptfs-test-thin-"))
        self.below, self.path = self.base / "below", self.base / "disk"
        self.image = self.below / "image"
        self.below.mkdir()
        self.path.mkdir()
        self._run("mount", "-t", "tmpfs", "-o", f"size={self.SIZE + 20}M",
                  "none", self.below)
        with open(self.image, "wb") as f:
            f.truncate(self.SIZE * MB)
        self._run("mkfs.ext4", "-q", "-F", "-E", "nodiscard,"
                  "lazy_itable_init=0,lazy_journal_init=0", self.image)
        self._run("mount", "-o", "loop,nodiscard", self.image, self.path)
        with calls.opened(self.image) as fd:
            calls.fallocate(fd, 0, 0, self.SIZE * MB)
        return self

    def _run(self, *words):
        subprocess.run([str(w) for w in words], check=True)

    def take_from_under(self, path):
        """The blocks of this file; nobody can have them back."""
        where = bytearray(struct.pack("=QQLLLL", 0, 1 << 40, 0, 0, 64, 0)
                          + bytes(56 * 64))
        with calls.opened(path, os.O_RDONLY) as fd:
            fcntl.ioctl(fd, 0xC020660B, where, True)  # FIEMAP
        with calls.opened(self.image) as fd:
            for i in range(struct.unpack_from("=QQLL", where)[3]):
                _, at, n = struct.unpack_from("=QQQ", where, 32 + 56 * i)
                calls.fallocate(fd, calls.PUNCH_HOLE | calls.KEEP_SIZE, at, n)
        with calls.opened(self.below / "junk", os.O_CREAT | os.O_RDWR) as fd:
            end = 0
            for step in (MB, 4096):
                while calls.errno_of(os.posix_fallocate, fd, end, step) == 0:
                    end += step

    def __exit__(self, *_):
        for path in (self.path, self.below):
            subprocess.run(["umount", "-l", path], check=False)
        shutil.rmtree(self.base, ignore_errors=True)


def drop_pages(path):
    """Written back, as far as it goes, and out of the page cache."""
    with calls.opened(path, os.O_RDONLY) as fd:
        ctypes.CDLL(None).syncfs(fd)  # which takes no file's error
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.modes("passthrough")
@pytest.mark.parametrize("cached", [True, False])
def test_what_could_not_be_written_back(cached):
    """The kernel tells once, and the next fdatasync works. While its pages are
    there a spilled file is saved; when they are not, nobody says it is."""
    data = calls.noise(MB) * 16
    with ThinDisk() as disk, mounted.Mounted(
            "passthrough", dram="16M", nvme=disk.path / "nvme") as m, \
            calls.opened(m.path / "hold", os.O_CREAT | os.O_WRONLY) as hold:
        for _ in range(7):
            calls.write_all(hold, calls.noise(2 * MB))
            time.sleep(0.01)
        files = m.nvme / "files"
        mounted.until(lambda: m.status()["tiers"][0]["used"] >= 14 * MB)
        before = set(os.listdir(files))
        with calls.opened(m.path / "f", os.O_CREAT | os.O_WRONLY) as fd:
            calls.write_all(fd, data[:8 * MB])
            mine = files / mounted.until(lambda: [
                f for f in set(os.listdir(files)) - before
                if os.stat(files / f).st_size == 8 * MB])[0]
            mounted.until(lambda: mine.stat().st_blocks >= 8 * MB // 512)
            calls.write_all(fd, data[8 * MB:])
            disk.take_from_under(mine)
            if not cached:
                drop_pages(mine)
        if not cached:
            for _ in range(5):
                assert fsync(m.path / "f") != 0
            return
        mounted.until(lambda: fsync(m.path / "f") == 0)
        os.unlink(disk.below / "junk")
        for f in files.iterdir():  # what is read is what the disk has
            if f.exists():  # the old one may just be on its way out
                drop_pages(f)
        m.lose_dram()
        assert calls.read(m.path / "f") == data

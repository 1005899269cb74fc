# SPDX-License-Identifier: Apache-2.0
"""An NVMe filesystem that fills up: whoever fills it, what was accepted becomes
durable, rm makes room, and nothing needs a restart. Root, for loop devices."""
import errno
import os
import shutil
import subprocess
import tempfile

import pytest

import mounted
from calls import noise, opened, read, write
from mounted import Mounted, missing, until

MB = 1 << 20
SIZE = 600

pytestmark = [pytest.mark.root, pytest.mark.limit(150)]


class Disk:
    """A small filesystem on a loop device."""

    def __init__(self, kind):
        self.base = tempfile.mkdtemp(prefix="ckptfs-test-disk-",
                                     dir=mounted.TEST_DIR)
        self.image = os.path.join(self.base, "image")
        self.path = os.path.join(self.base, "mnt")
        os.mkdir(self.path)
        self.mounted = False
        with open(self.image, "wb") as f:
            f.truncate(SIZE * MB)
        words = {"ext4": ["mkfs.ext4", "-q", "-m", "0", "-F"],
                 "xfs": ["mkfs.xfs", "-q", "-f"]}[kind]
        if not shutil.which(words[0]):
            self.close()
            missing(f"no {words[0]}")
        subprocess.run([*words, self.image], check=True)
        r = subprocess.run(["mount", "-o", "loop", self.image, self.path],
                           capture_output=True, text=True)
        if r.returncode:
            self.close()
            missing(f"no loop mounts here: {r.stderr.strip()}")
        self.mounted = True

    def fill(self, leave=0):
        """Somebody else's file takes all but `leave` MiB."""
        with opened(os.path.join(self.path, "filler"),
                    os.O_CREAT | os.O_WRONLY) as fd:
            for step in (64 * MB, 4 * MB, MB, 65536, 4096):
                while True:
                    s = os.fstatvfs(fd)
                    if s.f_bavail * s.f_frsize < leave * MB + step:
                        break
                    try:
                        os.posix_fallocate(fd, os.fstat(fd).st_size, step)
                    except OSError as e:
                        assert e.errno == errno.ENOSPC
                        break

    def empty(self):
        os.unlink(os.path.join(self.path, "filler"))

    def close(self):
        if self.mounted:
            subprocess.run(["umount", self.path], check=False)
            if os.path.ismount(self.path):  # something still holds it
                subprocess.run(["umount", "-l", self.path], check=False)
        shutil.rmtree(self.base, ignore_errors=True)


@pytest.fixture(params=["ext4", "xfs"])
def disk(request):
    one = Disk(request.param)
    yield one
    one.close()


@pytest.fixture
def m(mode, disk):
    if mode == "plain":
        pytest.skip("for the NVMe tier only")
    with Mounted(mode, nvme=os.path.join(disk.path, "ckpt"),
                 dram="128M") as one:
        yield one


def data(i, n=4):
    return noise(n * MB + i, i)


def save_until_full(m, prefix, n=400):
    """How many files of 4 MiB were saved before ENOSPC."""
    for i in range(n):
        try:
            write(m.path / f"{prefix}{i}", data(i))
        except OSError as e:
            assert e.errno == errno.ENOSPC
            if (m.path / f"{prefix}{i}").exists():
                os.unlink(m.path / f"{prefix}{i}")
            return i
    return n


def test_filled_by_others_and_emptied(m, disk):
    """In mid save: accepted files have their room already."""
    for i in range(10):
        write(m.path / f"early{i}", data(i))
    disk.fill()
    n = save_until_full(m, "late", 50)
    assert n < 50, "it is full"
    m.wait("nvme")
    for i in range(10):
        assert read(m.path / f"early{i}") == data(i)
    disk.empty()

    def works_again():
        try:
            write(m.path / "again", data(1))
            return True
        except OSError as e:
            assert e.errno == errno.ENOSPC
            return False

    until(works_again, 30)
    m.wait("nvme")
    m.lose_dram()
    for i in range(10):
        assert read(m.path / f"early{i}") == data(i)
    for i in range(n):
        assert read(m.path / f"late{i}") == data(i)
    assert read(m.path / "again") == data(1)


def test_filled_by_us_and_rm_makes_room(m):
    n = save_until_full(m, "f")
    assert 20 < n < SIZE // 4
    m.wait("nvme")
    for i in range(0, n, 5):
        assert read(m.path / f"f{i}") == data(i)
    for i in range(n // 2):
        os.unlink(m.path / f"f{i}")

    def saved():
        return save_until_full(m, "g", 10) == 10

    until(saved, 30)
    m.wait("nvme")
    m.lose_dram()
    assert len(os.listdir(m.path)) == n - n // 2 + 10
    for i in range(n // 2, n):
        assert read(m.path / f"f{i}") == data(i)
    for i in range(10):
        assert read(m.path / f"g{i}") == data(i)


def test_no_room_at_all_still_lists_and_removes(m, disk):
    (m.path / "dir").mkdir()
    for i in range(5):
        write(m.path / "dir" / f"f{i}", data(i))
    m.wait("nvme")
    disk.fill()
    save_until_full(m, "x", 50)
    assert len(os.listdir(m.path / "dir")) == 5
    for i in range(4):
        os.unlink(m.path / "dir" / f"f{i}")
    os.rename(m.path / "dir" / "f4", m.path / "kept")
    shutil.rmtree(m.path / "dir")
    m.wait("nvme")
    assert read(m.path / "kept") == data(4)
    disk.empty()
    m.remount()
    assert read(m.path / "kept") == data(4)


def test_statfs_says_that_it_is_full(m, disk):
    disk.fill()
    s = os.statvfs(m.path)
    assert s.f_bavail * s.f_frsize < 16 * MB
    disk.empty()

    def is_empty():  # XFS gives room back some time after an unlink
        s = os.statvfs(m.path)
        return s.f_bavail * s.f_frsize > 100 * MB

    until(is_empty, 20)


def test_mounting_on_a_full_disk(mode, disk):
    """One clear line, or a mount that says ENOSPC; never a half of it."""
    if mode == "plain":
        pytest.skip("for the NVMe tier only")
    disk.fill()
    one = Mounted(mode, nvme=os.path.join(disk.path, "ckpt"))
    try:
        r = one.run(one.command(foreground=False), check=False)
        assert r.returncode != 0
        assert r.stderr.count("\n") == 1 and "ckpt" in r.stderr
        assert "space" in r.stderr.lower() or "room" in r.stderr.lower() \
            or "full" in r.stderr.lower()
        assert not mounted.is_mountpoint(one.path)
    finally:
        one.close()


def test_room_is_made_after_a_close_that_failed(m):
    """The trainer's save did not fit; it removes an old one. What failed is
    accepted then, and until then holds up nobody else."""
    old, new = m.path / "old", m.path / "new"
    write(old, noise(300 * MB))
    m.wait("nvme")
    with pytest.raises(OSError) as e:
        write(new, noise(300 * MB, "new"))
    assert e.value.errno == errno.ENOSPC
    if not new.exists():
        return
    size = new.stat().st_size
    write(m.path / "another", data(1))
    until(lambda: os.getxattr(m.path / "another", "user.ckpt.state")
          == b"nvme", 30)
    with opened(m.path, os.O_RDONLY) as fd, pytest.raises(OSError) as e:
        os.fsync(fd)  # not all that was closed is there
    assert e.value.errno == errno.ENOSPC
    os.unlink(old)
    until(lambda: os.getxattr(new, "user.ckpt.state") == b"nvme", 30)
    m.lose_dram()
    assert read(new) == noise(300 * MB, "new")[:size]
    assert read(m.path / "another") == data(1)

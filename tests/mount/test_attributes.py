# SPDX-License-Identifier: Apache-2.0
"""chmod, chown, times, link counts, sizes, statfs."""
import errno
import os
import stat

import pytest

from calls import KEEP_SIZE, fails, fallocate, noise, opened, read, tick, write
from user import in_child


@pytest.mark.parametrize("bits", [0o000, 0o644, 0o755, 0o600, 0o777])
def test_chmod(d, bits):
    write(d / "f", b"")
    (d / "sub").mkdir()
    for name in ("f", "sub"):
        os.chmod(d / name, bits)
        assert stat.S_IMODE(os.stat(d / name).st_mode) == bits
    os.chmod(d / "sub", 0o755)


@pytest.mark.root
def test_special_mode_bits(d):
    write(d / "f", b"")
    os.chmod(d / "f", 0o6755)
    assert stat.S_IMODE(os.stat(d / "f").st_mode) == 0o6755
    os.chmod(d, 0o1777)
    assert stat.S_IMODE(os.stat(d).st_mode) == 0o1777


def test_fchmod_of_an_open_file(d):
    with opened(d / "f", os.O_CREAT | os.O_RDWR, 0o600) as fd:
        os.write(fd, b"x")
        os.fchmod(fd, 0o640)
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o640
        os.write(fd, b"y")
    assert stat.S_IMODE(os.stat(d / "f").st_mode) == 0o640
    assert read(d / "f") == b"xy"


@pytest.mark.root
def test_chown(d):
    write(d / "f", b"")
    os.symlink("f", d / "l")
    os.chown(d / "f", 1001, 1002)
    os.lchown(d / "l", 1003, 1004)
    assert (os.stat(d / "f").st_uid, os.stat(d / "f").st_gid) == (1001, 1002)
    assert (os.lstat(d / "l").st_uid, os.lstat(d / "l").st_gid) == (1003, 1004)
    os.chown(d / "f", -1, 7)
    assert (os.stat(d / "f").st_uid, os.stat(d / "f").st_gid) == (1001, 7)


@pytest.mark.root
@pytest.mark.parametrize("by", [0, 1001])
def test_chown_takes_setid_bits(d, by):
    write(d / "f", b"")
    os.chown(d / "f", 1001, 1002)
    os.chmod(d / "f", 0o6755)
    os.chmod(d, 0o777)
    in_child(lambda: os.chown(d / "f", 1001, 1002), by, 1002)
    assert stat.S_IMODE(os.stat(d / "f").st_mode) == 0o755


@pytest.mark.root
def test_write_by_others_takes_setid_bits(d):
    write(d / "f", b"x")
    os.chown(d / "f", 1001, 1002)
    os.chmod(d / "f", 0o6777)

    def append():
        with opened(d / "f", os.O_WRONLY | os.O_APPEND) as fd:
            os.write(fd, b"y")

    in_child(append, 1003)
    assert stat.S_IMODE(os.stat(d / "f").st_mode) == 0o777
    assert read(d / "f") == b"xy"


@pytest.mark.modes("passthrough", "served")
def test_setid_bits_stay_when_root_writes(d):
    write(d / "f", b"x")
    os.chmod(d / "f", 0o4755)
    with opened(d / "f", os.O_WRONLY) as fd:
        os.write(fd, b"y")
    assert stat.S_IMODE(os.stat(d / "f").st_mode) == 0o4755


TIMES = [(0, 0), (1, 1), (-1, -1_500_000_001), (1_600_000_000_123_456_789, 1_500_000_000_987_654_321),
         (4_102_444_800_000_000_001, 4_102_444_800_999_999_999)]


@pytest.mark.parametrize("times", TIMES)
def test_utimens_in_nanoseconds(d, times):
    write(d / "f", b"x")
    (d / "sub").mkdir()
    os.symlink("f", d / "l")
    for name in ("f", "sub", "l"):
        os.utime(d / name, ns=times, follow_symlinks=False)
        s = os.lstat(d / name)
        assert (s.st_atime_ns, s.st_mtime_ns) == times


@pytest.mark.parametrize("times", TIMES)
def test_opening_for_writing_moves_no_time(d, times):
    f = write(d / "f", b"x")
    os.utime(f, ns=times)
    with opened(f, os.O_WRONLY):
        pass
    assert os.stat(f).st_mtime_ns == times[1]


FAR = 10_413_792_000 * 10**9  # the year 2300


@pytest.mark.parametrize("sign", (1, -1))
def test_times_that_cannot_be_told(d, m, sign):
    """They become the nearest that can, not something in between."""
    for name in ("f", "open"):
        write(d / name, b"x")
    with opened(d / "open", os.O_WRONLY) as fd:
        os.write(fd, b"y")
        for name in ("f", "open"):
            os.utime(d / name, ns=(sign * FAR, sign * FAR))
    m.wait("nvme")
    for name in ("f", "open"):
        s = os.stat(d / name)
        for told in (s.st_atime_ns, s.st_mtime_ns):
            assert sign * told > FAR // 6  # ext4's bounds: 1901 to 2446


def test_utimens_by_descriptor(d):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, b"x")
        os.utime(fd, ns=TIMES[2])
        assert os.fstat(fd).st_mtime_ns == TIMES[2][1]
    assert os.stat(d / "f").st_mtime_ns == TIMES[2][1], "close keeps it"


def test_utime_now(d):
    write(d / "f", b"x")
    os.utime(d / "f", ns=(1, 1))
    with opened(d / "clock", os.O_CREAT | os.O_WRONLY):
        pass
    tick()
    os.utime(d / "f")
    assert os.stat(d / "f").st_mtime_ns > os.stat(d / "clock").st_mtime_ns


def test_times_of_a_new_file(d):
    write(d / "before", b"")
    tick()
    write(d / "f", b"x")
    tick()
    write(d / "after", b"")
    s = os.stat(d / "f")
    before, after = (os.stat(d / n).st_mtime_ns for n in ("before", "after"))
    for stamp in (s.st_mtime_ns, s.st_ctime_ns, s.st_atime_ns):
        assert before < stamp < after


def _moved(path, change):
    """Which of mtime and ctime a change moves."""
    before = os.lstat(path)
    tick()
    change()
    after = os.lstat(path)
    return (after.st_mtime_ns > before.st_mtime_ns,
            after.st_ctime_ns > before.st_ctime_ns)


def _append(path):
    with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"more")


def test_what_moves_which_time(d):
    f = write(d / "f", b"content")
    assert _moved(f, lambda: _append(f)) == (True, True)
    assert _moved(f, lambda: os.truncate(f, 3)) == (True, True)
    assert _moved(f, lambda: write(f, b"new")) == (True, True)
    assert _moved(f, lambda: write(f, b"")) == (True, True)
    assert _moved(f, lambda: os.chmod(f, 0o600)) == (False, True)
    assert _moved(f, lambda: os.link(f, d / "g")) == (False, True)
    assert _moved(f, lambda: os.unlink(d / "g")) == (False, True)
    assert _moved(f, lambda: os.rename(f, d / "h")
                  or os.rename(d / "h", f)) == (False, True)
    assert _moved(f, lambda: os.setxattr(f, "user.a", b"1")) == (False, True)
    assert _moved(f, lambda: os.removexattr(f, "user.a")) == (False, True)
    assert _moved(f, lambda: os.chown(f, os.getuid(), -1))[0] is False


def test_what_moves_no_time(d):
    f = write(d / "f", b"content")

    def look():
        read(f)
        with opened(f, os.O_RDWR) as fd:
            os.pread(fd, 5, 0)
            os.fsync(fd)
        with opened(f, os.O_RDWR | os.O_APPEND):
            pass
        os.listxattr(f)
        os.access(f, os.R_OK)

    assert _moved(f, look) == (False, False)
    assert _moved(d, lambda: os.listdir(d)) == (False, False)


def test_time_moves_while_being_written(d, m):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        last = os.fstat(fd).st_mtime_ns
        for _ in range(3):
            tick()
            os.write(fd, b"x" * 100)
            now = os.fstat(fd).st_mtime_ns
            assert now > last
            assert os.stat(d / "f").st_mtime_ns == now
            last = now


def test_mtime_is_that_of_the_last_write(d, m):
    """Neither close, flush nor eviction move it."""
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, noise(300_000))
        s = os.fstat(fd)
        tick()
    for step in (lambda: None, lambda: m.wait("nvme", d / "f"),
                 lambda: m.evict("nvme", d / "f")):
        step()
        after = os.stat(d / "f")
        assert after.st_mtime_ns == s.st_mtime_ns
        assert after.st_ctime_ns == s.st_ctime_ns
        assert after.st_ino == s.st_ino


def test_link_counts(d):
    (d / "sub").mkdir()
    assert os.stat(d / "sub").st_nlink >= 1
    write(d / "f", b"")
    assert os.stat(d / "f").st_nlink == 1
    for i in range(200):
        os.link(d / "f", d / f"l{i}")
    assert os.stat(d / "f").st_nlink == 201
    for i in range(200):
        os.unlink(d / f"l{i}")
    assert os.stat(d / "f").st_nlink == 1


def test_numbers_are_unique(d):
    for i in range(300):
        write(d / f"f{i}", b"")
    numbers = {os.stat(d / f"f{i}").st_ino for i in range(300)}
    assert len(numbers) == 300
    assert all(os.stat(d / f"f{i}").st_dev == os.stat(d).st_dev
               for i in range(300))


def test_size_and_blocks(d):
    write(d / "f", noise(1_000_000))
    s = os.stat(d / "f")
    assert s.st_size == 1_000_000
    assert 1_000_000 <= s.st_blocks * 512 <= 1_000_000 + (2 << 20)
    with opened(d / "hole", os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, 1 << 30)
    s = os.stat(d / "hole")
    assert s.st_size == 1 << 30
    assert s.st_blocks * 512 < 64 << 20, "du tells of what is there"


def test_block_size_is_large(d, mode):
    """So that cp and Python's files write 1 MiB at a time."""
    write(d / "f", b"x")
    if mode != "plain":
        assert os.stat(d / "f").st_blksize == 1 << 20


def test_preallocation_does_not_show_as_size(d):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        fallocate(fd, KEEP_SIZE, 0, 1 << 20)
        assert os.fstat(fd).st_size == 0
    assert os.stat(d / "f").st_size == 0


def test_statfs(d, m, mode):
    s = os.statvfs(d)
    assert s.f_namemax == 255
    assert 0 <= s.f_bavail <= s.f_bfree <= s.f_blocks
    assert s.f_files > 1000 and s.f_ffree > 1000
    if mode != "plain":
        under = os.statvfs(m.nvme)
        have, want = s.f_blocks * s.f_frsize, under.f_blocks * under.f_frsize
        assert abs(have - want) <= want // 50
        free = s.f_bavail * s.f_frsize
        assert free <= under.f_bavail * under.f_frsize + (1 << 30)


def test_errors(d):
    for call in (lambda: os.chmod(d / "no", 0o600),
                 lambda: os.chown(d / "no", -1, -1),
                 lambda: os.utime(d / "no"),
                 lambda: os.truncate(d / "no", 0)):
        with fails(errno.ENOENT):
            call()

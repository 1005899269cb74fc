# SPDX-License-Identifier: Apache-2.0
"""fallocate in every form, holes, and copies within the kernel."""
import contextlib
import errno
import fcntl
import os
import threading
import time

import pytest

from calls import (COLLAPSE_RANGE, KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, blocks,
                   errno_of, fails, fallocate, noise, opened, read, tick,
                   write)

MB = 1 << 20
DATA = noise(4 * MB)


def test_plain_grows_the_file(d):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        fallocate(fd, 0, 0, 2 * MB)
        assert os.fstat(fd).st_size == 2 * MB
        assert os.pread(fd, 2 * MB, 0) == bytes(2 * MB)
        fallocate(fd, 0, 0, MB)
        assert os.fstat(fd).st_size == 2 * MB
        os.pwrite(fd, b"x", 2 * MB - 1)
        fallocate(fd, 0, 3 * MB, MB)
        assert os.fstat(fd).st_size == 4 * MB
    assert read(d / "f") == bytes(2 * MB - 1) + b"x" + bytes(2 * MB)


def test_posix_fallocate(d):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.posix_fallocate(fd, 100, 1000)
        assert os.fstat(fd).st_size == 1100


def test_keep_size(d):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, b"abc")
        fallocate(fd, KEEP_SIZE, 0, 8 * MB)
        assert os.fstat(fd).st_size == 3
        assert os.pread(fd, 100, 0) == b"abc"
        os.pwrite(fd, b"z", 4 * MB)
        assert os.fstat(fd).st_size == 4 * MB + 1
    assert read(d / "f") == b"abc" + bytes(4 * MB - 3) + b"z"


def test_punch_hole(d, m):
    f = write(d / "f", DATA)
    want = bytearray(DATA)
    with opened(f) as fd:
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, MB, MB)
        want[MB:2 * MB] = bytes(MB)
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 3 * MB + 7, 1000)
        want[3 * MB + 7:3 * MB + 1007] = bytes(1000)
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 10 * MB, MB)
        assert os.fstat(fd).st_size == 4 * MB
        assert os.pread(fd, 5 * MB, 0) == want
    m.evict("nvme", f)
    assert read(f) == want


def test_zero_range(d, m):
    f = write(d / "f", DATA)
    want = bytearray(DATA)
    with opened(f) as fd:
        if errno_of(fallocate, fd, ZERO_RANGE, 100, 5000) == errno.EOPNOTSUPP:
            pytest.skip("this filesystem cannot zero ranges")
        want[100:5100] = bytes(5000)
        fallocate(fd, ZERO_RANGE, 4 * MB - 10, 20)
        want[4 * MB - 10:] = bytes(20)
        fallocate(fd, ZERO_RANGE | KEEP_SIZE, 4 * MB, 4 * MB)
        assert os.fstat(fd).st_size == 4 * MB + 10
    assert read(f) == want
    m.evict("nvme", f)
    assert read(f) == want


def test_errors(d):
    f = write(d / "f", DATA)
    with opened(f) as fd:
        with fails(errno.EOPNOTSUPP, errno.EINVAL):
            fallocate(fd, PUNCH_HOLE, 0, MB)  # KEEP_SIZE must go with it
        with fails(errno.EINVAL):
            fallocate(fd, 0, 0, 0)
        with fails(errno.EINVAL):
            fallocate(fd, 0, -1, 10)
    with opened(f, os.O_RDONLY) as fd:
        with fails(errno.EBADF):
            fallocate(fd, 0, 0, 5 * MB)
    assert read(f) == DATA


def test_collapse_is_refused_or_right(d):
    f = write(d / "f", DATA)
    with opened(f) as fd:
        number = errno_of(fallocate, fd, COLLAPSE_RANGE, MB, MB)
    if number == 0:
        assert read(f) == DATA[:MB] + DATA[2 * MB:]
    else:
        assert number in (errno.EOPNOTSUPP, errno.EINVAL)
        assert read(f) == DATA


def test_times_move(d):
    f = write(d / "f", DATA)
    for mode in (0, PUNCH_HOLE | KEEP_SIZE):
        before = os.stat(f)
        tick()
        with opened(f) as fd:
            fallocate(fd, mode, 0, 5 * MB)
        after = os.stat(f)
        assert after.st_mtime_ns > before.st_mtime_ns
        assert after.st_ctime_ns > before.st_ctime_ns


def test_of_an_evicted_file(d, m):
    f = write(d / "f", DATA)
    m.evict("nvme", f)
    with opened(f) as fd:
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, MB)
        assert os.pread(fd, 5 * MB, 0) == bytes(MB) + DATA[MB:]
    m.evict("nvme", f)
    assert read(f) == bytes(MB) + DATA[MB:]


# ---- holes ----


def _covers(ranges, start, end):
    return any(a <= start and end <= b for a, b in ranges)


@pytest.mark.parametrize("where", ["dram", "nvme"])
def test_seek_hole_and_data(d, m, where):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.pwrite(fd, noise(MB), 8 * MB)
        os.pwrite(fd, noise(MB), 24 * MB)
        os.ftruncate(fd, 40 * MB)
    if where == "nvme":
        m.evict("nvme", d / "f")
    with opened(d / "f", os.O_RDONLY) as fd:
        ranges = blocks(fd)
        assert _covers(ranges, 8 * MB, 9 * MB)
        assert _covers(ranges, 24 * MB, 25 * MB)
        assert sum(b - a for a, b in ranges) <= 8 * MB
        assert os.lseek(fd, 39 * MB, os.SEEK_HOLE) <= 40 * MB
        with fails(errno.ENXIO):
            os.lseek(fd, 36 * MB, os.SEEK_DATA)
        with fails(errno.ENXIO):
            os.lseek(fd, 40 * MB, os.SEEK_HOLE)
        assert os.lseek(fd, 0, os.SEEK_END) == 40 * MB


def test_seek_in_a_full_file(d):
    f = write(d / "f", DATA)
    with opened(f, os.O_RDONLY) as fd:
        assert os.lseek(fd, 100, os.SEEK_DATA) == 100
        assert os.lseek(fd, 0, os.SEEK_HOLE) == 4 * MB
        assert os.lseek(fd, 10, os.SEEK_SET) == 10
        assert os.lseek(fd, -10, os.SEEK_END) == 4 * MB - 10
        assert os.lseek(fd, 5, os.SEEK_CUR) == 4 * MB - 5


def test_holes_while_writing(d):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, 64 * MB)
        os.pwrite(fd, noise(MB), 32 * MB)
        ranges = blocks(fd)
        assert _covers(ranges, 32 * MB, 33 * MB)
        assert sum(b - a for a, b in ranges) <= 8 * MB


# ---- copy_file_range, reflinks ----


def _copy_range(source, target, length, at=0, to=0):
    done = 0
    while done < length:
        n = os.copy_file_range(source, target, length - done, at + done,
                               to + done)
        if n == 0:
            break
        done += n
    return done


def test_copy_file_range(d, m):
    f = write(d / "f", DATA)
    with opened(f, os.O_RDONLY) as s, \
            opened(d / "g", os.O_CREAT | os.O_RDWR) as t:
        assert _copy_range(s, t, 10 * MB) == 4 * MB
        assert _copy_range(s, t, 1000, 17, 5 * MB + 3) == 1000
        assert os.fstat(t).st_size == 5 * MB + 1003
    want = DATA + bytes(MB + 3) + DATA[17:1017]
    assert read(d / "g") == want
    m.evict("nvme", d)
    assert read(d / "g") == want
    with opened(f, os.O_RDONLY) as s, opened(d / "g") as t:
        assert _copy_range(s, t, MB, 2 * MB, 0) == MB
    assert read(d / "g")[:2 * MB] == DATA[2 * MB:3 * MB] + DATA[MB:2 * MB]


def test_copy_file_range_within_one_file(d):
    f = write(d / "f", DATA)
    with opened(f) as fd:
        assert _copy_range(fd, fd, MB, 0, 3 * MB) == MB
        with fails(errno.EINVAL):
            os.copy_file_range(fd, fd, MB, 0, 100)
    assert read(f) == DATA[:3 * MB] + DATA[:MB]


def test_copy_is_a_copy(d):
    """What is written to one later does not show in the other, nor NULs to
    whoever reads the target meanwhile."""
    f = write(d / "f", DATA)
    with opened(f) as s, opened(d / "g", os.O_CREAT | os.O_RDWR) as t, \
            opened(d / "g", os.O_RDONLY) as reader:
        _copy_range(s, t, 4 * MB)
        assert os.pread(reader, 5 * MB, 0) == DATA
        os.pwrite(s, b"changed", 0)
        assert os.pread(reader, 7, 0) == DATA[:7]
        os.pwrite(t, b"TARGET", 10)
        assert os.pread(s, 6, 10) == DATA[10:16]


def test_copy_file_range_across_filesystems(d, plain):
    f = write(d / "f", DATA)
    with opened(f, os.O_RDONLY) as s, \
            opened(plain / "g", os.O_CREAT | os.O_RDWR) as t:
        try:
            assert _copy_range(s, t, 4 * MB) == 4 * MB
        except OSError as e:
            assert e.errno == errno.EXDEV
            return
    assert read(plain / "g") == DATA


def test_sendfile(d):
    f = write(d / "f", DATA)
    with opened(f, os.O_RDONLY) as s, \
            opened(d / "g", os.O_CREAT | os.O_RDWR) as t:
        done = 0
        while done < 4 * MB:
            done += os.sendfile(t, s, done, 4 * MB - done)
    assert read(d / "g") == DATA


def test_reflink_is_refused_in_words_that_cp_knows(d, mode):
    f = write(d / "f", DATA)
    with opened(f) as s, opened(d / "g", os.O_CREAT | os.O_RDWR) as t:
        ficlone = 0x40049409
        try:
            fcntl.ioctl(t, ficlone, s)
        except OSError as e:
            assert e.errno in (errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY,
                               errno.EINVAL)
            return
    assert read(d / "g") == DATA


def test_waits_for_room(fresh):
    """DRAM full of what is on its way to NVMe: fallocate slows down, and does
    not fail."""
    m = fresh(dram="64M", flush_rate="60M")
    with opened(m.path / "f", os.O_RDWR | os.O_CREAT) as fd:
        os.write(fd, b"begun")
        for i in range(3):
            write(m.path / f"other{i}", noise(18 * MB))
        fallocate(fd, 0, 0, 40 * MB)
        assert os.fstat(fd).st_size == 40 * MB


def test_takes_back_what_idle_files_hold_ahead(fresh):
    """Open files that do not grow hold leases: all of DRAM, nearly nothing of
    it written."""
    m = fresh(dram="64M")
    with contextlib.ExitStack() as stack:
        fd = stack.enter_context(opened(m.path / "f", os.O_RDWR | os.O_CREAT))
        os.write(fd, b"begun")
        for i in range(7):
            one = stack.enter_context(
                opened(m.path / f"idle{i}", os.O_WRONLY | os.O_CREAT))
            os.write(one, noise(MB))
            tick()
        fallocate(fd, 0, 0, 24 * MB)


@contextlib.contextmanager
def fallocates_in_vain(m):
    """A neighbour that asks for more than DRAM has, again and again."""
    stop = threading.Event()
    failed = []

    def ask():
        with opened(m.path / "greedy", os.O_RDWR | os.O_CREAT) as fd:
            while not stop.is_set():
                failed.append(errno_of(fallocate, fd, KEEP_SIZE, 0, 400 * MB))

    neighbour = threading.Thread(target=ask)
    neighbour.start()
    try:
        yield
    finally:
        stop.set()
        neighbour.join()
    assert m.plain or errno.ENOSPC in failed


@pytest.mark.modes("passthrough", "served")
def test_room_is_never_taken_from_under_a_writer(fresh):
    """What is behind the end of a file is not idle room while somebody may
    write there."""
    m = fresh(dram="256M")
    piece = noise(2 * MB)
    with fallocates_in_vain(m):
        for i in range(8):
            with opened(m.path / "f", os.O_WRONLY | os.O_CREAT) as fd:
                for _ in range(16):
                    os.write(fd, piece)
                    time.sleep(0.0013)  # it looks idle to the leaser
            assert read(m.path / "f") == piece * 16, i
            os.unlink(m.path / "f")


@pytest.mark.modes("passthrough", "served")
def test_room_is_never_taken_from_within_a_file(fresh):
    """Sized by its last byte, as np.memmap and HDF5 do, then filled."""
    m = fresh(dram="256M")
    piece = noise(MB)
    with fallocates_in_vain(m):
        for i in range(8):
            with opened(m.path / "f", os.O_WRONLY | os.O_CREAT) as fd:
                os.pwrite(fd, piece[-1:], 64 * MB - 1)
                time.sleep(0.005)  # it is leased, and looks idle then
                for at in range(0, 64 * MB, MB):
                    os.pwrite(fd, piece, at)
            assert read(m.path / "f") == piece * 64, i
            os.unlink(m.path / "f")

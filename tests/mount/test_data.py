# SPDX-License-Identifier: Apache-2.0
"""Contents: reading and writing in every way."""
import errno
import mmap
import os
import random
import threading

import pytest

from calls import fails, noise, opened, read, tick, write, write_all
from user import in_child

MB = 1 << 20


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 65536, 65537, MB + 1,
                                  4 * MB, 9 * MB + 123])
def test_what_is_written_is_read(d, m, size):
    data = noise(size, "w")
    write(d / "f", data)
    assert os.stat(d / "f").st_size == size
    assert read(d / "f") == data
    m.evict("nvme", d / "f")
    assert read(d / "f") == data


def test_random_places(d, m):
    """pwrite and pread here and there, against a bytearray."""
    rnd = random.Random(7)
    want = bytearray()
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        for i in range(200):
            at, n = rnd.randrange(3 * MB), rnd.randrange(1, 100_000)
            data = noise(n, i)
            if at > len(want):
                want.extend(bytes(at - len(want)))
            want[at:at + n] = data
            assert os.pwrite(fd, data, at) == n
            at, n = rnd.randrange(3 * MB), rnd.randrange(1, 100_000)
            assert os.pread(fd, n, at) == want[at:at + n]
    assert read(d / "f") == want
    m.evict("nvme", d / "f")
    assert read(d / "f") == want


def test_sparse(d, m):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.pwrite(fd, b"end", 40 * MB)
        os.pwrite(fd, b"mid", 20 * MB)
        assert os.pread(fd, 10, 30 * MB) == bytes(10)
    m.evict("nvme", d / "f")
    with opened(d / "f", os.O_RDONLY) as fd:
        assert os.fstat(fd).st_size == 40 * MB + 3
        assert os.pread(fd, 3, 20 * MB) == b"mid"
        assert os.pread(fd, 6, 40 * MB - 3) == b"\0\0\0end"
        assert os.pread(fd, MB, 0) == bytes(MB)
        assert os.fstat(fd).st_blocks * 512 < 20 * MB, "holes stay holes"


def test_one_large_writev(d):
    """As torch.save: one writev for a tensor."""
    parts = [noise(7 * MB + i, i) for i in range(6)]
    with opened(d / "f", os.O_CREAT | os.O_WRONLY) as fd:
        assert os.writev(fd, parts) == sum(map(len, parts))
    assert read(d / "f") == b"".join(parts)


def test_many_small_vectors(d):
    parts = [noise(i % 50 + 1, i) for i in range(1000)]
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        assert os.writev(fd, parts) == sum(map(len, parts))
        buffers = [bytearray(len(p)) for p in parts]
        assert os.preadv(fd, buffers, 0) == sum(map(len, parts))
    assert [bytes(b) for b in buffers] == parts


def test_unaligned_large_buffer(d):
    """Python's and torch's buffers start anywhere."""
    data = bytearray(noise(3 * MB + 17))
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        assert os.write(fd, memoryview(data)[13:]) == len(data) - 13
        back = bytearray(len(data))
        assert os.preadv(fd, [memoryview(back)[13:]], 0) == len(data) - 13
    assert back[13:] == data[13:]


def test_append(d):
    f = write(d / "f", b"start.")
    with opened(f, os.O_WRONLY | os.O_APPEND) as one:
        with opened(f, os.O_WRONLY | os.O_APPEND) as two:
            for i in range(50):
                os.write(one, b"1")
                os.write(two, b"2")
                os.lseek(one, 0, os.SEEK_SET)
    assert read(f) == b"start." + b"12" * 50


@pytest.mark.parametrize("io", ["processes", "threads"])
def test_append_by_many(d, io):
    """Whole records, none lost."""
    f = write(d / "log", b"")

    def worker(n):
        with opened(f, os.O_WRONLY | os.O_APPEND) as fd:
            for _ in range(100):
                os.write(fd, bytes([n]) * 100)

    if io == "threads":
        workers = [threading.Thread(target=worker, args=(n,))
                   for n in range(4)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    else:
        pids = []
        for n in range(4):
            pid = os.fork()
            if pid == 0:
                try:
                    worker(n)
                finally:
                    os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
    data = read(f)
    assert len(data) == 4 * 100 * 100
    records = [data[i:i + 100] for i in range(0, len(data), 100)]
    assert all(r == r[:1] * 100 for r in records)
    assert sorted(r[0] for r in records) == sorted(list(range(4)) * 100)


def test_truncate_on_open(d):
    f = write(d / "f", noise(100_000))
    with opened(f, os.O_WRONLY | os.O_TRUNC) as fd:
        assert os.fstat(fd).st_size == 0
        os.write(fd, b"short")
    assert read(f) == b"short"
    with opened(f, os.O_RDONLY) as reader:
        with opened(f, os.O_RDWR | os.O_TRUNC):
            assert os.pread(reader, 10, 0) == b""
    assert read(f) == b""


def test_truncate_forms(d, m):
    f = write(d / "f", noise(3 * MB))
    os.truncate(f, 2 * MB + 1)
    assert read(f) == noise(3 * MB)[:2 * MB + 1]
    os.truncate(f, 4 * MB)
    assert read(f) == noise(3 * MB)[:2 * MB + 1] + bytes(2 * MB - 1)
    m.evict("nvme", f)
    os.truncate(f, MB)
    assert read(f) == noise(3 * MB)[:MB]
    with opened(f, os.O_RDWR) as fd:
        os.ftruncate(fd, 5)
        assert os.pread(fd, 100, 0) == noise(3 * MB)[:5]
        os.ftruncate(fd, 10)
        assert os.pread(fd, 100, 0) == noise(3 * MB)[:5] + bytes(5)
    os.truncate(f, 0)
    assert os.stat(f).st_size == 0
    m.evict("nvme", f)
    assert read(f) == b""


def test_truncate_errors(d):
    f = write(d / "f", b"x")
    with opened(f, os.O_RDONLY) as fd:
        with fails(errno.EINVAL, errno.EBADF):
            os.ftruncate(fd, 0)
    with fails(errno.EINVAL):
        os.truncate(f, -1)
    with fails(errno.EFBIG, errno.EINVAL):
        os.truncate(f, (1 << 63) - 1)
    assert read(f) == b"x"


def test_what_truncate_cut_off_stays_away(d):
    f = write(d / "f", b"secret" * 1000)
    os.truncate(f, 10)
    os.truncate(f, 6000)
    assert read(f) == (b"secret" * 2)[:10] + bytes(5990)


def test_handles_without_the_right(d):
    f = write(d / "f", b"x")
    with opened(f, os.O_WRONLY) as fd:
        with fails(errno.EBADF):
            os.read(fd, 1)
    with opened(f, os.O_RDONLY) as fd:
        with fails(errno.EBADF):
            os.write(fd, b"y")


def test_read_past_the_end(d):
    f = write(d / "f", b"abc")
    with opened(f, os.O_RDONLY) as fd:
        assert os.pread(fd, 100, 3) == b""
        assert os.pread(fd, 100, 1 << 40) == b""
        assert os.pread(fd, 100, 2) == b"c"


def test_unlinked_while_open(d, m):
    """Usable to the end, of either version."""
    f = write(d / "f", noise(2 * MB))
    m.wait("nvme", f)
    with opened(f) as fd:
        os.unlink(f)
        assert os.fstat(fd).st_nlink == 0
        assert os.pread(fd, 3 * MB, 0) == noise(2 * MB)
        os.pwrite(fd, b"more", 2 * MB)
        os.ftruncate(fd, 5 * MB)
        os.fsync(fd)
        os.fchmod(fd, 0o600)
        assert os.pread(fd, 4, 2 * MB) == b"more"
        assert os.fstat(fd).st_size == 5 * MB
        write(f, b"another one")
        assert os.pread(fd, 10, 0) == noise(2 * MB)[:10]
    assert read(f) == b"another one"


def test_opened_unlinked_and_inherited(d):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.unlink(d / "f")
        os.write(fd, b"from the parent")
        assert in_child(lambda: os.pread(fd, 100, 0)) == b"from the parent"
        in_child(lambda: os.pwrite(fd, b"by the child", 0))
        assert os.pread(fd, 100, 0) == b"by the childent"


def test_two_writers_and_a_reader(d):
    f = write(d / "f", bytes(2 * MB))
    with opened(f, os.O_WRONLY) as one, opened(f) as two, \
            opened(f, os.O_RDONLY) as three:
        os.pwrite(one, b"a" * MB, 0)
        os.pwrite(two, b"b" * MB, MB)
        assert os.pread(three, 3 * MB, 0) == b"a" * MB + b"b" * MB
        assert os.fstat(three).st_size == 2 * MB
        os.pwrite(two, b"tail", 2 * MB)
        assert os.pread(three, 10, 2 * MB) == b"tail"


def _aligned(n):
    return mmap.mmap(-1, n)


def test_o_direct(d, m):
    """dd oflag=direct, and DeepSpeed's writer with its buffered tail."""
    f = d / "f"
    buffer = _aligned(MB)
    buffer[:] = noise(MB)
    with opened(f, os.O_CREAT | os.O_WRONLY | os.O_DIRECT) as fd:
        for i in range(4):
            assert os.pwrite(fd, buffer, i * MB) == MB
        with opened(f, os.O_WRONLY) as tail:
            os.pwrite(tail, b"tail", 4 * MB)
    assert read(f) == noise(MB) * 4 + b"tail"
    m.evict("nvme", f)
    with opened(f, os.O_RDONLY | os.O_DIRECT) as fd:
        back = _aligned(MB)
        for i in range(4):
            assert os.preadv(fd, [back], i * MB) == MB
            assert back[:] == noise(MB)
        assert os.preadv(fd, [back], 4 * MB) == 4


def test_o_direct_by_fcntl(d):
    """Set on an open descriptor."""
    import fcntl
    buffer = _aligned(8192)
    buffer[:] = noise(8192)
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        except OSError as e:
            assert e.errno == errno.EINVAL
        assert os.write(fd, buffer) == 8192
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        os.write(fd, b"odd")
    assert read(d / "f") == noise(8192) + b"odd"


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
def test_sync_handles(d, flag):
    f = d / "f"
    with opened(f, os.O_CREAT | os.O_RDWR | flag) as fd:
        for i in range(5):
            assert os.write(fd, noise(50_000, i)) == 50_000
        assert os.pread(fd, 50_000, 50_000) == noise(50_000, 1)
        os.pwrite(fd, b"x", 0)
    assert read(f)[1:] == b"".join(noise(50_000, i) for i in range(5))[1:]


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
def test_sync_and_ordinary_handles_together(d, flag):
    f = write(d / "f", bytes(100_000))
    with opened(f) as plain, opened(f, os.O_RDWR | flag) as sync:
        os.pwrite(plain, b"plain", 0)
        os.pwrite(sync, b"sync", 50_000)
        assert os.pread(plain, 4, 50_000) == b"sync"
        assert os.pread(sync, 5, 0) == b"plain"
        view = mmap.mmap(plain, 100_000)
        view[10:16] = b"mapped"
        assert os.pread(sync, 6, 10) == b"mapped"
        view.close()
    assert read(f)[:16] == b"plain\0\0\0\0\0mapped"


def test_fsync_and_fdatasync(d):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        for i in range(10):
            os.write(fd, noise(10_000, i))
            os.fsync(fd)
            os.write(fd, b"x")
            os.fdatasync(fd)
    with opened(d, os.O_RDONLY) as fd:
        os.fsync(fd)
    with opened(d / "f", os.O_RDONLY) as fd:
        os.fsync(fd)
    assert os.stat(d / "f").st_size == 100_010


def test_readers_see_each_write(d):
    """A tail -f in another process: sizes and bytes are never stale."""
    f = write(d / "f", b"")
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with opened(f, os.O_RDONLY) as fd:
                while byte := os.read(asked, 1):
                    n = byte[0]
                    good = (os.fstat(fd).st_size == os.stat(f).st_size == n
                            and os.pread(fd, 100, n - 1) == byte)
                    os.write(answer, b"y" if good else b"n")
        finally:
            os._exit(0)
    with opened(f, os.O_WRONLY | os.O_APPEND) as fd:
        for n in range(1, 200):
            os.write(fd, bytes([n]))
            os.write(ask, bytes([n]))
            assert os.read(answered, 1) == b"y", f"at {n}"
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    for fd in (asked, ask, answered, answer):
        os.close(fd)


def test_reading_beside_many_writers(d):
    """Threads write their parts of one file at once, as DCP's do."""
    f = d / "f"
    parts = [noise(MB, i) for i in range(16)]
    with opened(f, os.O_CREAT | os.O_RDWR) as fd:
        threads = [threading.Thread(target=os.pwrite,
                                    args=(fd, p, i * MB))
                   for i, p in enumerate(parts)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert read(f) == b"".join(parts)


def test_overwrite_in_place_of_a_flushed_file(d, m):
    """A header rewritten: the rest stays, on every tier."""
    f = write(d / "f", noise(6 * MB))
    m.evict("nvme", f)
    tick()
    with opened(f) as fd:
        os.pwrite(fd, b"header", 0)
        assert os.pread(fd, 100, 6) == noise(6 * MB)[6:106]
    want = b"header" + noise(6 * MB)[6:]
    assert read(f) == want
    m.evict("nvme", f)
    assert read(f) == want


def test_one_byte_at_a_time(d):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        for b in noise(2000):
            os.write(fd, bytes([b]))
    assert read(d / "f") == noise(2000)


def test_write_nothing(d):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        assert os.write(fd, b"") == 0
        write_all(fd, b"")
    assert os.stat(d / "f").st_size == 0

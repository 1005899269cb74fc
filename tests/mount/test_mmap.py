# SPDX-License-Identifier: Apache-2.0
"""Mappings: shared, private, and those that outlive their descriptor."""
import mmap
import os
import time

import pytest

from calls import Mapping, noise, opened, read, write
from mounted import until
from user import in_child

MB = 1 << 20
DATA = noise(3 * MB)


def mapped(path, size=0, **how):
    with opened(path, os.O_RDWR) as fd:
        return mmap.mmap(fd, size, **how)


def test_shared_stores_are_seen(d, m):
    f = write(d / "f", DATA)
    with opened(f) as fd, mmap.mmap(fd, 0) as view:
        assert view[:] == DATA
        view[0:5] = b"store"
        view[2 * MB:2 * MB + 5] = b"store"
        assert os.pread(fd, 5, 0) == b"store"
        os.pwrite(fd, b"write", 100)
        assert view[100:105] == b"write"
        view.flush()
    want = bytearray(DATA)
    want[0:5] = want[2 * MB:2 * MB + 5] = b"store"
    want[100:105] = b"write"
    assert read(f) == want
    m.evict("nvme", f)
    assert read(f) == want


def stamped_long_ago(path):
    """The kernel has seen it, and may keep what it saw."""
    os.utime(path, ns=(10**18, 10**18))
    assert os.stat(path).st_mtime_ns == 10**18
    return path


def test_a_store_moves_mtime(d, m):
    """No later than at msync, and for good."""
    f = stamped_long_ago(write(d / "f", DATA))
    start = time.time_ns() - 10**8  # the clock that files are stamped with
    with mapped(f) as view:
        os.stat(f)
        view[0:5] = b"store"
        view.flush()
        moved = os.stat(f).st_mtime_ns
        assert moved > start
    unwritten(m, f)
    assert os.stat(f).st_mtime_ns == moved


def test_a_store_after_close_moves_mtime(d, m):
    f = stamped_long_ago(write(d / "f", DATA))
    start = time.time_ns() - 10**8
    with opened(f, os.O_RDWR) as fd:
        view = Mapping(fd, MB)
    os.stat(f)
    view[0:5] = b"store"
    view.flush()
    moved = os.stat(f).st_mtime_ns
    assert moved > start
    view.close()
    unwritten(m, f)
    assert os.stat(f).st_mtime_ns == moved


def test_between_processes(d):
    f = write(d / "f", bytes(MB))
    view = mapped(f)

    def child():
        with mapped(f) as other:
            other[10:15] = b"child"
        view[20:29] = b"inherited"

    in_child(child)
    assert view[10:15] == b"child" and view[20:29] == b"inherited"
    view.close()
    assert read(f)[10:29] == b"child" + bytes(5) + b"inherited"


def test_private_stores_are_not(d):
    f = write(d / "f", DATA)
    with opened(f, os.O_RDONLY) as fd:
        with mmap.mmap(fd, 0, access=mmap.ACCESS_COPY) as view:
            view[0:5] = b"store"
            assert view[0:5] == b"store"
            assert os.pread(fd, 5, 0) == DATA[:5]
    assert read(f) == DATA


def test_read_only(d, m):
    f = write(d / "f", DATA)
    for _ in range(2):
        with opened(f, os.O_RDONLY) as fd:
            view = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        assert view[:] == DATA, "after the descriptor is closed"
        view.close()
        m.evict("nvme", f)


def test_populate(d):
    """MAP_SHARED|MAP_POPULATE, as llama.cpp does."""
    f = write(d / "f", DATA)
    populate = getattr(mmap, "MAP_POPULATE", 0x8000)
    with opened(f, os.O_RDONLY) as fd:
        with mmap.mmap(fd, 0, flags=mmap.MAP_SHARED | populate,
                       prot=mmap.PROT_READ) as view:
            assert view[:] == DATA


def test_grown_by_truncate_then_stored(d, m):
    """numpy.memmap(mode="w+"): ftruncate, map, store, close."""
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, 8 * MB)
        with mmap.mmap(fd, 8 * MB) as view:
            view[:3 * MB] = DATA
            view[5 * MB:8 * MB] = DATA
    want = DATA + bytes(2 * MB) + DATA
    assert read(d / "f") == want
    m.evict("nvme", d / "f")
    assert read(d / "f") == want


def test_of_a_file_that_is_replaced(d, m):
    """safetensors: others have the old one mapped while it is renamed over."""
    f = write(d / "f", DATA)
    with opened(f, os.O_RDONLY) as fd:
        view = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    write(d / "tmp", noise(MB, "new"))
    os.rename(d / "tmp", f)
    m.evict("nvme", f)
    assert view[:] == DATA
    assert read(f) == noise(MB, "new")
    view.close()


def test_of_an_unlinked_file(d):
    f = write(d / "f", DATA)
    view = mapped(f)
    os.unlink(f)
    view[0:4] = b"mine"
    assert view[:8] == b"mine" + DATA[4:8]
    view.close()


def test_evicted_under_a_mapping(d, m):
    f = write(d / "f", DATA)
    with opened(f, os.O_RDONLY) as fd:
        view = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    m.evict("nvme", f)
    assert view[:] == DATA
    assert read(f) == DATA
    view.close()


def test_mapping_and_direct_reads(d):
    f = write(d / "f", DATA)
    with opened(f) as fd, mmap.mmap(fd, 0) as view:
        view[4096:4100] = b"page"
        with opened(f, os.O_RDONLY | os.O_DIRECT) as direct:
            back = mmap.mmap(-1, 4096)
            assert os.preadv(direct, [back], 4096) == 4096
            assert back[:4] == b"page"


# ---- the descriptor is gone, the mapping stores on ----


def outlived(path, size=4 * MB):
    """A writable mapping of a new file, whose descriptor is closed."""
    with opened(path, os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, size)
        return Mapping(fd, size)


def unwritten(m, path):
    """The mount has noticed that nobody writes any more."""
    if not m.plain:
        until(lambda: os.getxattr(path, "user.ckpt.state") != b"writing", 40)


def test_stores_after_close_reach_nvme(fresh):
    m = fresh()
    view = outlived(m.path / "f")
    view[0:MB] = DATA[:MB]
    m.wait("nvme")
    view[2 * MB:3 * MB] = DATA[2 * MB:]
    view.close()
    unwritten(m, m.path / "f")
    m.wait("nvme")
    want = DATA[:MB] + bytes(MB) + DATA[2 * MB:] + bytes(MB)
    assert read(m.path / "f") == want
    m.lose_dram()
    assert read(m.path / "f") == want


def test_pythons_mapping_keeps_a_descriptor(fresh):
    """As numpy.memmap does: its mmap duplicates what it is given."""
    m = fresh()
    with opened(m.path / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, 4 * MB)
        view = mmap.mmap(fd, 4 * MB)
    view[:MB] = DATA[:MB]
    m.wait("nvme")
    view[MB:2 * MB] = DATA[MB:2 * MB]
    view.close()
    m.wait("nvme")
    m.lose_dram()
    assert read(m.path / "f") == DATA[:2 * MB] + bytes(2 * MB)


def test_stores_after_close_survive_a_remount(fresh):
    m = fresh()
    view = outlived(m.path / "f")
    view[0:MB] = DATA[:MB]
    view[3 * MB:] = DATA[MB:2 * MB]
    view.close()
    m.remount()
    assert read(m.path / "f") == DATA[:MB] + bytes(2 * MB) + DATA[MB:2 * MB]


def test_fsync_takes_what_was_stored(fresh):
    """fsync through another descriptor, the mapping still there."""
    m = fresh()
    f = m.path / "f"
    view = outlived(f)
    for i in range(4):
        view[i * MB:i * MB + 1000] = noise(1000, i)
        with opened(f, os.O_RDONLY) as fd:
            os.fsync(fd)
    want = view[:]
    if m.mode == "passthrough":  # the mapping is of the backing file itself
        m.lose_dram()
        assert read(f) == want
        view.close()
    else:
        view.close()
        m.lose_dram()
        assert read(f) == want


def test_idle_mapping_is_sealed_now_and_then(fresh, mode):
    """Nobody closes, syncs or unmaps: NVMe gets it all the same."""
    if mode != "passthrough":
        pytest.skip("elsewhere the mapping holds the file open")
    m = fresh()
    f = m.path / "f"
    view = outlived(f)
    view[:1000] = bytes(1000)
    m.wait("nvme")  # what was sealed at the close has been copied
    seq = int(os.getxattr(f, "user.ckpt.seq"))
    view[:1000] = noise(1000)
    until(lambda: int(os.getxattr(f, "user.ckpt.seq")) > seq, 40)
    m.wait("nvme")
    m.lose_dram()
    assert read(f)[:1000] == noise(1000)
    view.close()


def test_mapping_kept_by_a_child(fresh):
    """The parent is done with the file; the child's mapping is not."""
    m = fresh()
    f = m.path / "f"
    view = outlived(f)
    go, told = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(go[0], 1)
            view[MB:MB + 5] = b"child"
            view.flush()
            os.write(told[1], b"k")
            os.read(go[0], 1)
        finally:
            os._exit(0)
    view[0:6] = b"parent"
    view.close()
    m.wait("nvme")
    os.write(go[1], b"x")
    assert os.read(told[0], 1) == b"k"
    assert read(f)[MB:MB + 5] == b"child"
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    unwritten(m, f)
    m.remount()
    data = read(f)
    assert data[:6] == b"parent" and data[MB:MB + 5] == b"child"

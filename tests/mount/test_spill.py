# SPDX-License-Identifier: Apache-2.0
"""A DRAM tier that is too small: saves slow down, none fails (promise 6)."""
import mmap
import os
import threading
import time

import pytest

from calls import fallocate, noise, opened, read, write, write_all
from mounted import until
from user import in_child

MB = 1 << 20


def big(n, seed):
    """n MiB; cheap to make, no two MiB alike."""
    block = noise(MB, seed)
    return b"".join(i.to_bytes(8, "little") + block[8:] for i in range(n))


def test_more_files_than_dram(fresh):
    m = fresh(dram="64M")
    for i in range(12):
        write(m.path / f"f{i}", big(16, i))
    for i in range(12):
        assert read(m.path / f"f{i}") == big(16, i), i
    m.wait("nvme")
    if not m.plain:
        assert m.status()["tiers"][0]["used"] <= 64 * MB
        s = m.status()["counts"]
        assert s["spilled"] + s["evicted"] > 0
    m.lose_dram()
    for i in range(12):
        assert read(m.path / f"f{i}") == big(16, i), i


def test_slow_nvme_slows_writers_down_only(fresh):
    m = fresh(dram="32M", flush_rate="32M")
    for i in range(8):
        write(m.path / f"f{i}", big(12, i))
    m.wait("nvme", timeout=90)
    for i in range(8):
        assert read(m.path / f"f{i}") == big(12, i), i


def test_size_known_by_truncate(fresh):
    """A file that is said to be larger than the tier goes to NVMe."""
    m = fresh(dram="32M")
    os.mknod(m.path / "f", 0o100644)
    os.truncate(m.path / "f", 100 * MB)
    with opened(m.path / "f") as fd:
        for at in (0, 50, 99):
            os.pwrite(fd, noise(MB, at), at * MB)
    m.evict("nvme")
    with opened(m.path / "f", os.O_RDONLY) as fd:
        for at in (0, 50, 99):
            assert os.pread(fd, MB, at * MB) == noise(MB, at)
        assert os.pread(fd, MB, 10 * MB) == bytes(MB)


def test_ftruncate_never_fails_for_want_of_dram(fresh):
    """safetensors: create, ftruncate to the full size, write on."""
    m = fresh(dram="32M")
    with opened(m.path / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, 30 * MB)
        write_all(fd, big(30, "t"))
    assert read(m.path / "f") == big(30, "t")
    m.evict("nvme")
    with opened(m.path / "g", os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, 1 << 30)
        os.pwrite(fd, b"end", (1 << 30) - 3)
    assert os.stat(m.path / "g").st_size == 1 << 30
    m.wait("nvme")


def test_fallocate_of_much(fresh):
    m = fresh(dram="32M")
    with opened(m.path / "f", os.O_CREAT | os.O_RDWR) as fd:
        fallocate(fd, 0, 0, 24 * MB)
        write_all(fd, big(24, "f"))
    assert read(m.path / "f") == big(24, "f")
    m.wait("nvme")


def test_several_writers_at_once(fresh):
    m = fresh(dram="64M")
    trouble = []

    def writer(n):
        try:
            for step in range(4):
                with opened(m.path / f"w{n}-{step}",
                            os.O_CREAT | os.O_WRONLY) as fd:
                    data = memoryview(big(6, (n, step)))
                    while data:
                        data = data[os.write(fd, data[:MB]):]
        except OSError as e:
            trouble.append(e)

    threads = [threading.Thread(target=writer, args=(n,)) for n in range(4)]
    if m.mode == "user":
        for n in range(4):  # threads of this one's credentials only
            in_child(lambda n=n: writer(n))
    else:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not trouble
    m.wait("nvme")
    for n in range(4):
        for step in range(4):
            assert read(m.path / f"w{n}-{step}") == big(6, (n, step))


def write_at_once(path, n):
    """n MiB of zeros in one call, which touches no memory of ours."""
    with mmap.mmap(-1, n * MB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                   mmap.PROT_READ) as zeros, \
            opened(path, os.O_CREAT | os.O_WRONLY) as fd:
        return os.write(fd, zeros)


@pytest.mark.modes("passthrough")
@pytest.mark.parametrize("cached", [False, True])
def test_ranks_that_write_in_one_call_each(fresh, cached):
    """Two calls that DRAM has room for: nobody looks after the one file only
    while the other one's call goes on. What the room is taken from is the
    ballast, or what is cached of the checkpoint before."""
    m = fresh(dram="3G")
    if cached:
        write_at_once(m.path / "before", 1200)
        m.wait("nvme", m.path / "before")
    until(lambda: full(m), 60)
    wrote = {}

    def rank(n):
        wrote[n] = write_at_once(m.path / f"r{n}", 1420)

    ranks = [threading.Thread(target=rank, args=(n,)) for n in range(2)]
    for t in ranks:
        t.start()
    for t in ranks:
        t.join()
    assert wrote == {0: 1420 * MB, 1: 1420 * MB}
    for name in os.listdir(m.path):  # no need to flush it
        os.unlink(m.path / name)


def full(m):
    """The DRAM tier's memory is held: by the ballast, or by files."""
    if m.plain:
        return True
    dram = m.status()["tiers"][0]
    held = int(dram["note"].split()[0]) if "held" in dram["note"] else 0
    return dram["used"] + held * MB >= dram["size"] - 128 * MB


def test_rewritten_over_and_over(fresh):
    """Older versions give their room back."""
    m = fresh(dram="64M")
    for i in range(15):
        write(m.path / "latest.pt", big(20, i))
    assert read(m.path / "latest.pt") == big(20, 14)
    m.wait("nvme")
    if not m.plain:
        def room_is_back():
            s = m.status()["tiers"]
            return s[0]["used"] <= 64 * MB and s[1]["used"] < 200 * MB
        until(room_is_back, 20)


@pytest.mark.modes("passthrough", "served")
def test_spilled_files_keep_no_lease(fresh):
    """Closed, they are as large on NVMe as their content."""
    m = fresh(dram="64M")
    with opened(m.path / "hold", os.O_CREAT | os.O_WRONLY) as hold:
        write_all(hold, big(60, "h"))
        until(lambda: m.plain or m.status()["tiers"][0]["used"] > 58 * MB)
        for i in range(3):
            with opened(m.path / f"s{i}", os.O_CREAT | os.O_WRONLY) as fd:
                for k in range(20):
                    os.write(fd, noise(MB, (i, k)))
                    time.sleep(0.002)
        if m.plain:
            return
        assert m.status()["counts"]["spilled"] == 3
        for i in range(3):
            m.wait("nvme", m.path / f"s{i}")
        files = [f.stat() for f in (m.nvme / "files").iterdir()]
    spilled = [st for st in files if st.st_size == 20 * MB]
    assert len(spilled) == 3
    for st in spilled:
        assert st.st_blocks * 512 <= st.st_size + MB


@pytest.mark.modes("passthrough")
def test_mtime_is_not_before_the_last_write(fresh):
    """What allocates ahead of a writer puts no older time back."""
    m = fresh(dram="1G")
    with mmap.mmap(-1, 200 * MB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                   mmap.PROT_READ) as zeros:
        for i in range(12):
            with opened(m.path / "f", os.O_CREAT | os.O_WRONLY) as fd:
                os.write(fd, bytes(MB))
                time.sleep(0.03)
                os.write(fd, zeros)
                began = time.time()
                os.write(fd, zeros)
            assert os.stat(m.path / "f").st_mtime > began - 0.02, i
            os.unlink(m.path / "f")


def test_deleted_files_give_room_back(fresh):
    m = fresh(dram="64M")
    for i in range(10):
        write(m.path / "f", big(30, i))
        os.unlink(m.path / "f")
    m.wait("nvme")
    if not m.plain:
        def empty():
            held = sum(f.stat().st_blocks * 512
                       for f in m.nvme.rglob("*") if f.is_file())
            return held < 100 * MB
        until(empty, 20)


@pytest.mark.modes("passthrough", "served")
def test_what_outgrows_everything_fails_cleanly(fresh, mode):
    """Until the gate is there: data or ENOSPC, nothing in between, and what
    was there before is unharmed."""
    m = fresh(dram="16M")
    write(m.path / "before", big(4, "b"))
    block = noise(MB)
    wrote = 0
    try:
        with opened(m.path / "f", os.O_CREAT | os.O_WRONLY) as fd:
            for _ in range(48):
                wrote += os.write(fd, block)
    except OSError as e:
        assert e.errno == 28
    assert read(m.path / "before") == big(4, "b")
    data = read(m.path / "f")
    assert len(data) == wrote
    assert data == (block * 48)[:wrote]
    os.unlink(m.path / "f")
    write(m.path / "after", big(4, "a"))
    m.wait("nvme")
    assert read(m.path / "after") == big(4, "a")

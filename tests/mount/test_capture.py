# SPDX-License-Identifier: Apache-2.0
"""libckpt on a mount: straight into the DRAM tier, streamed to NVMe before the
seal, and what is there after anything went wrong is whole or not there."""
import errno
import fcntl
import os
import signal
import struct
import time

import pytest

from calls import noise, read, write
from libckpt import Device, Engine, memory
from mounted import until

MB = 1 << 20
FILLED = 0x40104303  # CKPT_IOC_FILLED


def big(n, seed):
    """n MiB; cheap to make, no two MiB alike."""
    block = noise(MB, seed)
    return b"".join(i.to_bytes(8, "little") + block[8:] for i in range(n))


def nvme_bytes(m):
    """What lies in the files of the NVMe tier that are not preallocated only:
    the data itself is looked for."""
    total = 0
    for folder, _, names in os.walk(m.nvme):
        for name in names:
            if len(name) != 16:
                continue
            try:
                with open(os.path.join(folder, name), "rb") as f:
                    for at in range(0, os.fstat(f.fileno()).st_size, 4 * MB):
                        f.seek(at)
                        total += any(f.read(4096)) * 4 * MB
            except FileNotFoundError:
                pass
    return total


def nvme_files(m):
    return sum(len(name) == 16 for _, _, names in os.walk(m.nvme)
               for name in names)


def filled(fd, off, length):
    fcntl.ioctl(fd, FILLED, struct.pack("<QQ", off, length))


def test_captured(fresh):
    m = fresh(dram="256M", remote=True)
    data = big(40, 1)[:-1000]
    with Engine(), Device(400e6) as d, Engine() as e:
        cap = e.begin(m.path / "a")
        buf = memory(data)
        cap.add(d.provider(buf, len(data)))
        cap.add_memory(memory(b"tail"), 4)
        cap.submit()
        assert not (m.path / "a").exists()
        e.fence()
        buf[:len(data)] = bytes(len(data))
        cap.wait("dram")
        assert read(m.path / "a") == data + b"tail"
        assert os.listdir(m.path) == ["a"]
        cap.wait("nvme")
        if not m.plain:
            cap.wait("remote")
            s = cap.stats()
            assert s.on_ckptfs
            assert s.mapped == (m.mode == "passthrough")
        cap.free()
    m.lose_dram()
    assert read(m.path / "a") == data + b"tail"


def test_streams_before_the_seal(fresh):
    m = fresh(dram="256M")
    data = big(64, 2)
    with Device(32e6) as d, Engine(chunk=4 * MB) as e:
        cap = e.begin(m.path / "a")
        buf = memory(data)
        cap.add(d.provider(buf))
        cap.submit()
        if not m.plain:
            until(lambda: nvme_bytes(m) >= 12 * MB)
            assert not (m.path / "a").exists()
        cap.wait("nvme")
        cap.free()
    m.evict("nvme")
    assert read(m.path / "a") == data
    m.lose_dram()
    assert read(m.path / "a") == data


def test_a_broken_word_costs_no_byte(fresh):
    """Changed, cut and grown after it was said to be filled."""
    m = fresh(dram="256M")
    if m.plain:
        pytest.skip("an ioctl of the mount")
    data, other = big(24, 3), big(24, 4)
    for i, last in enumerate(["change", "cut", "grow", "hole"]):
        with open(m.path / "f", "wb", buffering=0) as f:
            f.write(data)
            filled(f.fileno(), 0, len(data))
            until(lambda: nvme_bytes(m) >= len(data))
            want = data
            if last == "change":
                f.seek(8 * MB)
                f.write(other[8 * MB:16 * MB])
                want = data[:8 * MB] + other[8 * MB:16 * MB] + data[16 * MB:]
            elif last == "cut":
                f.truncate(9 * MB + 5)
                want = data[:9 * MB + 5]
            elif last == "grow":
                f.write(other)
                want = data + other
            else:
                f.truncate(0)
                f.truncate(len(data))
                want = bytes(len(data))
        m.wait("nvme")
        m.evict("nvme")
        assert read(m.path / "f") == want, last
        os.unlink(m.path / "f")
        m.wait("nvme")
    until(lambda: nvme_files(m) == 0)


def test_nonsense_is_harmless(fresh):
    m = fresh()
    if m.plain:
        pytest.skip("an ioctl of the mount")
    with open(m.path / "f", "wb", buffering=0) as f:
        f.write(b"x" * 100000)
        for off, length in [(0, 1 << 63), (1 << 63, 1 << 63), (5, 0),
                            (1 << 40, 4 * MB), (0, 100000), (0, 100000)]:
            filled(f.fileno(), off, length)
    with open(m.path / "f", "rb") as f:
        with pytest.raises(OSError) as e:
            filled(f.fileno(), 0, 100000)
    assert e.value.errno == errno.EBADF
    for i in range(20):  # costs no memory
        with open(m.path / f"empty{i}", "wb") as f:
            filled(f.fileno(), (1 << 43) - 4 * MB, 4 * MB)
    folder = os.open(m.path, os.O_RDONLY)
    with pytest.raises(OSError) as e:
        filled(folder, 0, 1)
    os.close(folder)
    assert e.value.errno == errno.ENOTTY
    m.evict("nvme")
    assert read(m.path / "f") == b"x" * 100000


def test_gone_while_it_streams(fresh):
    m = fresh(dram="256M")
    if m.plain:
        pytest.skip("an ioctl of the mount")
    data = big(32, 5)
    with open(m.path / "f", "wb", buffering=0) as f:
        f.write(data)
        filled(f.fileno(), 0, len(data))
        os.unlink(m.path / "f")
    m.wait("nvme")
    until(lambda: nvme_files(m) == 0)
    with Device(32e6) as d, Engine(chunk=4 * MB) as e:
        cap = e.begin(m.path / "g")
        cap.add(d.provider(memory(data)))
        cap.submit()
        until(lambda: nvme_bytes(m) >= 8 * MB)
        cap.cancel()
        cap.free()
    assert os.listdir(m.path) == []
    m.wait("nvme")
    until(lambda: nvme_files(m) == 0)


def test_given_up_while_nvme_is_slow(fresh):
    """Nobody waits for what is being streamed into a file that is not wanted
    any more."""
    m = fresh(dram="256M", flush_rate="1M")
    with Device(1e9) as d, Engine(chunk=4 * MB) as e:
        for i in range(2):
            cap = e.begin(m.path / f"a{i}")
            cap.add(d.provider(memory(big(64, 9))))
            cap.add_object(b"x", pause=1)
            cap.submit()
            until(lambda: cap.stats().first_filled_ns)
            if not m.plain:
                until(lambda: nvme_files(m))
            cap.cancel()
            cap.free()
            begin = time.monotonic()
            os.mkdir(m.path / f"d{i}")
            assert time.monotonic() - begin < 2
    assert sorted(os.listdir(m.path)) == ["d0", "d1"]


def test_larger_than_dram_spills(fresh):
    m = fresh(dram="64M")
    data = big(100, 6)
    with Device(2e9) as d, Engine() as e:
        cap = e.begin(m.path / "a")
        cap.add(d.provider(memory(data)))
        cap.submit()
        e.fence()
        cap.wait("nvme")
        cap.free()
    assert read(m.path / "a") == data
    m.lose_dram()
    assert read(m.path / "a") == data


def test_several_fill_dram_together(fresh):
    """Each is promised its room or spilled; none fails, none is cut short."""
    m = fresh(dram="96M")
    parts = [big(40, 10 + i) for i in range(5)]
    with Device(500e6) as d, Engine(chunk=4 * MB) as e, Engine() as other:
        caps = []
        for i, data in enumerate(parts):
            cap = (e if i % 2 else other).begin(m.path / f"p{i}")
            cap.add(d.provider(memory(data)))
            cap.submit()
            caps.append(cap)
        for cap in caps:
            cap.wait("nvme")
            cap.free()
    for i, data in enumerate(parts):
        assert read(m.path / f"p{i}") == data
    m.lose_dram()
    for i, data in enumerate(parts):
        assert read(m.path / f"p{i}") == data


def test_a_tail_longer_than_was_guessed(fresh):
    """Of unknown length, behind what fills the tier as it was promised."""
    m = fresh(dram="64M")
    data, tail = big(60, 20), noise(MB, 40) * 8
    with Device(1e9) as d, Engine(chunk=4 * MB) as e:
        cap = e.begin(m.path / "a")
        cap.add(d.provider(memory(data)))
        cap.add_object(tail)
        cap.submit()
        e.fence()
        cap.wait("nvme")
        cap.free()
    assert read(m.path / "a") == data + tail
    m.lose_dram()
    assert read(m.path / "a") == data + tail


def test_no_room_at_all(fresh):
    """ENOSPC that names the file; the older version stays."""
    m = fresh(dram="64M", nvme_size="128M")
    if m.plain:
        pytest.skip("a directory without a limit")
    write(m.path / "a", b"older")
    with Device(2e9) as d, Engine() as e:
        cap = e.begin(m.path / "a")
        cap.add(d.provider(memory(big(200, 7))))
        cap.submit()
        with pytest.raises(OSError) as failed:
            e.fence()
        assert failed.value.errno == errno.ENOSPC
        assert str(m.path / "a") in cap.error()
        cap.free()
    assert os.listdir(m.path) == ["a"]
    assert read(m.path / "a") == b"older"


def test_waiting_for_what_was_replaced(fresh):
    m = fresh(dram="128M")
    with Engine() as e:
        caps = []
        for i in range(3):
            caps.append(e.begin(m.path / "latest"))
            caps[-1].add_memory(memory(b"%d" % i))
            caps[-1].submit()
            caps[-1].wait("dram")
        os.unlink(m.path / "latest")
        for cap in caps:
            cap.wait("nvme")
            cap.free()
    m.lose_dram()
    assert os.listdir(m.path) == []


@pytest.mark.parametrize("asked", [False, True])
def test_waiting_for_what_was_lost(fresh, asked):
    """Not told to be on NVMe, whatever comes after it."""
    m = fresh(dram="128M", flush_rate="1M")
    if m.plain:
        pytest.skip("no daemon")
    with Engine() as e:
        caps = {}
        for name, data in ("safe", b"s"), ("lost", noise(5 * MB, 1)):
            caps[name] = e.begin(m.path / name)
            caps[name].add_memory(memory(data), len(data))
            caps[name].submit()
            caps[name].wait("dram" if name == "lost" else "nvme")
        if asked:
            with pytest.raises(TimeoutError):
                caps["lost"].wait("nvme", .1)
        m.lose_dram(flush_rate=None)
        assert os.listdir(m.path) == ["safe"]
        write(m.path / "new", b"x")
        m.wait("nvme")
        caps["safe"].wait("nvme", 10)
        with pytest.raises(OSError) as failed:
            caps["lost"].wait("nvme", 10)
        assert failed.value.errno == errno.ESTALE
        for cap in caps.values():
            cap.free()


def test_waiting_after_a_restart(fresh):
    """A daemon that died and came back has lost nothing."""
    m = fresh(dram="128M", flush_rate="1M")
    if m.plain:
        pytest.skip("no daemon")
    with Engine() as e:
        cap = e.begin(m.path / "a")
        cap.add_memory(memory(noise(3 * MB, 1)), 3 * MB)
        cap.submit()
        cap.wait("dram")
        m.kill()
        m.start(flush_rate=None)
        cap.wait("nvme", 30)
        cap.free()


def test_remote_where_there_is_none(fresh):
    m = fresh()
    with Engine() as e:
        cap = e.begin(m.path / "a")
        cap.add_memory(memory(b"x"))
        cap.submit()
        with pytest.raises(OSError) as failed:
            cap.wait("remote")
        assert failed.value.errno == errno.EOPNOTSUPP
        cap.free()


def save_again_and_again(path, told):
    """In a child: captures, and notes in the pipe each one that is there."""
    d, e = Device(100e6), Engine(chunk=MB)
    for i in range(1000):
        cap = e.begin(path)
        cap.add(d.provider(memory(bytes([i % 251 + 1]) * (5 * MB))))
        cap.submit()
        e.fence()
        cap.wait("dram")
        os.write(told, bytes([i]))
        cap.free()


def trainer(path):
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        try:
            save_again_and_again(path, tell)
        finally:
            os._exit(1)
    os.close(tell)
    return pid, told


def test_trainer_is_killed(fresh):
    """Whatever the moment: the file is the last complete one or its successor,
    whole; the next capture of the name clears the rest away."""
    m = fresh(dram="128M")
    for n in (1, 2, 4):
        pid, told = trainer(m.path / "a")
        done = b""
        while len(done) < n:
            done += os.read(told, 1)
        os.kill(pid, signal.SIGKILL)
        while more := os.read(told, 100):
            done += more
        os.close(told)
        os.waitpid(pid, 0)
        data = read(m.path / "a")
        assert len(data) == 5 * MB
        assert data == bytes([data[0]]) * len(data)
        assert data[0] - 1 in (done[-1], done[-1] + 1)
    with Engine() as e:
        cap = e.begin(m.path / "a")
        cap.add_memory(memory(b"end"), 3)
        cap.submit()
        cap.wait("dram")
        cap.free()
    assert os.listdir(m.path) == ["a"]


def test_daemon_is_killed(fresh):
    """The mount goes away in the middle: an error, no crash, no half file."""
    m = fresh(dram="128M")
    if m.plain:
        pytest.skip("no daemon")
    write(m.path / "a", b"older")
    m.wait("nvme")
    with Device(20e6) as d, Engine(chunk=MB) as e:
        cap = e.begin(m.path / "a")
        cap.add(d.provider(memory(big(20, 8))))
        cap.submit()
        until(lambda: cap.stats().first_filled_ns)
        m.kill()
        with pytest.raises(OSError):
            e.fence()
            cap.wait("dram")
        cap.free()
    m.start()
    assert read(m.path / "a") == b"older"

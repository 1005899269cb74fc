# SPDX-License-Identifier: Apache-2.0
"""Which content a version gets, whoever else holds the file (DESIGN.md 4.5).

Each test ends with the DRAM lost: what is read then is what was sealed."""
import mmap
import os
import signal
import subprocess
import time

import pytest

from calls import close_dead, noise, opened, read, tick, write, write_all
from mounted import until

MB = 1 << 20
COARSE_NS = 10_000_000  # a tick of the kernel's coarse clock
OLD, NEW = noise(3 * MB, "old"), noise(2 * MB + 77, "new")


class Holder:
    """A forked child that keeps what it inherited until it is let go."""

    def __init__(self, at_end=lambda: None):
        down, self.up = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.read(down, 1)
                at_end()
            finally:
                os._exit(0)
        os.close(down)

    def let_go(self):
        if self.pid:
            os.write(self.up, b"x")
            os.close(self.up)
            os.waitpid(self.pid, 0)
            self.pid = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.let_go()


@pytest.fixture(params=["small", "large"])
def pair(request):
    """Contents on either side of what is kept in the database."""
    return (OLD, NEW) if request.param == "large" else (OLD[:3000], NEW[:900])


def test_reader_holds_latest_while_it_is_rewritten(fresh, pair):
    old, new = pair
    m = fresh()
    latest = write(m.path / "latest", old)
    m.wait("nvme")
    with opened(latest, os.O_RDONLY) as reader:
        assert os.pread(reader, len(old) + 1, 0) == old
        write(latest, new)
        assert os.pread(reader, len(old) + 1, 0) == new, "one inode"
        assert os.fstat(reader).st_ino == os.stat(latest).st_ino
        m.wait("nvme", timeout=20)
        write(latest, old)
        assert os.pread(reader, len(old) + 1, 0) == old
        write(latest, new)
        m.wait("nvme", timeout=20)
    m.lose_dram()
    assert read(latest) == new


def test_reader_maps_latest_while_it_is_rewritten(fresh):
    """The reader's descriptor is gone, its mapping is not. A truncate under a
    mapping must not crash it: only pages still there are read."""
    m = fresh()
    latest = write(m.path / "latest", OLD)
    with opened(latest, os.O_RDONLY) as fd:
        view = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    m.wait("nvme")
    write(latest, NEW)
    assert read(latest) == NEW
    m.wait("nvme", timeout=20)
    view.close()
    m.lose_dram()
    assert read(latest) == NEW


def test_rewrite_cut_half_way(fresh, pair):
    """O_TRUNC, half of the new content, then the machine is lost: the path
    holds the complete older version."""
    old, new = pair
    m = fresh()
    latest = write(m.path / "latest", old)
    m.wait("nvme")
    fd = os.open(latest, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, new[:len(new) // 2])
    if m.plain:
        os.close(fd)
        return
    m.lose_dram()
    assert read(latest) == old
    close_dead(fd)


def test_rewrite_cut_half_way_under_a_reader(fresh, pair):
    old, new = pair
    m = fresh()
    latest = write(m.path / "latest", old)
    m.wait("nvme")
    reader = os.open(latest, os.O_RDONLY)
    fd = os.open(latest, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, new[:len(new) // 2])
    if not m.plain:
        m.lose_dram()
        assert read(latest) == old
    close_dead(fd, reader)


def test_rewrite_in_place_cut_half_way(fresh):
    """The same without O_TRUNC, the file just flushed or not at all yet."""
    for waits in (True, False):
        m = fresh()
        f = write(m.path / "f", OLD)
        if waits:
            m.wait("nvme")
        fd = os.open(f, os.O_RDWR)
        os.pwrite(fd, b"torn" * 1000, MB)
        if not m.plain:
            # Not `ckptctl wait`: a child drops our descriptor, and while we
            # pause that counts as a close.
            with opened(m.path, os.O_RDONLY) as top:
                os.fsync(top)
            m.lose_dram()
            assert read(f) == OLD
        close_dead(fd)


def test_subprocesses_during_a_save(fresh):
    """Each inherits the descriptor, and drops it: that is no close of ours."""
    m = fresh()
    parts = [noise(300_000, i) for i in range(8)]
    fd = os.open(m.path / "model.pt", os.O_CREAT | os.O_WRONLY)
    os.set_inheritable(fd, True)
    for i, part in enumerate(parts):
        write_all(fd, part)
        subprocess.run(["true"], close_fds=False, check=True)
        write(m.path / f"event-{i}", b"x")
    os.close(fd)
    write(m.path / "latest", b"model.pt")
    m.wait("nvme")
    m.lose_dram()
    assert read(m.path / "model.pt") == b"".join(parts)
    assert read(m.path / "latest") == b"model.pt"


def test_forked_workers_during_a_save(fresh):
    """DataLoader workers: forked while files are open, alive all the time."""
    m = fresh()
    parts = [noise(300_000, i) for i in range(6)]
    holders = []
    fd = os.open(m.path / "model.pt", os.O_CREAT | os.O_WRONLY)
    for part in parts:
        write_all(fd, part)
        holders.append(Holder())
    os.close(fd)
    (m.path / "step-1").mkdir()
    write(m.path / "latest", b"model.pt")
    for h in holders[::2]:
        h.let_go()
    m.wait("nvme", timeout=20)
    if not m.plain:
        m.lose_dram()
    assert read(m.path / "model.pt") == b"".join(parts)
    assert read(m.path / "latest") == b"model.pt"
    for h in holders:
        h.let_go()


def test_child_keeps_the_descriptor_while_latest_is_written(fresh):
    """The parent closes, renames and writes `latest`; the child never closes.
    The shard has to be there all the same, and before `latest` is."""
    m = fresh()
    fd = os.open(m.path / "tmp", os.O_CREAT | os.O_RDWR)
    write_all(fd, NEW)
    with Holder():
        os.close(fd)
        os.rename(m.path / "tmp", m.path / "shard")
        write(m.path / "latest", b"shard")
        m.wait("nvme", timeout=20)
        m.lose_dram()
        assert read(m.path / "latest") == b"shard"
        assert read(m.path / "shard") == NEW


def test_child_writes_on_after_the_parent_closed(fresh):
    m = fresh()
    fd = os.open(m.path / "f", os.O_CREAT | os.O_RDWR)
    write_all(fd, OLD)
    with Holder(lambda: os.pwrite(fd, b"child", 100)) as child:
        os.close(fd)
        write(m.path / "latest", b"f")
        m.wait("nvme", timeout=20)
        child.let_go()
        want = OLD[:100] + b"child" + OLD[105:]
        assert read(m.path / "f") == want
    m.remount()
    assert read(m.path / "f") == want


def test_dup_is_closed_in_mid_write(fresh):
    m = fresh()
    fd = os.open(m.path / "f", os.O_CREAT | os.O_RDWR)
    for i in range(5):
        write_all(fd, noise(100_000, i))
        os.close(os.dup(fd))
        os.mkdir(m.path / f"event-{i}")
    os.close(fd)
    m.wait("nvme")
    m.lose_dram()
    assert read(m.path / "f") == b"".join(noise(100_000, i) for i in range(5))


def test_rename_before_close(fresh):
    m = fresh()
    fd = os.open(m.path / "tmp", os.O_CREAT | os.O_RDWR)
    write_all(fd, NEW)
    os.rename(m.path / "tmp", m.path / "final")
    write(m.path / "latest", b"final")
    os.close(fd)
    m.wait("nvme")
    m.lose_dram()
    assert sorted(os.listdir(m.path)) == ["final", "latest"]
    assert read(m.path / "final") == NEW


def test_rename_before_close_then_more(fresh):
    m = fresh()
    with opened(m.path / "tmp", os.O_CREAT | os.O_RDWR) as fd:
        write_all(fd, OLD)
        os.rename(m.path / "tmp", m.path / "final")
        m.wait("nvme", timeout=20)
        write_all(fd, NEW)
    m.wait("nvme")
    m.lose_dram()
    assert read(m.path / "final") == OLD + NEW


def test_link_before_close(fresh):
    m = fresh()
    with opened(m.path / "a", os.O_CREAT | os.O_RDWR) as fd:
        write_all(fd, NEW)
        os.link(m.path / "a", m.path / "b")
        os.unlink(m.path / "a")
    m.wait("nvme")
    m.lose_dram()
    assert os.listdir(m.path) == ["b"]
    assert read(m.path / "b") == NEW


def test_renamed_over_while_the_old_one_is_written(fresh):
    """The replaced file's writer goes on, into a file without a name."""
    m = fresh()
    with opened(m.path / "f", os.O_CREAT | os.O_RDWR) as fd:
        write_all(fd, OLD)
        write(m.path / "tmp", NEW)
        os.rename(m.path / "tmp", m.path / "f")
        write_all(fd, OLD)
        assert os.fstat(fd).st_size == 2 * len(OLD)
    m.wait("nvme")
    m.lose_dram()
    assert os.listdir(m.path) == ["f"]
    assert read(m.path / "f") == NEW


TIME = 1_400_000_000_123_456_789


def test_mtime_set_after_the_seal(fresh, m):
    """cp -p: write, close, utimensat."""
    one = fresh()
    f = write(one.path / "f", NEW)
    one.wait("nvme")
    os.utime(f, ns=(TIME, TIME))
    for step in (lambda: one.wait("nvme"), lambda: one.evict("nvme"),
                 one.remount):
        step()
        assert os.stat(f).st_mtime_ns == TIME
    g = write(one.path / "g", NEW)
    os.utime(g, ns=(TIME, TIME))
    one.wait("nvme")
    one.lose_dram()
    assert os.stat(g).st_mtime_ns == TIME and read(g) == NEW


def test_mtime_set_before_close(fresh):
    m = fresh()
    with opened(m.path / "f", os.O_CREAT | os.O_RDWR) as fd:
        write_all(fd, NEW)
        os.utime(fd, ns=(TIME, TIME))
    assert os.stat(m.path / "f").st_mtime_ns == TIME
    m.wait("nvme")
    assert os.stat(m.path / "f").st_mtime_ns == TIME
    m.remount()
    assert os.stat(m.path / "f").st_mtime_ns == TIME


def test_mtime_set_while_a_child_holds_the_file(fresh):
    m = fresh()
    fd = os.open(m.path / "f", os.O_CREAT | os.O_RDWR)
    write_all(fd, NEW)
    with Holder():
        os.close(fd)
        os.utime(m.path / "f", ns=(TIME, TIME))
        os.chmod(m.path / "f", 0o640)
        m.wait("nvme", timeout=20)
        assert os.stat(m.path / "f").st_mtime_ns == TIME
    write(m.path / "latest", b"f")
    m.remount()
    s = os.stat(m.path / "f")
    assert s.st_mtime_ns == TIME and s.st_mode & 0o777 == 0o640
    assert read(m.path / "f") == NEW


def test_times_of_last_write_survive(fresh):
    m = fresh()
    write(m.path / "f", NEW)
    (m.path / "dir").mkdir()
    write(m.path / "dir" / "g", b"x")
    tick()
    os.chmod(m.path / "f", 0o600)
    os.setxattr(m.path / "dir", "user.a", b"1")
    before = {n: os.stat(m.path / n) for n in ("f", "dir", "dir/g", ".")}
    m.remount()
    for name, s in before.items():
        after = os.stat(m.path / name)
        assert (after.st_mtime_ns, after.st_ctime_ns, after.st_ino) == (
            s.st_mtime_ns, s.st_ctime_ns, s.st_ino), name


def test_writer_that_is_killed(fresh):
    """Counts as one that closed; whatever it had written is a version."""
    m = fresh()
    write(m.path / "before", OLD)
    pid = os.fork()
    if pid == 0:
        fd = os.open(m.path / "f", os.O_CREAT | os.O_WRONLY)
        write_all(fd, NEW)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    write(m.path / "latest", b"x")
    if not m.plain:
        until(lambda: os.getxattr(m.path / "f",
                                  "user.ckpt.state") != b"writing")
    m.wait("nvme")
    m.lose_dram()
    assert read(m.path / "f") == NEW


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_RDWR | os.O_TRUNC])
def test_opened_for_writing_and_not_written(fresh, flags):
    m = fresh()
    f = write(m.path / "f", OLD)
    m.evict("nvme")
    os.close(os.open(f, flags))
    want = b"" if flags & os.O_TRUNC else OLD
    assert read(f) == want
    m.wait("nvme")
    m.lose_dram()
    assert read(f) == want


def test_many_versions_of_one_file(fresh):
    """Rewritten faster than it is flushed."""
    m = fresh()
    f = m.path / "latest"
    for i in range(100):
        write(f, noise(50_000 + i, i))
    m.wait("nvme")
    m.lose_dram()
    assert read(f) == noise(50_099, 99)
    for i in range(20):
        write(f, noise(MB + i, i))
    m.lose_dram()
    data = read(f)
    if not m.plain:
        assert data == noise(50_099, 99) or \
            data == noise(MB + len(data) - MB, len(data) - MB)


def test_opened_for_writing_and_nothing_written(fresh):
    """Flushed, but not in the durable database yet: its content is found
    whichever moment is met."""
    m = fresh(faulty="sync_names:delay=300ms")
    data = noise(3 << 20)
    for i in range(8):
        f = write(m.path / "f", data)
        (m.path / "event").touch()
        time.sleep(0.04 * i)
        with opened(f, os.O_RDWR):
            pass
        (m.path / "event").unlink()
        for _ in range(5):
            assert read(f) == data
        os.unlink(f)


def test_opened_and_not_written_then_the_daemon_dies(fresh):
    """Before D: the DRAM file is all there is, also of a small file that
    somebody reads meanwhile."""
    m = fresh(dram="256M", flush_rate="8M")
    write(m.path / "before", noise(40 * MB))
    contents = {"large": NEW, "small": b"small"}
    for name, data in contents.items():
        write(m.path / name, data)
    with opened(m.path / "small", os.O_RDONLY):
        time.sleep(0.5)  # the flush of the two is done
        for name in contents:
            os.close(os.open(m.path / name, os.O_RDWR))
    time.sleep(0.3)
    m.kill()
    m.unmount(lazy=True)
    m.start()
    for name, data in contents.items():
        assert read(m.path / name) == data


def test_truncated_by_a_reader(fresh):
    """open(O_RDONLY|O_TRUNC) is a change as any other: sealed before what
    comes after it."""
    m = fresh()
    f = write(m.path / "latest", b"step-1")
    m.wait("nvme")
    os.close(os.open(f, os.O_RDONLY | os.O_TRUNC))
    os.mkdir(m.path / "step-2")
    with opened(m.path, os.O_RDONLY) as fd:
        os.fsync(fd)
    m.lose_dram()
    assert read(f) == b"" and (m.path / "step-2").is_dir()


@pytest.mark.parametrize("store", [False, True])
def test_renamed_before_close(fresh, store):
    """As safetensors does it, through a descriptor that reads, too. What the
    rename sealed is not written to NVMe twice, unless a mapping changed it."""
    m = fresh()
    data = bytearray(noise(9 << 20))
    for n in range(4):
        with opened(m.path / ".tmp", os.O_RDWR | os.O_CREAT) as fd:
            os.ftruncate(fd, len(data))
            write_all(fd, data)
            with mmap.mmap(fd, len(data)) as mapping:
                mapping[5 << 20] = data[5 << 20]
                os.rename(m.path / ".tmp", m.path / f"f{n}")
                if store:
                    data[5 << 20] ^= 0xff
                    mapping[5 << 20] = data[5 << 20]
        m.wait("nvme")
        until(lambda: len(os.listdir(m.nvme / "files")) == n + 1)
    m.lose_dram()
    assert read(m.path / "f3") == bytes(data)
    os.unlink(m.path / "f3")
    m.wait("nvme")
    until(lambda: len(os.listdir(m.nvme / "files")) == 3)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR])
def test_no_file_on_nvme_is_left_over(fresh, flags):
    """Room was set aside for what might have been one more version."""
    m = fresh()
    for n in range(3):
        with opened(m.path / f"f{n}", flags | os.O_CREAT) as fd:
            write_all(fd, noise(2 << 20, n))
            os.fsync(fd)
        with opened(m.path / "gone", flags | os.O_CREAT) as fd:
            write_all(fd, noise(2 << 20, 9))
            time.sleep(0.02)
            os.unlink(m.path / "gone")
    m.wait("nvme")
    until(lambda: len(os.listdir(m.nvme / "files")) == 3)


def test_cut_after_a_snapshot(fresh):
    """By its writer, before the snapshot is on NVMe; then opened by another."""
    m = fresh(dram="64M", flush_rate="5M")
    write(m.path / "busy1", noise(3 << 20))
    write(m.path / "busy2", noise(3 << 20))
    with opened(m.path / "tmp", os.O_RDWR | os.O_CREAT) as fd:
        write_all(fd, noise(300_000))
        os.rename(m.path / "tmp", m.path / "f")
        os.ftruncate(fd, 4096)
        with opened(m.path / "f", os.O_RDWR) as other:
            assert os.pread(other, 10_000, 0) == noise(300_000)[:4096]
    m.wait("nvme")
    m.lose_dram()
    assert read(m.path / "f") == noise(300_000)[:4096]


def seq(path):
    return int(os.getxattr(path, "user.ckpt.seq"))


def test_many_closed_at_once(fresh):
    """Sealed many at a time: each has its number, in the order of the closes,
    also those that somebody still holds, or may have mapped; whatever comes
    after has a higher one."""
    m = fresh()
    if m.plain:
        pytest.skip("a plain directory has no numbers")
    data = {n: noise(100 + 700 * n, n) for n in range(150)}
    fds, held = {}, []
    for n in data:
        how = os.O_RDWR if n % 40 == 7 else os.O_WRONLY
        fds[n] = os.open(m.path / f"f{n}", how | os.O_CREAT)
    for n in reversed(data):
        write_all(fds[n], data[n])
        if n % 10 == 0:
            held.append(os.dup(fds[n]))
        os.close(fds[n])
    (m.path / "after").mkdir()
    seqs = [seq(m.path / f"f{n}") for n in reversed(data)]
    assert seqs == sorted(set(seqs))
    assert seqs[-1] < seq(m.path / "after")
    m.wait("nvme")
    m.lose_dram()
    for n, expected in data.items():
        assert read(m.path / f"f{n}") == expected
    close_dead(*held)


@pytest.mark.parametrize("how", ["dup", "child"])
@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR])
def test_pointer_opened_before_its_shard(fresh, flags, how):
    """Somebody closed the pointer before it was written: its place is that of
    its last close, behind the shard that it names."""
    m = fresh()
    if m.plain:
        pytest.skip("a plain directory has no numbers")
    for n in range(20):
        fd = os.open(m.path / f"latest{n}", flags | os.O_CREAT)
        if how == "dup":
            os.close(os.dup(fd))
        else:
            Holder().let_go()
        write(m.path / f"shard{n}", noise(100_000, n))
        os.write(fd, b"shard%d" % n)
        os.close(fd)
        assert seq(m.path / f"shard{n}") < seq(m.path / f"latest{n}")


def test_pointer_written_through_a_mapping(fresh):
    """Mapped, closed, and stored to after its shard was created: the store
    moves no time stamp, so that create waits for the mark."""
    m = fresh()
    if m.plain:
        pytest.skip("a plain directory has no numbers")
    for n in range(20):
        with opened(m.path / f"latest{n}", os.O_RDWR | os.O_CREAT) as fd:
            os.ftruncate(fd, 100)
            mapping = mmap.mmap(fd, 100)
            mapping[0] = 1
        with opened(m.path / f"shard{n}", os.O_WRONLY | os.O_CREAT) as fd:
            write_all(fd, noise(2000, n))
        mapping[:9] = b"shard%04d" % n
        mapping.close()
        with opened(m.path / f"latest{n}", os.O_RDONLY) as fd:
            os.fsync(fd)
        assert seq(m.path / f"shard{n}") < seq(m.path / f"latest{n}")


@pytest.mark.parametrize("how", ["open", "dup"])
def test_written_on_by_another_descriptor(fresh, how):
    """Closed by one of two that write it, then a pointer to it is made, then
    the other writes on: with the pointer there is what was closed before."""
    m = fresh()
    one = os.open(m.path / "shard", os.O_WRONLY | os.O_CREAT)
    other = os.dup(one) if how == "dup" else \
        os.open(m.path / "shard", os.O_WRONLY)
    write_all(one, noise(5000))
    os.close(one)
    write(m.path / "latest", b"shard")
    os.pwrite(other, noise(100), 5000)
    with opened(m.path, os.O_RDONLY) as fd:
        os.fsync(fd)
    m.lose_dram()
    close_dead(other)
    assert read(m.path / "latest") == b"shard"
    assert read(m.path / "shard")[:5000] == noise(5000)


def test_new_file_still_open(fresh):
    """Its name stands in the log before the seals of what was closed earlier,
    and is not there after a cut until it has its own."""
    m = fresh()
    names = [f"f{n}" for n in range(40)]
    fds = []
    for name in names:
        write(m.path / f"closed-{name}", noise(2000, name))
        fds.append(os.open(m.path / name, os.O_WRONLY | os.O_CREAT))
    # Not by a program: it would close what it inherited.
    with opened(m.path, os.O_RDONLY) as fd:
        os.fsync(fd)
    if m.plain:
        close_dead(*fds)
        return
    m.lose_dram()
    assert sorted(os.listdir(m.path)) == sorted(f"closed-{n}" for n in names)
    for name in names:
        assert read(m.path / f"closed-{name}") == noise(2000, name)
    close_dead(*fds)


def test_times_of_files_made_ahead(fresh):
    """Many are created, so backing files are made before they are wanted: a
    new file's times are those of its creation."""
    m = fresh()
    for n in range(2000):
        before = time.time_ns()
        with opened(m.path / f"f{n}", os.O_WRONLY | os.O_CREAT) as fd:
            st = os.fstat(fd)
        after = time.time_ns()
        for ns in st.st_mtime_ns, st.st_ctime_ns, st.st_atime_ns:
            assert before - COARSE_NS <= ns <= after
        assert os.stat(m.path / f"f{n}").st_mtime_ns == st.st_mtime_ns

# SPDX-License-Identifier: Apache-2.0
"""The daemon ends: asked to, or killed. What was accepted is there after."""
import os
import pickle
import signal
import subprocess

import pytest

import user

from calls import (describe, difference, errno_of, noise, opened, read, tree,
                   write, write_all)
from mounted import is_mountpoint, until

MB = 1 << 20


def populate(m, n=10):
    (m.path / "dir" / "sub").mkdir(parents=True)
    for i in range(n):
        write(m.path / "dir" / f"f{i}", noise(300_000 * (i % 3) + 10, i))
    write(m.path / "dir" / "sub" / "empty", b"")
    os.symlink("dir", m.path / "link")
    os.mkfifo(m.path / "fifo")
    os.link(m.path / "dir" / "f1", m.path / "hard")
    os.setxattr(m.path / "dir", "user.a", b"1")
    os.rename(m.path / "dir" / "f2", m.path / "moved")
    os.unlink(m.path / "dir" / "f3")
    with opened(m.path / "sparse", os.O_CREAT | os.O_RDWR) as fd:
        os.pwrite(fd, b"end", 20 * MB)
    os.chmod(m.path / "moved", 0o600)


def test_umount_drains(fresh):
    m = fresh(flush_rate="40M")
    populate(m)
    write(m.path / "late", noise(9 * MB))
    before = tree(m.path)
    m.stop()
    m.start()
    assert difference(before, tree(m.path)) == ""
    if not m.plain:
        assert m.status()["tiers"][1]["behind_bytes"] == 0


def test_sigterm_drains_and_unmounts(fresh):
    m = fresh(flush_rate="40M")
    populate(m)
    before = tree(m.path)
    if not m.plain:
        m.process.send_signal(signal.SIGTERM)
        assert m.ended() == 0
        m.process = None
        assert os.listdir(m.path) == [], "unmounted"
        m.start()
    assert difference(before, tree(m.path)) == ""


def test_sigint_ends_it_too(fresh):
    """Control-C of a foreground daemon."""
    m = fresh()
    write(m.path / "f", noise(MB))
    if not m.plain:
        m.process.send_signal(signal.SIGINT)
        m.ended()
        m.process = None
        m.start()
    assert read(m.path / "f") == noise(MB)


def test_sigterm_with_files_open(fresh):
    """Their writers get errors then; what they wrote before is kept."""
    m = fresh()
    fd = os.open(m.path / "f", os.O_CREAT | os.O_RDWR)
    os.write(fd, noise(MB))
    if m.plain:
        os.close(fd)
        return
    m.process.send_signal(signal.SIGTERM)
    m.ended()
    m.process = None
    assert errno_of(os.close, fd) in (0, 5, 103, 107)
    m.start()
    assert read(m.path / "f") == noise(MB)


@pytest.mark.modes("passthrough", "served")
@pytest.mark.root
def test_sigterm_leaves_a_later_mount_alone(fresh):
    """Unmounted lazily, it lives on for a file that is open. What somebody
    mounted there since is not the daemon's to take away."""
    m = fresh()
    with opened(m.path / "f", os.O_CREAT | os.O_RDWR):
        m.unmount(lazy=True)
        m.run(["mount", "-t", "tmpfs", "later", m.path])
        m.process.send_signal(signal.SIGTERM)
        until(lambda: "told to end" in m.log_tail())
    assert m.ended() == 0
    m.process = None
    with open("/proc/self/mountinfo") as f:
        assert any(line.split()[4] == str(m.path) for line in f)
    m.unmount()


def test_next_mount_waits_for_the_last(fresh):
    """umount and mount at once, while the old daemon still drains."""
    m = fresh(flush_rate="8M")
    write(m.path / "f", noise(MB) * 12)
    if m.plain:
        return
    old = m.process
    m.unmount()
    assert old.poll() is None
    m.start()
    assert old.wait(10) == 0
    assert read(m.path / "f") == noise(MB) * 12


@pytest.mark.parametrize("foreground", [True, False])
def test_told_to_end_before_it_is_mounted(fresh, foreground):
    """Ctrl-C while it waits for the last mount: nothing is mounted later.
    In the background it is the command that gets it, not the daemon."""
    m = fresh(flush_rate="2M")
    write(m.path / "f", noise(MB) * 40)
    if m.plain:
        return
    old = m.process
    m.unmount()
    with m.popen(m.command(foreground), stdin=subprocess.DEVNULL,
                 stderr=subprocess.PIPE, start_new_session=True) as p:
        until(lambda: waits_for_a_lock(m, p.pid, foreground))
        p.send_signal(signal.SIGINT)
        text = p.stderr.read()  # its end: nobody holds it any more
        assert p.wait() == (1 if foreground else -signal.SIGINT)
    assert b"told to end" in text
    assert old.poll() is None, "it did not wait"
    assert not is_mountpoint(m.path)
    m.process = old
    m.kill()
    m.start(flush_rate=None)
    assert read(m.path / "f") == noise(MB) * 40


def waits_for_a_lock(m, pid, foreground):
    """The process, or its child, has the lock file open."""
    pids = [str(pid)]
    if not foreground:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            pids = f.read().split()
    lock = str(m.nvme / "lock")
    return user.as_root(lambda: any(
        os.path.realpath(f"/proc/{p}/fd/{fd}") == lock
        for p in pids for fd in os.listdir(f"/proc/{p}/fd")))


def test_killed_carries_on(fresh):
    """Same boot: everything is there, flushed or not."""
    m = fresh(flush_rate="4M")
    populate(m)
    before = tree(m.path)
    m.kill()
    m.start()
    assert difference(before, tree(m.path)) == ""
    if not m.plain:
        assert "carried on" in m.status()["start"]
    write(m.path / "new", b"goes on")
    m.kill()
    m.start(flush_rate=None)
    m.wait("nvme")
    m.lose_dram()
    assert read(m.path / "new") == b"goes on"
    after = tree(m.path)
    del after["new"]
    assert difference(before, after) == ""


def test_killed_with_files_being_written(fresh):
    """Unsealed data, in a new file and in an old one, in place."""
    m = fresh()
    write(m.path / "old", noise(3 * MB, "old"))
    m.wait("nvme")
    one = os.open(m.path / "new", os.O_CREAT | os.O_WRONLY)
    two = os.open(m.path / "old", os.O_RDWR)
    write_all(one, noise(2 * MB, "new"))
    os.pwrite(two, b"patch", MB)
    m.kill()
    for fd in (one, two):
        os.close(fd) if m.plain else errno_of(os.close, fd)
    m.start()
    want = noise(3 * MB, "old")
    want = want[:MB] + b"patch" + want[MB + 5:]
    for step in (lambda: None, lambda: m.wait("nvme"), m.lose_dram):
        step()
        assert read(m.path / "new") == noise(2 * MB, "new")
        assert read(m.path / "old") == want


def test_killed_with_an_unlinked_file_open(fresh):
    """It is gone then, and gives its room back."""
    m = fresh(reserve="no")
    write(m.path / "kept", b"kept")
    fd = os.open(m.path / "f", os.O_CREAT | os.O_RDWR)
    write_all(fd, noise(MB) * 20)
    os.unlink(m.path / "f")
    m.kill()
    errno_of(os.close, fd)
    m.start()
    assert os.listdir(m.path) == ["kept"]
    if not m.plain:
        until(lambda: m.status()["tiers"][0]["used"] < 15 * MB)


def worker(m, round_):
    """A child that saves until the mount fails it; then it tells, through the
    pipe that is returned, what close() had promised it."""
    down, up = os.pipe()
    pid = os.fork()
    if pid:
        os.close(up)
        return pid, down
    promised = []
    try:
        for i in range(100 if m.plain else 10_000):
            name = f"r{round_}-{i}"
            write(m.path / name, noise(20_000 + i, name))
            promised.append((name, i))
    except OSError:
        pass
    finally:
        with open(up, "wb") as f:
            f.write(pickle.dumps(promised))
        os._exit(0)


def test_killed_again_and_again_under_load(fresh):
    """Each file whose close returned 0 is there and whole."""
    m = fresh()
    for round_ in range(4):
        pid, told = worker(m, round_)
        until(lambda: (m.path / f"r{round_}-30").exists())
        m.kill()
        with open(told, "rb") as f:
            promised = pickle.loads(f.read())
        os.waitpid(pid, 0)
        m.start()
        assert len(promised) >= 30
        for name, i in promised:
            assert read(m.path / name) == noise(20_000 + i, name)
    m.wait("nvme")


def test_dram_lost_is_the_durable_state(fresh):
    """A prefix: what came after is gone, what came before is whole."""
    m = fresh(flush_rate="8M")
    for i in range(30):
        write(m.path / f"f{i:02}", noise(600_000, i))
    if m.plain:
        return
    until(lambda: os.getxattr(m.path / "f03", "user.ckpt.state") == b"nvme")
    m.lose_dram(flush_rate=None)
    names = sorted(os.listdir(m.path))
    assert 4 <= len(names)
    assert names == [f"f{i:02}" for i in range(len(names))]
    for i, name in enumerate(names):
        assert read(m.path / name) == noise(600_000, i)
    assert "what NVMe holds" in m.status()["start"]


def test_numbers_are_not_used_twice(fresh):
    m = fresh()
    seen = set()
    for i in range(5):
        f = write(m.path / f"f{i}", b"x")
        number = os.stat(f).st_ino
        assert number not in seen
        seen.add(number)
        if i % 2:
            m.lose_dram()
        else:
            m.remount()


def test_same_numbers_after_a_remount(fresh):
    m = fresh()
    populate(m)
    before = {p: os.lstat(m.path / p).st_ino for p in tree(m.path)}
    m.remount()
    assert {p: os.lstat(m.path / p).st_ino for p in before} == before


def test_root_directory_keeps_its_attributes(fresh, mode):
    m = fresh()
    os.chmod(m.path, 0o751)
    os.setxattr(m.path, "user.a", b"1")
    if mode in ("passthrough", "served"):
        os.chown(m.path, 1001, 1002)
    want = describe(m.path)
    m.remount()
    if not m.plain:
        assert describe(m.path) == want
    m.wait("nvme")
    m.lose_dram()
    assert describe(m.path) == want


def test_larger_and_smaller_dram_next_time(fresh):
    m = fresh(dram="64M")
    for i in range(6):
        write(m.path / f"f{i}", noise(MB, i) * 6)
    m.kill()
    m.start(dram="24M")
    for i in range(6):
        assert read(m.path / f"f{i}") == noise(MB, i) * 6
    write(m.path / "g", noise(MB) * 10)
    m.remount(dram="200M")
    for i in range(6):
        assert read(m.path / f"f{i}") == noise(MB, i) * 6
    assert read(m.path / "g") == noise(MB) * 10


def test_the_other_io_mode_next_time(fresh, mode):
    if mode == "user":
        pytest.skip("root's")
    m = fresh()
    other = "served" if mode == "passthrough" else "passthrough"
    populate(m)
    before = tree(m.path)
    m.kill()
    m.start(io=other)
    assert difference(before, tree(m.path)) == ""
    m.remount(io=mode if not m.plain else "served")
    assert difference(before, tree(m.path)) == ""

# SPDX-License-Identifier: Apache-2.0
"""A remote that vanishes stops the remote watermark and nothing else."""
import os
import signal
import struct
import sys
import threading
import time

import pytest

from calls import noise, opened, read, write
from mounted import PATIENCE, Mounted, until
from user import as_root

MB = 1 << 20
pytestmark = pytest.mark.usefixtures("has_remote")


def take_away(m):
    os.rename(m.remote_dir, m.base / "away")


def bring_back(m):
    os.rename(m.base / "away", m.remote_dir)


def remote_error(m):
    return m.status()["tiers"][2]["error"]


def test_gone_and_back(fresh):
    m = fresh(remote=True)
    write(m.path / "before", noise(MB, 0))
    m.wait("remote")
    take_away(m)
    begin = time.monotonic()
    write(m.path / "during", noise(3 * MB, 1))
    os.rename(m.path / "before", m.path / "renamed")
    with opened(m.path / "during", os.O_RDONLY) as fd:
        os.fsync(fd)
    m.wait("nvme", timeout=20)
    assert read(m.path / "during") == noise(3 * MB, 1)
    assert time.monotonic() - begin < 10 * PATIENCE, "nobody waits for it"
    until(lambda: remote_error(m))
    assert os.getxattr(m.path / "during", "user.ckpt.state") == b"nvme"
    bring_back(m)
    m.wait("remote", timeout=60)
    assert remote_error(m) == ""
    assert read(m.remote_dir / "during") == noise(3 * MB, 1)
    assert read(m.remote_dir / "renamed") == noise(MB, 0)
    assert not (m.remote_dir / "before").exists()


def test_gone_while_the_daemon_ends(fresh):
    """umount drains to NVMe, not to a remote that is not there."""
    m = fresh(remote=True)
    write(m.path / "a", b"a")
    m.wait("remote")
    take_away(m)
    write(m.path / "b", noise(2 * MB))
    m.stop()
    bring_back(m)
    m.start()
    assert read(m.path / "b") == noise(2 * MB)
    m.wait("remote")
    assert read(m.remote_dir / "b") == noise(2 * MB)


def test_gone_at_mount_with_local_state(fresh):
    """Comes up degraded, says so, goes on; catches up when it is back."""
    m = fresh(remote=True)
    write(m.path / "a", noise(MB))
    m.wait("remote")
    m.stop()
    take_away(m)
    m.start()
    assert read(m.path / "a") == noise(MB)
    write(m.path / "b", noise(MB, "b"))
    m.wait("nvme", timeout=20)
    until(lambda: remote_error(m))
    bring_back(m)
    m.wait("remote", timeout=60)
    assert read(m.remote_dir / "b") == noise(MB, "b")


def test_another_directory_in_its_place(fresh):
    """An empty directory of the same name (an unmounted NFS) is not taken for
    the remote: nothing is published there."""
    m = fresh(remote=True)
    write(m.path / "a", b"a")
    m.wait("remote")
    take_away(m)
    os.mkdir(m.remote_dir)
    write(m.path / "b", b"b")
    m.wait("nvme")
    until(lambda: remote_error(m))
    assert [n for n in os.listdir(m.remote_dir) if n != ".ckptfs"] == []
    for folder, _, _ in os.walk(m.remote_dir, topdown=False):
        os.rmdir(folder)
    bring_back(m)
    m.wait("remote", timeout=60)
    assert read(m.remote_dir / "b") == b"b"


def test_only_copy_gone(fresh):
    """What is on the remote only cannot be read then: an error, no hang; and
    once it is back it can."""
    m = fresh(remote=True)
    write(m.path / "f", noise(3 * MB))
    write(m.path / "here", noise(MB, 1))
    m.evict("remote", m.path / "f")
    take_away(m)
    begin = time.monotonic()
    with pytest.raises(OSError):
        read(m.path / "f")
    assert time.monotonic() - begin < 60 * PATIENCE
    assert read(m.path / "here") == noise(MB, 1)
    assert os.stat(m.path / "f").st_size == 3 * MB
    bring_back(m)

    def readable():
        try:
            return read(m.path / "f") == noise(3 * MB)
        except OSError:
            return False

    until(readable, 30)


def test_read_only_for_us(fresh, mode):
    """Rights withdrawn from an ordinary user, and given back."""
    if mode != "user":
        pytest.skip("root may write everywhere")
    m = fresh(remote=True)
    write(m.path / "a", b"a")
    m.wait("remote")
    for folder, _, _ in os.walk(m.remote_dir):
        os.chmod(folder, 0o500)
    write(m.path / "b", b"b")
    m.wait("nvme")
    until(lambda: remote_error(m))
    for folder, _, _ in os.walk(m.remote_dir):
        os.chmod(folder, 0o700)
    m.wait("remote", timeout=60)
    assert read(m.remote_dir / "b") == b"b"


def test_what_is_closed_to_its_owner(fresh):
    """Modes that lock the daemon out as they lock out the user do not hold up
    what the log says."""
    m = fresh(remote=True)
    os.mkdir(m.path / "d")
    write(m.path / "d" / "x", b"x")
    write(m.path / "f", b"secret")
    os.chmod(m.path / "f", 0o200)
    os.link(m.path / "f", m.path / "g")
    os.chmod(m.path / "d", 0o555)
    m.wait("remote", timeout=30)
    assert os.lstat(m.remote_dir / "g").st_mode & 0o777 == 0o200
    take_away(m)
    for i in range(6):  # versions that are gone: a step will be due
        write(m.path / "ck", noise(200_000, i))
        m.wait("nvme")
    os.chmod(m.path / "d", 0o755)
    os.unlink(m.path / "d" / "x")
    write(m.path / "d" / "y", b"y")
    os.chmod(m.path / "d", 0o500)
    m.wait("nvme")
    bring_back(m)
    m.wait("remote", timeout=60)
    assert os.listdir(m.remote_dir / "d") == ["y"]
    assert os.lstat(m.remote_dir / "d").st_mode & 0o777 == 0o500


@pytest.mark.modes("user")
def test_nothing_stays_staged(fresh):
    """What was staged ahead, and deleted before its name was due, leaves the
    remote when the publisher steps over it."""
    if as_root(os.geteuid) != 0:
        pytest.skip("only root can close a folder to us")
    m = fresh(remote=True)
    staged = m.remote_dir / ".ckptfs" / "staged"
    for name in "de":
        os.mkdir(m.path / name)
    m.wait("remote")
    take_away(m)
    write(m.path / "first", b"x")
    until(lambda: remote_error(m))  # all that follows is read at once
    write(m.path / "d" / "held_up", b"x")
    write(m.path / "e" / "stepped_to", b"x")
    for i in range(4):
        write(m.path / f"deleted{i}", noise(MB, i))
    m.wait("nvme")
    as_root(lambda: os.chown(m.base / "away" / "d", 0, 0))
    os.rmdir(m.base / "away" / "e")  # its file cannot be placed by itself
    bring_back(m)
    until(lambda: len(os.listdir(staged)) == 6, 30)
    for i in range(4):
        os.unlink(m.path / f"deleted{i}")
    m.wait("nvme")
    uid = os.geteuid()
    as_root(lambda: os.chown(m.remote_dir / "d", uid, -1))
    m.wait("remote", timeout=60)
    assert sorted(os.listdir(m.remote_dir)) == [
        ".ckptfs", "d", "e", "first"]
    until(lambda: not os.listdir(staged), 10)
# ---- one that hangs -------------------------------------------------------

# Many threads at once; each says so when it was answered.
ASKERS = """
import os, sys, threading
def read():
    fd = os.open(sys.argv[1], os.O_RDONLY)
    os.pread(fd, 4096, 0)
def rewrite():
    os.close(os.open(sys.argv[1], os.O_RDWR))
def tensors():
    os.pread(os.open(sys.argv[1] + "/w.npy", os.O_RDONLY), 4096, 0)
def go():
    try:
        globals()[sys.argv[2]]()
    except OSError:
        pass
    os.write(1, b".")
for _ in range(int(sys.argv[3])):
    threading.Thread(target=go).start()
"""


def tensors_of(n):
    head = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (n, n)
    return struct.pack("<Q", len(head)) + head + noise(n)


@pytest.fixture
def hanging(mode, fresh):
    """A mount with a file that only a remote has that does not answer, and
    the process to wake up in the end."""
    store = fresh()
    (store.path / "r").mkdir()
    with Mounted(mode, remote=f"dir:{store.path}/r") as m:
        write(m.path / "f.safetensors", tensors_of(3 * MB))
        m.wait("remote")
        m.evict("remote", m.path / "f.safetensors")
        store.process.send_signal(signal.SIGSTOP)
        wake = threading.Timer(90 * PATIENCE, store.process.send_signal,
                               [signal.SIGCONT])
        wake.start()  # or a failure would hang, too
        yield m
        wake.cancel()
        store.process.send_signal(signal.SIGCONT)


@pytest.mark.root
@pytest.mark.modes("passthrough", "served")
@pytest.mark.parametrize("how", ["read", "rewrite", "tensors"])
def test_hangs(hanging, how):
    """Those who ask for what only it has wait, however many they are, and
    nobody else does; the daemon ends when it is told to."""
    m = hanging
    what = m.path / "f.safetensors"
    if how == "tensors":
        what = m.path / ".ckptfs" / "tensors" / "f.safetensors"
    askers = m.popen([sys.executable, "-c", ASKERS, what, how, 300],
                     stdout=-1)
    try:
        began = time.monotonic()
        while time.monotonic() - began < 4 * PATIENCE:
            start = time.monotonic()
            write(m.path / "other", noise(70_000))
            assert read(m.path / "other") == noise(70_000)
            assert time.monotonic() - start < 3 * PATIENCE
            time.sleep(0.1)
        os.set_blocking(askers.stdout.fileno(), False)
        assert not askers.stdout.read(), "it does not hang"
        m.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        m.process.send_signal(signal.SIGTERM)  # without days of grace
        assert m.ended(30) == 0
        m.process = None
        askers.wait(20 * PATIENCE)
    finally:
        askers.kill()
        askers.wait()
    m.start(remote=None)
    assert read(m.path / "other") == noise(70_000)

# SPDX-License-Identifier: Apache-2.0
"""What is on the remote alone is still there when the remote has come to a
later state in one step, whatever became of its name."""
import os
import subprocess

import pytest

from calls import noise, read, write
from mounted import Mounted, until

MB = 1 << 20
pytestmark = pytest.mark.usefixtures("has_remote")


@pytest.fixture
def theirs(mode):
    """A mount, not started: others may put files on its remote before."""
    m = Mounted(mode, remote=True)
    yield m
    m.close()


def step(m, during):
    """The remote is behind, and then the versions it has missed are gone: it
    must come to the last state in one step."""
    os.rename(m.remote_dir, m.base / "away")
    for i in range(5):
        write(m.path / "step", noise(200_000, i))
        m.wait("nvme")
    during()
    m.wait("nvme")
    os.rename(m.base / "away", m.remote_dir)
    m.wait("remote", timeout=60)
    assert read(m.remote_dir / "step") == noise(200_000, 4)


def test_linked(fresh):
    m = fresh(remote=True)
    write(m.path / "f", noise(3 * MB))
    m.evict("remote", m.path / "f")
    step(m, lambda: os.link(m.path / "f", m.path / "g"))
    assert read(m.remote_dir / "g") == noise(3 * MB)
    os.unlink(m.path / "f")
    m.wait("remote")
    assert os.listdir(m.remote_dir).count("f") == 0
    assert read(m.path / "g") == noise(3 * MB)


def test_linked_and_unlinked_of_others(theirs):
    m = theirs
    (m.remote_dir / "a").write_bytes(noise(3 * MB))
    m.start()

    def move():
        os.link(m.path / "a", m.path / "b")
        os.unlink(m.path / "a")

    step(m, move)
    assert sorted(os.listdir(m.remote_dir)) == [".ckptfs", "b", "step"]
    assert read(m.path / "b") == noise(3 * MB)
    assert read(m.remote_dir / "b") == noise(3 * MB)


def remote_error(m):
    return m.status()["tiers"][2]["error"]


def test_its_new_name_is_taken(fresh):
    """By a directory of others: the old one stays till it is gone."""
    m = fresh(remote=True)
    write(m.path / "f", noise(3 * MB))
    m.evict("remote", m.path / "f")
    (m.remote_dir / "g").mkdir()
    (m.remote_dir / "g" / "theirs").write_bytes(b"x")
    os.rename(m.path / "f", m.path / "g")
    until(lambda: "'g'" in remote_error(m))
    assert read(m.remote_dir / "f") == noise(3 * MB)
    assert read(m.path / "g") == noise(3 * MB)
    m.remount()
    until(lambda: "'g'" in remote_error(m))
    (m.remote_dir / "g" / "theirs").unlink()
    m.wait("remote")
    assert read(m.remote_dir / "g") == noise(3 * MB)
    assert not (m.remote_dir / "f").exists()


@pytest.fixture
def elsewhere(fresh, mode):
    """A mount, and in its remote a directory in which nothing can be placed:
    of another filesystem, so that no rename leads there."""
    if mode == "user":
        pytest.skip("only root can mount a filesystem")
    m = fresh(remote=True, fsync="remote")
    os.mkdir(m.path / "step-1")
    m.wait("remote")
    folder = str(m.remote_dir / "step-1")
    subprocess.run(["mount", "-t", "tmpfs", "ckptfs-test", folder], check=True)
    yield m
    if os.path.ismount(folder):
        subprocess.run(["umount", "-l", folder], check=True)


def test_what_cannot_be_placed_is_not_remote(elsewhere):
    """Nothing that was written later appears before it."""
    m = elsewhere
    write(m.path / "step-1" / "shard", noise(3 * MB))
    write(m.path / "latest", b"step-1")
    until(lambda: "'step-1/shard'" in remote_error(m))
    shard = m.path / "step-1" / "shard"
    assert os.getxattr(shard, "user.ckpt.state") == b"nvme"
    assert m.ctl("wait", m.path, "--level", "remote", "--timeout", "1",
                 check=False).returncode
    m.ctl("evict", shard, "--level", "remote", check=False)
    assert read(shard) == noise(3 * MB)
    assert not (m.remote_dir / "latest").exists()
    subprocess.run(["umount", m.remote_dir / "step-1"], check=True)
    m.wait("remote")
    assert read(m.remote_dir / "step-1" / "shard") == noise(3 * MB)
    assert read(m.remote_dir / "latest") == b"step-1"


def test_deleting_what_cannot_be_placed_lets_it_go_on(elsewhere):
    m = elsewhere
    write(m.path / "step-1" / "shard", noise(MB))
    until(lambda: "'step-1/shard'" in remote_error(m))
    os.unlink(m.path / "step-1" / "shard")
    write(m.path / "latest", b"step-0")
    m.wait("remote")
    assert read(m.remote_dir / "latest") == b"step-0"
    assert remote_error(m) == ""

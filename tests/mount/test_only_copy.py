# SPDX-License-Identifier: Apache-2.0
"""What is on the remote alone is still there when the remote has come to a
later state in one step, whatever became of its name."""
import os

import pytest

from calls import noise, read, write
from mounted import Mounted

MB = 1 << 20


@pytest.fixture(autouse=True)
def not_plain(mode):
    if mode == "plain":
        pytest.skip("a plain directory has no remote")


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

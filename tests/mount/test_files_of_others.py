# SPDX-License-Identifier: Apache-2.0
"""Files that others put on the remote carry no version: they are told by size
and time, so that none is taken for another."""
import errno
import os

import pytest

from calls import RENAME_EXCHANGE, fails, noise, read, rename2, tick, write
from mounted import Mounted
import user

MB = 1 << 20
pytestmark = pytest.mark.usefixtures("has_remote")


@pytest.fixture
def m(mode):
    """A mount, not started, on whose remote others have put a and b."""
    m = Mounted(mode, remote=True)
    for name in ("a", "b"):
        (m.remote_dir / name).write_bytes(noise(MB, name))
        if mode == "user" and os.geteuid() == 0:
            os.chown(m.remote_dir / name, user.UID, user.GID)
        tick()
    yield m
    m.close()


def test_read_before_its_rename_is_published(m):
    m.start()
    os.rename(m.path / "a", m.path / "b")
    assert read(m.path / "b") == noise(MB, "a")
    m.wait("remote")
    assert read(m.remote_dir / "b") == noise(MB, "a")
    m.remount()
    assert read(m.path / "b") == noise(MB, "a")


def test_also_one_that_looks_like_the_one_it_replaces(m):
    """The same size and time: only where it was tells."""
    for name in ("a", "b"):
        os.utime(m.remote_dir / name, (1, 10**9))
    m.start()
    os.rename(m.remote_dir, m.base / "away")
    os.rename(m.path / "a", m.path / "b")
    m.wait("nvme")
    os.rename(m.base / "away", m.remote_dir)
    assert read(m.path / "b") == noise(MB, "a")
    m.wait("remote", timeout=60)
    assert read(m.remote_dir / "b") == noise(MB, "a")


def test_exchanged(m):
    m.start()
    rename2(m.path / "a", m.path / "b", RENAME_EXCHANGE)
    m.wait("remote")
    assert read(m.remote_dir / "a") == noise(MB, "b")
    assert read(m.remote_dir / "b") == noise(MB, "a")
    assert read(m.path / "a") == noise(MB, "b")
    assert read(m.path / "b") == noise(MB, "a")


def test_with_another_time(m):
    """Set on the mount; the remote gets it, and is still known by it."""
    m.start()
    os.utime(m.path / "a", ns=(1, 10**18 + 7))
    m.wait("remote")
    assert read(m.path / "a") == noise(MB, "a")
    os.rename(m.path / "b", m.path / "c")
    os.utime(m.path / "c", ns=(1, 10**18 + 8))
    m.wait("remote")
    m.remount()
    assert read(m.path / "c") == noise(MB, "b")
    assert os.stat(m.remote_dir / "c").st_mtime_ns == 10**18 + 8


def test_changed_by_its_owner(m):
    """Neither the new bytes as far as the old ones went, nor a mix of both."""
    m.start()
    (m.remote_dir / "a").write_bytes(noise(2 * MB, "new"))
    with fails(errno.EIO):
        read(m.path / "a")
    assert read(m.path / "b") == noise(MB, "b")


def test_attributes_do_not_go_to_what_replaced_it(m):
    m.start()
    (m.remote_dir / "a").write_bytes(noise(MB, "new"))
    before = os.stat(m.remote_dir / "a").st_mtime_ns
    os.utime(m.path / "a", ns=(1, 10**18))
    m.wait("remote")
    assert os.stat(m.remote_dir / "a").st_mtime_ns == before


def test_renamed_in_one_step_after_its_owner_went_on(m):
    """What the owner has added is not removed with the old name. (He may
    have added it right before it was renamed.)"""
    m.start()
    os.rename(m.remote_dir, m.base / "away")
    for i in range(5):
        write(m.path / "step", noise(200_000, i))
        m.wait("nvme")
    os.rename(m.path / "a", m.path / "archive")
    m.wait("nvme")
    with open(m.base / "away" / "a", "ab") as f:
        f.write(b"more")
    os.rename(m.base / "away", m.remote_dir)
    m.wait("remote", timeout=60)
    assert noise(MB, "a") + b"more" in [
        read(m.remote_dir / name) for name in ("a", "archive")
        if (m.remote_dir / name).exists()]

# SPDX-License-Identifier: Apache-2.0
"""An empty machine with the same remote: everything is there, and goes on."""
import os
import shutil

import pytest

from calls import (describe, difference, noise, opened, read, tick, tree,
                   write)
from mounted import Mounted, until
from user import as_root

MB = 1 << 20
pytestmark = pytest.mark.usefixtures("has_remote")


@pytest.fixture
def pair(mode, fresh):
    """A mount with a remote, and a function that loses this machine and
    mounts on another: pair[1]()."""
    first = fresh(remote=True)
    others = []

    def another(**options):
        for one in [first, *others]:
            if one.process:
                one.kill()
                one.unmount(lazy=True)
        one = Mounted(mode, remote=f"dir:{first.remote_dir}", **options)
        others.append(one)
        return one.start()

    yield first, another
    for one in others:
        one.close()


def populate(top):
    """One of each kind, as trainers and people leave them."""
    (top / "step-100" / "sub").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "closed").mkdir(mode=0o750)
    write(top / "step-100" / "rank0.pt", noise(9 * MB + 5, 0))
    write(top / "step-100" / "rank1.pt", noise(70_000, 1))
    write(top / "step-100" / "sub" / "tiny", b"t")
    write(top / "step-100" / "nothing", b"")
    with opened(top / "sparse", os.O_CREAT | os.O_RDWR) as fd:
        os.pwrite(fd, b"end", 20 * MB)
    write(top / "script.sh", b"#!/bin/sh\n", 0o755)
    os.chmod(top / "script.sh", 0o751)
    os.symlink("step-100", top / "latest")
    os.symlink("/no/where at all", top / "dangling")
    os.link(top / "step-100" / "rank1.pt", top / "hard")
    os.setxattr(top / "step-100" / "rank0.pt", "user.note", b"\0\xff binary")
    os.setxattr(top / "empty", "user.dir", b"yes")
    write(top / "Ünïcode näme\t", b"odd")
    write(top / ("n" * 255), b"long")
    os.chmod(top / "step-100" / "rank1.pt", 0o400)
    if os.geteuid() == 0:
        os.chown(top / "step-100" / "rank0.pt", 1001, 1002)
        os.lchown(top / "dangling", 1003, 1004)
        os.chown(top / "closed", 1001, 1002)
    os.utime(top / "step-100" / "rank0.pt",
             ns=(1_500_000_000_000_000_001, 1_600_000_000_123_456_789))
    os.utime(top / "latest", ns=(1, 1_600_000_000_000_000_007),
             follow_symlinks=False)
    os.utime(top / "empty", ns=(1, 1_500_000_000_111_111_111))
    os.utime(top / "step-100", ns=(1, 1_400_000_000_222_222_222))


def test_everything_comes_back(pair):
    first, another = pair
    populate(first.path)
    before = tree(first.path)
    root = describe(first.path)
    first.wait("remote")
    second = another()
    assert difference(before, tree(second.path)) == ""
    assert describe(second.path)["xattrs"] == root["xattrs"]
    for name in ("step-100/rank0.pt", "latest", "empty"):
        assert os.getxattr(second.path / name,
                           "user.ckpt.state") == b"remote"


def test_and_it_goes_on_writing(pair):
    first, another = pair
    populate(first.path)
    first.wait("remote")
    second = another()
    write(second.path / "step-100" / "rank0.pt", noise(3 * MB, "new"))
    os.rename(second.path / "script.sh", second.path / "moved.sh")
    (second.path / "step-200").mkdir()
    write(second.path / "step-200" / "rank0.pt", noise(2 * MB, 200))
    os.unlink(second.path / "latest")
    os.symlink("step-200", second.path / "latest")
    os.unlink(second.path / "sparse")
    shutil.rmtree(second.path / "closed")
    before = tree(second.path)
    second.wait("remote")
    third = another()
    assert difference(before, tree(third.path)) == ""


def test_objects_are_plain_files_at_plain_names(pair):
    first, _ = pair
    (first.path / "step-1").mkdir()
    write(first.path / "step-1" / "rank0.pt", noise(5 * MB))
    write(first.path / "small", b"small")
    first.wait("remote")
    assert read(first.remote_dir / "step-1" / "rank0.pt") == noise(5 * MB)
    assert read(first.remote_dir / "small") == b"small"
    visible = [n for n in os.listdir(first.remote_dir)
               if not n.startswith(".")]
    assert sorted(visible) == ["small", "step-1"]


def test_rename_and_delete_reach_the_remote(pair):
    first, another = pair
    for i in range(3):
        (first.path / f"tmp-{i}").mkdir()
        write(first.path / f"tmp-{i}" / "f", noise(100_000, i))
    first.wait("remote")
    os.rename(first.path / "tmp-0", first.path / "step-0")
    shutil.rmtree(first.path / "tmp-1")
    os.rename(first.path / "tmp-2" / "f", first.path / "f")
    first.wait("remote")
    visible = sorted(n for n in os.listdir(first.remote_dir)
                     if not n.startswith("."))
    assert visible == ["f", "step-0", "tmp-2"]
    assert os.listdir(first.remote_dir / "tmp-2") == []
    before = tree(first.path)
    assert difference(before, tree(another().path)) == ""


def test_overwritten_in_place_on_the_remote(pair):
    """Whoever reads the remote meanwhile sees the old or the new one."""
    first, another = pair
    old, new = noise(6 * MB, "old"), noise(5 * MB, "new")
    write(first.path / "f", old)
    first.wait("remote")
    write(first.path / "f", new)
    seen = set()
    until(lambda: seen.add(read(first.remote_dir / "f")) or new in seen)
    assert seen <= {old, new}
    first.wait("remote")
    assert read(another().path / "f") == new


def test_attributes_changed_later(pair):
    """chmod, times, xattrs of what is on the remote already."""
    first, another = pair
    for name in ("a", "b", "c"):
        write(first.path / name, noise(200_000, name))
    (first.path / "d").mkdir()
    first.wait("remote")
    tick()
    os.chmod(first.path / "a", 0o640)
    os.utime(first.path / "b", ns=(5, 1_300_000_000_000_000_003))
    os.setxattr(first.path / "c", "user.later", b"1")
    os.chmod(first.path / "d", 0o700)
    os.setxattr(first.path / "c", "user.gone", b"1")
    os.removexattr(first.path / "c", "user.gone")
    before = tree(first.path)
    first.wait("remote")
    assert difference(before, tree(another().path)) == ""


def test_special_files_stay_local(pair):
    first, another = pair
    os.mkfifo(first.path / "fifo")
    write(first.path / "f", b"x")
    first.wait("remote", timeout=20)
    assert os.listdir(another().path) == ["f"]


def test_files_that_others_put_there(pair):
    first, another = pair
    write(first.path / "ours", b"ours")
    first.wait("remote")
    (first.remote_dir / "theirs").mkdir(mode=0o755)
    os.chmod(first.remote_dir / "theirs", 0o755)
    (first.remote_dir / "theirs" / "model.bin").write_bytes(noise(5 * MB))
    second = another()
    assert read(second.path / "theirs" / "model.bin") == noise(5 * MB)
    assert read(second.path / "ours") == b"ours"


@pytest.mark.modes("user")
def test_what_others_closed_to_us(pair):
    """It is left out; all else is there."""
    if as_root(os.geteuid) != 0:
        pytest.skip("only root can close a folder to us")
    first, another = pair
    write(first.path / "ours", b"ours")
    first.wait("remote")
    as_root(lambda: os.mkdir(first.remote_dir / "lost+found", 0o700))
    second = another()
    assert os.listdir(second.path) == ["ours"]
    assert read(second.path / "ours") == b"ours"


def test_large_file_is_fetched_in_parts(pair):
    """And may be read from the middle before it is all here."""
    first, another = pair
    data = b"".join(noise(MB, i) for i in range(40))
    write(first.path / "f", data)
    first.wait("remote")
    second = another()
    with opened(second.path / "f", os.O_RDONLY) as fd:
        assert os.pread(fd, MB, 30 * MB) == noise(MB, 30)
        assert os.pread(fd, 100, 40 * MB - 50) == data[-50:]
    assert read(second.path / "f") == data
    second.remount()
    assert read(second.path / "f") == data


def test_damage_on_the_remote_is_not_handed_out(pair):
    first, another = pair
    write(first.path / "f", noise(6 * MB))
    write(first.path / "g", noise(MB))
    first.wait("remote")
    s = os.stat(first.remote_dir / "f")
    with opened(first.remote_dir / "f") as fd:
        os.pwrite(fd, b"damage", 5 * MB)
    os.utime(first.remote_dir / "f", ns=(s.st_atime_ns, s.st_mtime_ns))
    second = another()
    with pytest.raises(OSError):
        read(second.path / "f")
    assert read(second.path / "g") == noise(MB)
    assert second.alive()


def test_remote_as_source(pair, mode):
    """ckptfs dir:/path MNT is the same as remote=."""
    first, another = pair
    write(first.path / "f", b"x")
    first.wait("remote")
    second = another()
    second.stop()
    command = second.command()
    command[command.index("none")] = f"dir:{first.remote_dir}"
    command[-1] = ",".join(w for w in command[-1].split(",")
                           if not w.startswith("remote="))
    with open(second.log, "ab") as log:
        second.process = second.popen(command, stdout=log, stderr=log)
    until(second._is_up, 60)
    assert read(second.path / "f") == b"x"
    assert second.status()["remote"].endswith(str(first.remote_dir))


def test_joined_while_there_is_something_to_flush(fresh):
    """remote= comes to a mount whose daemon died with unflushed data: what is
    deleted afterwards does not come back from there."""
    m = fresh(flush_rate="1M")
    for name in ("f", "g"):
        write(m.path / name, noise(5 * MB, name))
    m.kill()
    m.start(flush_rate=None, remote=f"dir:{m.remote_dir}")
    m.wait("remote")
    os.rename(m.remote_dir, m.base / "away")
    os.unlink(m.path / "f")
    m.stop()
    os.rename(m.base / "away", m.remote_dir)
    m.start()
    assert os.listdir(m.path) == ["g"]
    m.wait("remote")
    assert sorted(os.listdir(m.remote_dir)) == [".ckptfs", "g"]

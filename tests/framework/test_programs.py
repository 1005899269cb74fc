# SPDX-License-Identifier: Apache-2.0
"""cp, mv, tar, rsync and dd, to and from a mount: everything they carry
arrives, and is there again after DRAM is lost."""
import os
import subprocess

import pytest

from calls import describe, difference, noise, tree, write

pytestmark = pytest.mark.modes("passthrough", "served")


def run(*command, **more):
    subprocess.run([str(c) for c in command], check=True, timeout=120, **more)


@pytest.fixture
def source(tmp_path):
    top = tmp_path / "source"
    (top / "deep" / "er").mkdir(parents=True)
    write(top / "small", noise(1000))
    write(top / "deep" / "large", noise(5_000_000))
    write(top / "deep" / "er" / "empty", b"")
    os.symlink("../small", top / "deep" / "link")
    os.utime(top / "deep" / "link", ns=(10**18, 10**18),
             follow_symlinks=False)
    os.chmod(top / "small", 0o640)
    os.setxattr(top / "small", "user.note", b"kept")
    for i, name in enumerate(("small", "deep/large", "deep/er", "deep")):
        os.utime(top / name, ns=(10**18 + i, 1234567890123456789 + i))
    return top


def arrived(m, source, target):
    want = tree(source)
    assert difference(tree(target), want) == ""
    m.wait("nvme")
    m.lose_dram()
    assert difference(tree(target), want) == ""


def test_cp(fresh, source):
    m = fresh()
    run("cp", "-a", source, m.path / "copy")
    arrived(m, source, m.path / "copy")


def test_cp_within_the_mount(fresh, source):
    m = fresh()
    run("cp", "-a", source, m.path / "one")
    run("cp", "-a", m.path / "one", m.path / "two")
    arrived(m, source, m.path / "two")


def test_mv_there_and_back(fresh, source, tmp_path):
    m = fresh()
    want = tree(source)
    run("mv", source, m.path / "moved")
    assert difference(tree(m.path / "moved"), want) == ""
    run("mv", m.path / "moved", tmp_path / "back")
    assert difference(tree(tmp_path / "back"), want) == ""
    assert os.listdir(m.path) == []


def test_tar(fresh, source):
    m = fresh()
    run("tar", "--xattrs", "-C", source.parent, "-cf", m.path / "a.tar",
        source.name)
    run("tar", "--xattrs", "-C", m.path, "-xf", m.path / "a.tar")
    # tar's own format keeps whole seconds: compare what it keeps.
    want = tree(source, times=False)
    assert difference(tree(m.path / source.name, times=False), want) == ""
    m.wait("nvme")
    m.lose_dram()
    assert difference(tree(m.path / source.name, times=False), want) == ""


def test_rsync(fresh, source):
    m = fresh()
    run("rsync", "-aX", f"{source}/", m.path / "synced")
    write(source / "small", noise(2000))
    run("rsync", "-aX", "--delete", f"{source}/", m.path / "synced")
    arrived(m, source, m.path / "synced")


def test_dd_direct(fresh, tmp_path):
    m = fresh()
    data = write(tmp_path / "data", noise(8 << 20))
    run("dd", f"if={data}", f"of={m.path / 'f'}", "bs=1M", "oflag=direct",
        stderr=subprocess.DEVNULL)
    run("cmp", data, m.path / "f")
    m.wait("nvme")
    m.lose_dram()
    run("dd", f"if={m.path / 'f'}", f"of={tmp_path / 'back'}", "bs=1M",
        "iflag=direct", stderr=subprocess.DEVNULL)
    assert describe(tmp_path / "back", times=False)["sha256"] == describe(
        data, times=False)["sha256"]

# SPDX-License-Identifier: Apache-2.0
"""cp, mv, tar, rsync, dd and their kin."""
import os
import shutil
import subprocess

import pytest

from calls import (difference, digest, noise, opened, read, tree, write)
from mounted import missing

MB = 1 << 20

pytestmark = pytest.mark.modes("passthrough", "served")


def sh(*words, check=True):
    if not shutil.which(str(words[0])):
        missing(f"no {words[0]}")
    r = subprocess.run([str(w) for w in words], capture_output=True,
                       text=True)
    if check:
        assert r.returncode == 0, f"{words}: {r.stdout}{r.stderr}"
        assert r.stderr == "" or words[0] == "dd", r.stderr
    return r


def populate(top):
    (top / "sub" / "empty").mkdir(parents=True)
    write(top / "large", noise(9 * MB + 7))
    write(top / "small", b"s")
    write(top / "nothing", b"")
    write(top / "sub" / "mode", b"x")
    os.chmod(top / "sub" / "mode", 0o751)
    with opened(top / "sparse", os.O_CREAT | os.O_RDWR) as fd:
        os.pwrite(fd, b"mid", 12 * MB)
        os.ftruncate(fd, 30 * MB)
    os.symlink("large", top / "link")
    os.symlink("nowhere", top / "dangling")
    os.mkfifo(top / "fifo")
    os.link(top / "large", top / "hard")
    os.setxattr(top / "large", "user.note", b"\0\xff")
    os.setxattr(top / "sub", "user.dir", b"yes")
    if os.geteuid() == 0:
        os.chown(top / "small", 1001, 1002)
    # All of them long ago: rsync compares seconds only.
    for i, name in enumerate(("large", "small", "nothing", "sparse", "link",
                              "dangling", "fifo", "sub/mode", "sub/empty",
                              "sub")):
        stamp = 1_500_000_000_123_456_789 + i * 1_000_000_001
        os.utime(top / name, ns=(stamp, stamp), follow_symlinks=False)
    return top


@pytest.fixture(params=["onto the mount", "off the mount", "within"])
def places(request, d, plain):
    """(source folder with things in it, where to)"""
    source = plain if request.param == "onto the mount" else d
    target = plain if request.param == "off the mount" else d
    (source / "from").mkdir()
    return populate(source / "from"), target / "to"


def check(want, got, m):
    assert difference(want, tree(got)) == ""
    if str(got).startswith(str(m.path)):
        m.evict("nvme", got)
        assert difference(want, tree(got)) == ""


def test_cp_a(places, m):
    source, target = places
    want = tree(source)
    sh("cp", "-a", source, target)
    check(want, target, m)
    assert os.stat(target / "hard").st_nlink == 2
    assert os.stat(target / "sparse").st_blocks * 512 < 20 * MB


@pytest.mark.parametrize("flags", [["--sparse=always"], ["--reflink=auto"],
                                   ["-p"], ["--preserve=all"]])
def test_cp_flags(d, m, plain, flags):
    populate(plain)
    want = tree(plain, times=False, owner=False)
    for name in ("fifo",):
        os.unlink(plain / name)
        del want[name]
    sh("cp", "-r", *flags, plain, d / "to")
    got = tree(d / "to", times=False, owner=False)
    for name in want:  # plain -r keeps neither xattrs nor all modes
        assert got[name].get("sha256") == want[name].get("sha256"), name


def test_cp_reflink_always_is_refused_or_right(d):
    write(d / "a", noise(3 * MB))
    r = sh("cp", "--reflink=always", d / "a", d / "b", check=False)
    if r.returncode == 0:
        assert read(d / "b") == noise(3 * MB)
    else:
        assert "not supported" in r.stderr or "cross-device" in r.stderr


def test_mv(places, m):
    source, target = places
    want = tree(source)
    sh("mv", source, target)
    assert not os.path.lexists(source)
    check(want, target, m)


def test_mv_over(d, m):
    write(d / "a", b"new")
    write(d / "b", b"old")
    sh("mv", "-n", d / "a", d / "b", check=False)
    assert read(d / "b") == b"old"
    sh("mv", "-f", d / "a", d / "b")
    assert read(d / "b") == b"new"
    sh("mv", "-T", d / "b", d / "c")
    assert os.listdir(d) == ["c"]


def test_tar(places, m, plain):
    source, target = places
    want = tree(source)
    archive = target.parent / "a.tar"
    sh("tar", "--xattrs", "--xattrs-include=*", "--sparse", "-cpf", archive,
       "-C", source, ".")
    target.mkdir()
    sh("tar", "--xattrs", "--xattrs-include=*", "-xpf", archive, "-C", target)
    for one in (want, got := tree(target)):  # seconds only in this format
        for what in one.values():
            what["mtime"] //= 1_000_000_000
    assert difference(want, got) == ""
    sh("tar", "-df", archive, "-C", target)


def test_rsync(places, m):
    source, target = places
    want = tree(source)
    sh("rsync", "-aXHS", f"{source}/", f"{target}/")
    check(want, target, m)
    r = sh("rsync", "-aXHSi", f"{source}/", f"{target}/")
    assert r.stdout == "", "nothing is left to do"
    write(source / "small", b"changed")
    os.unlink(source / "nothing")
    want = tree(source)
    sh("rsync", "-aXHS", "--delete", f"{source}/", f"{target}/")
    check(want, target, m)
    r = sh("rsync", "-aXHSnc", "-i", "--delete", f"{source}/", f"{target}/")
    assert r.stdout == ""


@pytest.mark.parametrize("flags", [["--inplace"], ["--append"],
                                   ["--inplace", "--no-whole-file"]])
def test_rsync_in_place(d, m, plain, flags):
    write(plain / "f", noise(6 * MB))
    write(d / "f", noise(6 * MB)[:2 * MB])
    m.evict("nvme", d)
    sh("rsync", *flags, plain / "f", d / "f")
    assert read(d / "f") == noise(6 * MB)
    m.evict("nvme", d)
    assert read(d / "f") == noise(6 * MB)


def test_dd_direct(d, m, plain):
    write(plain / "in", noise(8 * MB))
    sh("dd", f"if={plain}/in", f"of={d}/f", "bs=1M", "oflag=direct")
    assert digest(d / "f") == digest(plain / "in")
    m.evict("nvme", d)
    sh("dd", f"if={d}/f", f"of={plain}/out", "bs=1M", "iflag=direct")
    assert digest(plain / "out") == digest(plain / "in")


@pytest.mark.parametrize("words", [
    ["oflag=sync"], ["oflag=dsync"], ["conv=fsync"], ["conv=fdatasync"],
    ["conv=sparse"], ["oflag=append", "conv=notrunc"], ["oflag=nofollow"],
    ["conv=excl"]])
def test_dd_flags(d, m, plain, words):
    write(plain / "in", noise(2 * MB) + bytes(2 * MB) + noise(MB, 1))
    sh("dd", f"if={plain}/in", f"of={d}/f", "bs=512K", *words)
    assert digest(d / "f") == digest(plain / "in")
    m.evict("nvme", d)
    assert digest(d / "f") == digest(plain / "in")


def test_dd_seek_and_skip(d, m):
    write(d / "in", noise(4 * MB))
    sh("dd", f"if={d}/in", f"of={d}/f", "bs=64K", "skip=16", "seek=32",
       "count=8")
    m.evict("nvme", d)
    assert read(d / "f") == bytes(2 * MB) + noise(4 * MB)[MB:MB + 512 * 1024]


def test_truncate_fallocate_tools(d):
    sh("truncate", "-s", "3M", d / "f")
    assert os.stat(d / "f").st_size == 3 * MB
    sh("fallocate", "-l", "5M", d / "f")
    assert os.stat(d / "f").st_size == 5 * MB
    sh("fallocate", "-p", "-o", "1M", "-l", "1M", d / "f")
    sh("fallocate", "-d", d / "f")
    assert read(d / "f") == bytes(5 * MB)


def test_install_ln_find_du_df(d, plain):
    write(plain / "prog", b"#!/bin/sh\n")
    sh("install", "-m", "755", plain / "prog", d / "prog")
    sh("ln", "-s", "prog", d / "s")
    sh("ln", d / "prog", d / "h")
    sh("ln", "-sfn", "h", d / "s")
    assert os.readlink(d / "s") == "h"
    found = sh("find", d, "-newer", plain / "prog", "-type", "f").stdout
    assert len(found.split()) in (0, 2)
    write(d / "large", noise(4 * MB))
    used = int(sh("du", "-sk", d).stdout.split()[0])
    assert 4096 <= used < 8192
    assert str(d.parent) in sh("df", "-k", d).stdout or True
    sh("chmod", "-R", "u=rwX,go=rX", d)
    sh("touch", "-d", "2020-01-02 03:04:05.123456789", d / "h")
    assert os.stat(d / "prog").st_mtime_ns % 1_000_000_000 == 123456789
    sh("rm", "-rf", d / "large", d / "h", d / "s", d / "prog")
    assert os.listdir(d) == []


def test_git_works_here(d):
    """A thorough user of rename, link, mmap and locks."""
    def git(*words):
        return sh("git", "-C", d, "-c", "user.name=a", "-c",
                  "user.email=a@b", "-c", "commit.gpgsign=false", *words,
                  check=False)

    assert git("init", "-q").returncode == 0
    for i in range(30):
        write(d / f"f{i}", noise(3000, i))
    assert git("add", ".").returncode == 0
    assert git("commit", "-qm", "one").returncode == 0
    assert git("gc", "-q").returncode == 0
    assert git("fsck", "--strict").returncode == 0
    assert git("status", "--porcelain").stdout == ""


def test_shutil_copytree_and_move(d, m, plain):
    (plain / "t").mkdir()
    populate(plain / "t")
    os.unlink(plain / "t" / "fifo")
    want = tree(plain / "t", owner=False)
    shutil.copytree(plain / "t", d / "t", symlinks=True)
    for what in (got := tree(d / "t", owner=False)).values():
        what.pop("times", None)
    for name in want:
        if "target" not in want[name]:
            assert got[name] == want[name], name
    shutil.move(d / "t", plain / "back")
    assert not (d / "t").exists()
    shutil.move(plain / "back", d / "again")
    got = tree(d / "again", owner=False)
    for name in want:
        if "target" not in want[name]:
            assert got[name] == want[name], name

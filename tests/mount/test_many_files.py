# SPDX-License-Identifier: Apache-2.0
"""Very many small files, and trees that go while they are still moving."""
import os
import random
import shutil

import pytest

import mounted
from calls import noise, read, tree, write
from mounted import until

FULL = 10_000 if mounted.SANITIZED else 100_000


def small(i):
    return b"%d:" % i + noise(100 + i % 400, i % 50)


@pytest.mark.limit(200)
@pytest.mark.modes("passthrough", "served")
def test_hundred_thousand_small_files(fresh, mode):
    """Saved, flushed, remounted, read, removed."""
    n = FULL if mode == "passthrough" else FULL // 10
    m = fresh()
    for i in range(n):
        if i % 1000 == 0:
            folder = m.path / f"d{i // 1000:03}"
            folder.mkdir()
        write(folder / f"f{i}", small(i))
    m.wait("nvme")
    m.remount()
    found = 0
    for k in range(n // 1000):
        with os.scandir(m.path / f"d{k:03}") as entries:
            for e in entries:
                found += 1
                assert e.stat().st_size == len(small(int(e.name[1:])))
    assert found == n
    for i in random.Random(1).sample(range(n), n // 20):
        assert read(m.path / f"d{i // 1000:03}" / f"f{i}") == small(i)
    for k in range(n // 1000):
        shutil.rmtree(m.path / f"d{k:03}")
    assert os.listdir(m.path) == []
    m.wait("nvme")
    m.lose_dram()
    assert os.listdir(m.path) == []


def checkpoint(top, step, files=12):
    top = top / f"step-{step}"
    top.mkdir()
    for i in range(files):
        write(top / f"rank-{i}.pt", noise(400_000 + i, (step, i)))
    return top


def same(top, step, files=12):
    return all(read(top / f"step-{step}" / f"rank-{i}.pt")
               == noise(400_000 + i, (step, i)) for i in range(files))


def test_rmtree_while_the_flush_is_behind(fresh):
    m = fresh(flush_rate="16M")
    for step in range(6):
        checkpoint(m.path, step)
        if step >= 2:
            shutil.rmtree(m.path / f"step-{step - 2}")
    assert sorted(os.listdir(m.path)) == ["step-4", "step-5"]
    m.wait("nvme")
    m.lose_dram()
    assert sorted(os.listdir(m.path)) == ["step-4", "step-5"]
    assert same(m.path, 4) and same(m.path, 5)


def test_rmtree_while_the_publisher_is_behind(fresh, mode):
    """What was removed again leaves nothing on the remote."""
    if mode == "plain":
        pytest.skip("a plain directory has no remote")
    m = fresh(remote=True)
    for step in range(8):
        checkpoint(m.path, step, 4)
        write(m.path / "latest", b"step-%d" % step)
        if step >= 2:
            shutil.rmtree(m.path / f"step-{step - 2}")
    m.wait("remote")
    visible = sorted(n for n in os.listdir(m.remote_dir)
                     if not n.startswith("."))
    assert visible == ["latest", "step-6", "step-7"]
    assert read(m.remote_dir / "latest") == b"step-7"
    assert same(m.remote_dir, 6, 4) and same(m.remote_dir, 7, 4)


def test_removed_before_it_was_flushed_frees_all(fresh):
    m = fresh(flush_rate="8M")
    for step in range(4):
        checkpoint(m.path, step)
    for step in range(4):
        shutil.rmtree(m.path / f"step-{step}")
    m.wait("nvme")
    if not m.plain:
        until(lambda: m.status()["counts"]["unflushed"] == 0)
    m.remount()
    assert os.listdir(m.path) == []
    if not m.plain:
        held = sum(f.stat().st_size for f in m.nvme.rglob("*")
                   if f.is_file() and f.stat().st_size == 400_000)
        assert held == 0


def test_wide_and_deep(fresh):
    m = fresh()
    for a in range(12):
        for b in range(6):
            path = m.path / f"a{a}" / f"b{b}" / "c" / "d"
            path.mkdir(parents=True)
            write(path / "f", small(a * 100 + b))
            os.symlink("f", path / "link")
    before = tree(m.path)
    m.remount()
    assert tree(m.path) == before

# SPDX-License-Identifier: Apache-2.0
"""Each fault point fails once, in a script that passes all of them. The daemon
lives, what failed left no trace and works when it is done again, all that an
fsync promised is there when the DRAM is lost, the remote converges, and fsck
finds nothing. $CKPTFS_FAULT_FULL=1: at every pass of every point."""
import os

import pytest

import calls
import journal
import mounted
import sweep

pytestmark = [pytest.mark.modes("passthrough", "served"), pytest.mark.root]
N = 24


def counts(mode):
    """How often the script passes each point."""
    m = sweep.Faulty(mode, remote=True)
    try:
        m.begin("log")
        work = sweep.Errors(m)
        work.run()
        work.finish()
        m.wait("remote")
        assert not work.failed
        return m.passed()
    finally:
        m.close()


@pytest.mark.limit(3600 if sweep.FULL else 240)
def test_each_fails_once(mode):
    sweep.need_faults()
    passed, _ = counts(mode)
    n_fired, wrong = 0, []
    for fault in sweep.sample(passed, journal.seeds(f"errors-{mode}")[0], N):
        try:
            fired, failed = sweep.one_error(mode, fault)
        except AssertionError as e:
            wrong.append("\n".join([str(e), *e.__notes__]))
            continue
        n_fired += fired
        for op, error in failed:
            print(f"{fault}: {op}: {error}")
    print(f"{n_fired} fired, {len(wrong)} went wrong")
    assert not wrong, "\n\n".join(wrong)
    assert n_fired >= len(passed) // 2, "hardly any fired"


@pytest.mark.parametrize("fault", ["seal.log", "seal.read"])
def test_a_seal_that_fails_is_not_passed(mode, fault):
    """A file was closed, and its seal fails, for whatever reason: an fsync of
    something else does not promise it, nothing is logged ahead of it, and it
    is tried again."""
    sweep.need_faults()
    m = sweep.Faulty(mode)
    data = calls.noise(200_000)
    try:
        assert m.begin(f"{fault}:1")
        calls.write(m.path / "shard", data)
        mkdir = calls.errno_of(os.mkdir, m.path / "later")
        with calls.opened(m.path, os.O_RDONLY) as fd:
            mounted.until(lambda: not calls.errno_of(os.fsync, fd), 30)
        assert m.fired()
        m.lose_dram()
        assert calls.read(m.path / "shard") == data
        assert (m.path / "later").exists() == (mkdir == 0)
        assert not m.status()["tiers"][0]["error"]
    finally:
        m.close()


def test_an_open_that_fails_truncates_nothing(mode):
    sweep.need_faults()
    m = sweep.Faulty(mode)
    try:
        assert m.begin("open.handle:2")
        data = calls.noise(800_000)
        f = calls.write(m.path / "f", data)
        m.wait("nvme")
        assert calls.errno_of(os.open, f, os.O_WRONLY | os.O_TRUNC)
        assert m.fired()
        assert calls.read(f) == data
    finally:
        m.close()


@pytest.mark.parametrize("over", ["nothing", "directory", "symlink"])
def test_a_rename_does_not_pass_it(mode, over):
    """Nor over something that is there: that frees room, as rm does, but it
    is not what makes room."""
    sweep.need_faults()
    m = sweep.Faulty(mode)
    try:
        assert m.begin("seal.log:1")
        new, old = m.path / "step.tmp", m.path / "step"
        os.mkdir(m.path / "dir")
        if over == "symlink":
            os.symlink("dir", old)
            os.symlink("dir", new)
        else:
            os.mkdir(new)
        if over == "directory":
            os.mkdir(old)
        fd = os.open(m.path / "dir" / "shard", os.O_WRONLY | os.O_CREAT)
        calls.write_all(fd, calls.noise(100_000))
        other = os.dup(fd)  # as a forked worker has it
        os.close(fd)
        mounted.until(lambda: not calls.errno_of(os.rename, new, old), 30)
        os.close(other)
        m.wait("nvme")
        assert m.fired()
        shard, top = (int(os.getxattr(p, "user.ckpt.seq"))
                      for p in (m.path / "dir" / "shard", m.path))
        assert shard < top, "the rename, which changed the top, came first"
    finally:
        m.close()


@pytest.mark.parametrize("nth", [1, 17, 39])
def test_one_of_many_seals_fails(mode, nth):
    """Files closed one after the other are sealed many at a time. One cannot
    be: those behind it wait, and the order of their numbers stays."""
    sweep.need_faults()
    m = sweep.Faulty(mode)
    names = [f"f{n}" for n in range(80)]
    try:
        assert m.begin(f"seal.log:{nth}")
        for name in names:
            calls.write(m.path / name, calls.noise(5000, name))
        with calls.opened(m.path, os.O_RDONLY) as fd:
            mounted.until(lambda: not calls.errno_of(os.fsync, fd), 30)
        assert m.fired()
        seqs = [int(os.getxattr(m.path / n, "user.ckpt.seq")) for n in names]
        assert seqs == sorted(set(seqs))
        m.lose_dram()
        for name in names:
            assert calls.read(m.path / name) == calls.noise(5000, name)
    finally:
        m.close()


@pytest.mark.parametrize("nth", range(25, 31))
def test_a_commit_of_seals_fails(mode, nth):
    """None of them is flushed before its commit has passed: what is tried
    again has the same file on NVMe."""
    sweep.need_faults()
    m = sweep.Faulty(mode, faulty="write:delay=20ms", dram="512M")
    data = {f"f{n}": calls.noise(300_000, n) for n in range(24)}
    try:
        assert m.begin(f"txn.commit:{nth}")
        fds = {name: os.open(m.path / name, os.O_WRONLY | os.O_CREAT)
               for name in data}
        for name, fd in fds.items():
            calls.write_all(fd, data[name])
        for fd in fds.values():
            os.close(fd)
        for n in range(5):
            calls.errno_of(os.mkdir, m.path / f"d{n}")
        with calls.opened(m.path, os.O_RDONLY) as fd:
            mounted.until(lambda: not calls.errno_of(os.fsync, fd), 30)
        assert m.fired()
        m.wait("nvme")
        m.lose_dram()
        for name, expected in data.items():
            assert calls.read(m.path / name) == expected
    finally:
        m.close()

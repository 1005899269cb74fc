# SPDX-License-Identifier: Apache-2.0
"""An NVMe tier that fails (-o faulty=, engine/tier_faulty.c says how): who
asked is told, the status says so, the watermark waits, and when the fault
has passed nothing is lost. The daemon lives on."""
import errno
import os
import random
import time

import pytest

import calls
import journal
import mounted
import oplist
import power

pytestmark = [pytest.mark.modes("passthrough", "served"), pytest.mark.root]
MB = 1 << 20


def nvme(m):
    return m.status()["tiers"][1]


def rules(*specs):
    """As one option: commas in it are not the end of it."""
    return "\\,".join(specs)


def fsync(path):
    with calls.opened(path, os.O_RDONLY) as fd:
        return calls.errno_of(os.fsync, fd)


@pytest.mark.modes("passthrough")
@pytest.mark.parametrize("spec,told", [
    ("write:error=EIO:times=3", errno.EIO),
    ("write:full:times=3", errno.ENOSPC),
    ("sync:error=EIO:times=3", errno.EIO),
    ("sync_names:error=EIO:times=3", errno.EIO),
    ("create:error=EIO:times=3", None),
    ("preallocate:error=ENOSPC:times=3", None),
    ("open:error=EIO:times=2", None),
])
def test_error_is_told(fresh, spec, told):
    """By fsync and in the status, as long as it lasts; then all is well."""
    m = fresh(faulty=spec)
    path = m.path / "f"
    errors, shown = [], []
    try:
        calls.write(path, calls.noise(5 * MB))
    except OSError as e:  # at close: no room could be set aside
        errors.append(e.errno)
    calls.write(m.path / "small", b"small")

    def passes():
        error = fsync(path)
        if error:
            errors.append(error)
            shown.append(nvme(m)["error"])
        return error == 0

    mounted.until(passes, 60, 0.05)
    assert set(errors) <= {told or errno.EIO, errno.ENOSPC}, errors
    if told:
        assert told in errors, "no fsync said a word"
        assert any(shown), "the status knew nothing"
    assert nvme(m)["error"] == ""
    assert m.alive()
    m.lose_dram(faulty=None)
    assert calls.read(m.path / "f") == calls.noise(5 * MB)
    assert calls.read(m.path / "small") == b"small"


def failing(m, spec, seed, seconds=1.5, **more):
    """A job on a failing tier, for a while."""
    one = Here(m)
    try:
        work = journal.Work(one, seed, tolerate=True, **more)
        mounted.until(lambda: nvme(m)["error"] != "", 60)
        time.sleep(seconds)
        assert m.alive(), f"{spec} killed it: {m.log_tail()}"
        assert os.listdir(m.path)
    finally:
        one.end_processes()
    return work.read()


class Here:
    def __init__(self, m):
        self.m, self.processes = m, []

    def spawn(self, command):
        self.processes.append(self.m.popen(command))
        return self.processes[-1]

    def end_processes(self):
        for p in self.processes:
            p.kill()
            p.wait()


def may_fail(work):
    """Opening for writing what cannot be flushed may say so, too."""
    return not work.error or work.error[1] == errno.EIO \
        and work.ops[work.error[0]][0] in oplist.WRITES


FOREVER = ["write:error=EIO:after=12", "sync:error=EIO:after=8",
           "sync_names:error=EIO:after=4"]


@pytest.mark.parametrize("spec", FOREVER)
def test_cut_while_it_fails(fresh, spec):
    """The watermark has passed nothing that was not flushed."""
    m = fresh(faulty=spec, dram="256M")
    seed = f"stands {spec} {m.mode}"
    work = failing(m, spec, seed)
    assert may_fail(work), work.trouble()
    assert fsync(m.path)
    m.lose_dram(faulty=None)
    n = work.judge(m.path, 0)
    print(f"{spec}: done {work.done}, failed fsyncs {len(work.failed)}, "
          f"there is {n}")
    assert n < work.last_change()


@pytest.mark.modes("served")
@pytest.mark.parametrize("spec", FOREVER)
def test_nothing_is_lost(fresh, spec):
    """The daemon is stopped, and mounted with a disk that works."""
    m = fresh(faulty=spec, dram="256M")
    work = failing(m, spec, f"kept {spec} {m.mode}", 0.5)
    assert may_fail(work), work.trouble()
    m.kill()
    m.start(faulty=None)
    check_all(work, m)
    m.wait("nvme")
    m.lose_dram()
    check_all(work, m)


def check_all(work, m):
    wrong = oplist.judge_written(work.ops, m.path, work.done, work.begun)
    assert not wrong, f"seed {work.seed}, done {work.done}:\n{wrong}"


def test_errors_come_and_go(fresh):
    m = fresh(dram="256M", faulty=rules(
        "write:error=EIO:after=10:times=4", "write:full:after=30:times=3",
        "sync:error=EIO:after=12:times=3", "write:delay=3ms",
        "sync_names:error=EIO:after=4:times=3", "write:short"))
    work = failing(m, "come and go", f"come {m.mode}", 3)
    assert not work.error, work.trouble()
    mounted.until(lambda: fsync(m.path) == 0, 60, 0.1)
    m.lose_dram(faulty=None)
    check_all(work, m)


@pytest.mark.limit(120 * journal.ROUNDS)
def test_cut_of_a_slow_tier(mode):
    """Delays everywhere, so that the cut finds everything under way."""
    spec = rules("write:delay=15ms", "sync:delay=30ms",
                 "sync_names:delay=30ms", "remove:delay=5ms")
    for seed in journal.seeds(f"slow-tier-{mode}"):
        with power.Machine(mode, faulty=spec) as one:
            work = journal.Work(one, seed)
            work.wait_for(random.Random(seed).randrange(50, 400))
            cut_at = time.monotonic()
            one.cut()
            n = work.judge(one.m.path, cut_at)
            print(f"seed {seed}: done {work.done}, there is {n}")
            assert n < work.last_change()


@pytest.mark.parametrize("fault", ["flip", "torn"])
def test_a_bad_copy_is_not_published(fresh, fault):
    """A disk that lies: what it garbled never gets to the remote."""
    m = fresh(remote=True, faulty=f"write:{fault}:times=1")
    away = m.base / "away"
    os.rename(m.remote_dir, away)
    data = calls.noise(3 * MB)
    calls.write(m.path / "f", data)
    m.evict("nvme")
    os.rename(away, m.remote_dir)
    end = time.monotonic() + 4
    said = ""
    while time.monotonic() < end and not said:
        said = m.status()["tiers"][2]["error"]
        if (m.remote_dir / "f").exists():
            assert calls.read(m.remote_dir / "f") == data
            break
        time.sleep(0.02)
    time.sleep(0.5)
    assert m.alive()
    if (m.remote_dir / "f").exists():
        assert calls.read(m.remote_dir / "f") == data


@pytest.mark.limit(120 * journal.ROUNDS)
def test_disk_is_full(mode):
    """Somebody else fills the disk. What was accepted is kept, cut or not."""
    with power.Machine(mode, size=700 << 20) as one:
        filler = one.image.path / "filler"
        work = journal.Work(one, f"full-{mode}")
        work.wait_for(60)
        fill(filler)
        mounted.until(lambda: work.read().error or work.ended, 60)
        assert work.error[1] == errno.ENOSPC, work.trouble()
        assert one.m.alive()
        work.process.wait(30)  # what it had open is closed then
        os.unlink(filler)
        mounted.until(lambda: fsync(one.m.path) == 0, 30, 0.1)
        before = oplist.look(one.m.path)
        calls.write(one.m.path / "again", calls.noise(MB))
        one.cut()
        after = oplist.look(one.m.path)
        after.pop("again", None)
        assert not calls.difference(before, after)
        wrong = oplist.judge_written(work.ops, one.m.path, work.done,
                                     work.begun)
        (one.m.path / "again").exists() and os.unlink(one.m.path / "again")
        assert not wrong, wrong


def fill(path):
    """All that is free, but a little."""
    room = os.statvfs(path.parent)
    with open(path, "wb") as f:
        calls.fallocate(f.fileno(), 0, 0,
                        room.f_bavail * room.f_frsize - 24 * MB)

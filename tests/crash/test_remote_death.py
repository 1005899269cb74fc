# SPDX-License-Identifier: Apache-2.0
"""The remote goes away, fills up, or is another one, and comes back; the
daemon is killed meanwhile. Saves go on, what is seen on the remote is always
complete, and in the end it is what the mount shows."""
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import pytest

import calls
import journal
import mounted
import power
import steps
import sweep

pytestmark = [pytest.mark.modes("passthrough", "served"), pytest.mark.root]
MB = 1 << 20


class Job:
    """A trainer on the mount, and somebody who watches the remote."""

    def __init__(self, m, pace=0.05):
        self.m = m
        self.notes = m.base / "run" / "steps"
        self.n_failed = 0
        self.is_away = False
        self.pace = pace
        self.process = None
        self.watch = steps.Watch(m.remote_dir)
        self.watch.away = lambda: self.is_away
        self.go()

    def go(self):
        self.process = self.m.popen(
            [sys.executable, steps.__file__, "--top", self.m.path,
             "--journal", self.notes, "--first", self.done() + 1, "--pace",
             self.pace])

    def done(self):
        try:
            lines = self.notes.read_text().splitlines()
        except OSError:
            return -1
        return max((int(x) for x in lines if x[0] != "e"), default=-1)

    def steps(self, n, seconds=30):
        """The job gets that much further, whatever the remote does."""
        want = self.done() + n

        def there():
            assert self.process.poll() is None, \
                f"the job failed: {self.notes.read_text()[-200:]}"
            return self.done() >= want
        mounted.until(there, seconds)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def converge(self):
        self.stop()
        self.m.wait("remote", timeout=60)
        steps.same_as_remote(self.m.path, self.m.remote_dir)

    def close(self):
        self.stop()
        self.watch.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind:
            self.is_away = True  # one trouble is enough
        self.close()


def remote(m):
    return m.status()["tiers"][2]


def published(m, job):
    mounted.until(lambda: len(job.watch.seen) > 1, 60)


@pytest.mark.limit(120)
def test_vanishes_and_returns(fresh):
    m = fresh(remote=True, dram="256M")
    away = m.base / "away"
    with Job(m) as job:
        for _ in range(2):
            published(m, job)
            job.is_away = True
            os.rename(m.remote_dir, away)
            mounted.until(lambda: remote(m)["error"], 30)
            job.steps(8)
            fsync_in_time(m)
            os.rename(away, m.remote_dir)
            job.is_away = False
            job.watch.seen.clear()
        job.steps(2)
        job.converge()


def fsync_in_time(m):
    """A dead remote holds up no fsync that did not ask for it."""
    start = time.monotonic()
    path = calls.write(m.path / "probe", calls.noise(MB, start))
    with calls.opened(path, os.O_RDONLY) as fd:
        os.fsync(fd)
    os.unlink(path)
    assert time.monotonic() - start < 10 * mounted.PATIENCE


@pytest.mark.limit(120)
def test_another_one_in_its_place(fresh):
    """An empty directory where the remote was (its filesystem is not
    mounted): nothing is put there."""
    m = fresh(remote=True, dram="256M")
    away = m.base / "away"
    with Job(m) as job:
        published(m, job)
        job.is_away = True
        os.rename(m.remote_dir, away)
        m.remote_dir.mkdir()
        mounted.until(lambda: remote(m)["error"], 30)
        job.steps(5)
        assert os.listdir(m.remote_dir) == []
        os.rmdir(m.remote_dir)
        os.rename(away, m.remote_dir)
        job.is_away = False
        job.converge()


@pytest.fixture
def stored(mode):
    """A mount, not up yet, and the disk that its remote is to lie on."""
    base = pathlib.Path(tempfile.mkdtemp(prefix="ckptfs-crash-",
                                         dir=mounted.TEST_DIR))
    m, disk = sweep.Faulty(mode, base=base, remote=True), None
    try:
        disk = power.Image(m.remote_dir, "xfs", 512 << 20)
        m.options["remote"] = f"dir:{disk.path}/store"
        yield m, disk
    finally:
        m.close()
        if disk:
            disk.close()
        mounted.drop(base)


@pytest.mark.limit(120)
@pytest.mark.parametrize("fault", ["remote.renamed:kill", "remote.sync"])
def test_power_cut_of_the_remote(stored, fault):
    """What was done and not synced, by a daemon that died or before a sync
    that failed, is found done when it is repeated; R waits all the same until
    it is synced."""
    sweep.need_faults()
    m, disk = stored
    m.start()
    os.mkdir(m.path / "d")
    calls.write(m.path / "d" / "old", calls.noise(MB, 1))
    m.wait("remote")
    m.stop()
    os.sync()
    assert m.begin(fault)
    os.rename(m.path / "d" / "old", m.path / "d" / "new")
    if "kill" in fault:
        m.process.wait(20)
        m.unmount(lazy=True)
        m.start()
    m.wait("remote", timeout=30)
    assert m.fired()
    disk.shutdown()
    m.kill()
    m.unmount(lazy=True)
    disk.umount()
    disk.mount()
    assert os.listdir(disk.path / "store" / "d") == ["new"]


def test_remote_that_cannot_exchange(mode):
    """As NFS: done object by object, also of what is only there."""
    sweep.need_faults()
    m = sweep.Faulty(mode, remote=True)
    try:
        assert m.begin("remote.exchange")
        for d in "ab":
            (m.path / d / "sub").mkdir(parents=True)
            calls.write(m.path / d / "same", d.encode() * MB)
            calls.write(m.path / d / "sub" / d, b"only in " + d.encode())
        (m.path / "b" / "empty").mkdir()
        m.wait("remote")
        want = {x: calls.tree(m.path / x) for x in "ab"}
        m.ctl("evict", m.path, "--level", "remote")
        calls.rename2(m.path / "a", m.path / "b", calls.RENAME_EXCHANGE)
        m.wait("remote")
        assert m.fired()
        for here, was in ("ab", "ba"):
            now = calls.tree(m.path / here)
            assert not calls.difference(now, want[was])
        steps.same_as_remote(m.path, m.remote_dir)
    finally:
        m.close()


class Small:
    """A remote on a small tmpfs."""

    def __init__(self, m, mb=150):
        self.at = m.remote_dir
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mb}M", "none",
                        self.at], check=True)

    def remount(self, how):
        subprocess.run(["mount", "-o", f"remount,{how}", self.at],
                       check=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.at], check=True)


def small_remote(mode):
    """A mount that is not up yet."""
    return mounted.Mounted(mode, remote=True, dram="256M")


@pytest.mark.limit(120)
@pytest.mark.parametrize("trouble", ["full", "readonly"])
def test_refuses_writes_for_a_while(mode, trouble):
    m = small_remote(mode)
    try:
        with Small(m) as store:
            m.start()
            try:
                with Job(m) as job:
                    published(m, job)
                    refuse(m, job, store, trouble)
                    job.steps(2)
                    job.converge()
            finally:
                m.kill()
                m.unmount(lazy=True)
    finally:
        m.close()


def refuse(m, job, store, trouble):
    if trouble == "readonly":
        # Fails while a file is open for writing there.
        mounted.until(lambda: subprocess.run(
            ["mount", "-o", "remount,ro", store.at],
            stderr=subprocess.DEVNULL).returncode == 0, 20, 0.003)
    else:
        filler = store.at / ".ckptfs" / "filler"
        with open(filler, "wb") as f:
            while not calls.errno_of(calls.write_all, f.fileno(),
                                     bytes(MB)):
                pass
    mounted.until(lambda: remote(m)["error"], 30)
    job.steps(5)
    fsync_in_time(m)
    if trouble == "readonly":
        store.remount("rw")
    else:
        os.unlink(filler)


@pytest.mark.limit(200 * journal.ROUNDS)
def test_killed_while_it_publishes(fresh):
    """Also with the remote away when it starts again."""
    m = fresh(remote=True, dram="256M")
    away = m.base / "away"
    r = random.Random(f"publish {m.mode}")
    with Job(m, pace=0) as job:
        published(m, job)
        for i in range(5 * journal.ROUNDS):
            job.steps(r.randrange(1, 5))
            time.sleep(r.random() * 0.05)
            m.kill()
            job.process.wait(30)
            if i % 2:
                job.is_away = True
                os.rename(m.remote_dir, away)
            m.start()
            again(m, job)
            if i % 2:
                job.steps(2)
                os.rename(away, m.remote_dir)
                job.is_away = False
                published(m, job)
        job.steps(2)
        job.converge()


def again(m, job):
    """The trainer goes on as trainers do: what is incomplete goes."""
    if not steps.latest_of(m.path):
        calls.write(m.path / "latest", b"step-%d" % job.done())
    latest = int(steps.check_latest(m.path).split("-")[1])
    assert latest >= job.done(), "a step that was complete is not there"
    for name in os.listdir(m.path):
        number = name[5:].removesuffix(".tmp") if "step-" in name else ""
        if name.endswith(".tmp") or number and int(number) > job.done():
            mounted.drop(m.path / name) if number else \
                os.unlink(m.path / name)
    if latest > job.done():
        calls.write(m.path / "latest", b"step-%d" % job.done())
    job.watch.seen.clear()
    job.go()


@pytest.mark.limit(200 * journal.ROUNDS)
def test_power_cut_while_it_publishes(mode):
    """The remote was never ahead of what the NVMe holds."""
    for seed in journal.seeds(f"publish-cut-{mode}", 2):
        with power.Machine(mode, remote=True, flush_rate="80M") as one:
            m = one.m
            r = random.Random(seed)
            with Job(m, pace=0) as job:
                published(m, job)
                job.steps(r.randrange(2, 12))
                one.cut()
                job.stop()
                ahead = steps.latest_of(m.remote_dir)
                here = steps.check_latest(m.path)
                assert int(ahead.split("-")[1]) <= int(here.split("-")[1]), \
                    f"the remote shows {ahead}, here is {here}"
                rest(m, here)
                job.watch.seen.clear()
                calls.write(m.path / "latest", here.encode())
                m.wait("remote")
                steps.same_as_remote(m.path, m.remote_dir)


def rest(m, here):
    for name in os.listdir(m.path):
        if name.endswith(".tmp") and "step" in name:
            mounted.drop(m.path / name)


def put(path, n, seed):
    """Overwritten in place, as trackers are, and on NVMe."""
    with calls.opened(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC) as fd:
        calls.write_all(fd, calls.noise(n * MB, seed))
        os.fsync(fd)


@pytest.mark.limit(120)
def test_full_and_too_large_for_it_is_removed(mode):
    """What stops R goes on once nobody wants it; no room is held for it."""
    m = small_remote(mode)
    try:
        with Small(m, 32):
            m.start()
            put(m.path / "big", 40, 1)
            mounted.until(lambda: "big" in remote(m)["error"])
            os.unlink(m.path / "big")
            calls.write(m.path / "after", b"after")
            m.wait("remote", timeout=40)
            steps.same_as_remote(m.path, m.remote_dir)
            m.stop()
    finally:
        m.close()


def nvme_used(m):
    return m.status()["tiers"][1]["used"]


@pytest.mark.limit(150)
def test_full_while_it_catches_up(mode):
    """A step to a later number that cannot get on keeps of the NVMe what it
    needs, for a while, and nothing that was saved since."""
    m = small_remote(mode)
    try:
        with Small(m, 32) as store:
            m.start()
            put(m.path / "ck", 1, 0)
            m.wait("remote")
            m.stop()
            os.rename(store.at / ".ckptfs", store.at / "away")
            m.start()
            for i in range(1, 3):
                put(m.path / "ck", 24, i)
            put(m.path / "old", 60, "old")
            m.stop()
            with open(store.at / "filler", "wb") as f:
                f.write(bytes(20 * MB))
            os.rename(store.at / "away", store.at / ".ckptfs")
            m.start()
            mounted.until(lambda: "cannot publish" in remote(m)["error"])
            base = nvme_used(m)
            for i in range(3, 11):
                put(m.path / "ck", 24, i)
            mounted.until(lambda: nvme_used(m) < base + 60 * MB, 4)
            os.unlink(m.path / "old")
            mounted.until(lambda: nvme_used(m) < base - 30 * MB, 60)
            os.unlink(store.at / "filler")
            m.wait("remote", timeout=60)
            steps.same_as_remote(m.path, m.remote_dir)
            m.stop()
    finally:
        m.close()


@pytest.mark.limit(120)
def test_full_shows_no_attribute_of_later(mode):
    """What was marked complete after the rest was saved is not marked on the
    remote before the rest is there."""
    m = small_remote(mode)
    try:
        with Small(m, 32) as store:
            m.start()
            put(m.path / "first", 1, 0)
            os.setxattr(m.path / "first", "user.early", b"1")
            m.wait("remote")
            m.stop()
            os.rename(store.at / ".ckptfs", store.at / "away")
            m.start()
            calls.write(m.path / "index", calls.noise(MB, 1))
            calls.write(m.path / "shard", calls.noise(40 * MB, 2))
            m.wait("nvme")
            os.setxattr(m.path / "index", "user.complete", b"1")
            m.stop()
            os.rename(store.at / "away", store.at / ".ckptfs")
            m.start()
            mounted.until(lambda: "shard" in remote(m)["error"])
            mounted.until(lambda: (m.remote_dir / "index").exists())
            assert "user.complete" not in os.listxattr(m.remote_dir / "index")
            store.remount("size=200M")
            m.wait("remote", timeout=60)
            steps.same_as_remote(m.path, m.remote_dir)
            assert os.getxattr(m.remote_dir / "index", "user.complete") == b"1"
            m.stop()
    finally:
        m.close()


def dies_at(m, fault):
    """Mounted, and killed there, once all that is due has been tried."""
    os.environ["CKPTFS_FAULT"] = f"{fault}:kill"
    try:
        with open(m.log, "ab") as log:
            m.process = m.popen(m.command(), stdin=subprocess.DEVNULL,
                                stdout=log, stderr=log)
    finally:
        del os.environ["CKPTFS_FAULT"]
    mounted.until(lambda: m.process.poll() is not None
                  or mounted.is_mountpoint(m.path) and
                  m.ctl("wait", m.path, "--level", "remote", "--timeout",
                        "5", check=False).returncode == 0, 30)
    died = m.process.poll() is not None
    if not died:
        m.kill()
    m.process = None
    if mounted.is_mountpoint(m.path):
        m.unmount(lazy=True)
    return died


@pytest.mark.parametrize("nth", (1, 2, 3))
@pytest.mark.parametrize("whose", ("ours", "others"))
def test_killed_as_the_only_copy_gets_another_time(mode, whose, nth):
    """Renamed and touched in one step: at any moment what is on the remote is
    of that version, under one name or the other."""
    sweep.need_faults()
    data = calls.noise(3 * MB)
    m = mounted.Mounted(mode, remote=True)
    try:
        if whose == "others":
            (m.remote_dir / "f").write_bytes(data)
        m.start()
        if whose == "ours":
            calls.write(m.path / "f", data)
            m.evict("remote", m.path / "f")
        m.stop()
        os.rename(m.remote_dir, m.base / "away")
        m.start()
        for i in range(3):
            calls.write(m.path / "step", calls.noise(200_000, i))
            m.wait("nvme")
        os.rename(m.path / "f", m.path / "g")
        os.utime(m.path / "g", (10**9, 10**9))
        m.stop()
        os.rename(m.base / "away", m.remote_dir)
        assert dies_at(m, f"sidecar.write:{nth}") or nth > 2
        m.start()
        m.wait("remote")
        assert calls.read(m.remote_dir / "g") == data
        assert not (m.remote_dir / "f").exists()
        assert calls.read(m.path / "g") == data
    finally:
        m.close()

# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of the daemon at random moments. The next mount on the same boot
carries on: all that a call returned for is there, also what was written and
not closed, because the bytes lie in the DRAM tier. Nothing unmounts in
between: the dead mount is replaced."""
import errno
import os
import random
import subprocess
import sys
import time

import pytest

import calls
import journal
import mounted
import oplist
import steps

pytestmark = [pytest.mark.modes("passthrough", "served", "user")]
DEATHS = 10


class Host:
    """A mount on a plain directory, and the processes that use it."""

    def __init__(self, m):
        self.m = m
        self.processes = []

    def spawn(self, command):
        if self.m.mode == "user" and command[0] == sys.executable:
            command[0] = "/usr/bin/python3"  # ours may be root's alone
        p = self.m.popen(command, stdin=subprocess.DEVNULL)
        self.processes.append(p)
        return p

    def end_processes(self):
        for p in self.processes:
            p.kill()
            p.wait()
        self.processes.clear()


@pytest.fixture
def host(fresh):
    hosts = []

    def make(**options):
        hosts.append(Host(fresh(**{"dram": "256M", **options})))
        return hosts[-1]

    yield make
    for one in hosts:
        one.end_processes()


def notes_folder(m):
    """Where the processes of the mount's owner may write."""
    return m.base / "run"


def ended(process):
    process.wait(30)
    return process.returncode


@pytest.mark.limit(200 * journal.ROUNDS)
def test_killed_under_load(host):
    one = host(flush_rate="60M")
    m, last = one.m, None
    for number, seed in enumerate(journal.seeds(
            f"death-{m.mode}", DEATHS // 2 if m.mode == "user" else DEATHS)):
        r = random.Random(seed)
        folder = m.path / f"r{number}"
        folder.mkdir()
        work = journal.Work(one, seed, 2000, notes_folder(m), folder)
        work.wait_for(r.randrange(1, 120))
        time.sleep(r.random() * 0.1)
        m.kill()
        assert ended(work.process) == 1, "the writer was told nothing"
        work.read()
        gone = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
        assert work.error[1] in gone, work.trouble()
        m.start()
        check_written(work, folder)
        assert "carried on" in m.status()["start"]
        if last:
            check_written(*last)
            mounted.drop(last[1])
        last = work, folder
    m.wait("nvme")
    check_written(*last)
    m.remount()
    check_written(*last)


def check_written(work, folder):
    wrong = oplist.judge_written(work.ops, folder, work.done, work.begun)
    assert not wrong, (f"seed {work.seed}: done {work.done} {work.begun} "
                       f"{work.ops[work.begun]}:\n{wrong}")


@pytest.mark.limit(100 * journal.ROUNDS)
def test_killed_while_written(host):
    """What write() returned for, to a file that is never closed."""
    one = host()
    m = one.m
    for i in range(3 * journal.ROUNDS):
        fd = os.open(m.path / f"f{i}", os.O_CREAT | os.O_WRONLY)
        data = calls.noise((1 << 20) + 12345 * i, i)
        calls.write_all(fd, data)
        m.kill()
        calls.errno_of(os.close, fd)
        m.start()
        assert calls.read(m.path / f"f{i}") == data
    m.wait("nvme")
    m.lose_dram()
    for i in range(3 * journal.ROUNDS):
        assert calls.read(m.path / f"f{i}") == calls.noise(
            (1 << 20) + 12345 * i, i)


@pytest.mark.limit(100 * journal.ROUNDS)
def test_killed_while_it_drains(host):
    """umount has returned; the daemon still flushes, and is killed."""
    one = host(flush_rate="30M")
    m, wanted = one.m, {}
    r = random.Random(f"drain {m.mode}")
    for i in range(3 * journal.ROUNDS):
        for k in range(8):
            name = f"f{r.randrange(12)}"
            wanted[name] = calls.noise(r.randrange(3 << 20), (i, k))
            calls.write(m.path / name, wanted[name])
        m.unmount()
        time.sleep(r.random() * 0.3)
        m.kill()
        m.start()
        for name, data in wanted.items():
            assert calls.read(m.path / name) == data, name
    m.remount()
    m.lose_dram()
    for name, data in wanted.items():
        assert calls.read(m.path / name) == data, name


@pytest.mark.limit(100 * journal.ROUNDS)
def test_killed_while_it_starts(host):
    """Again and again, at any step of the recovery."""
    one = host(flush_rate="30M")
    m = one.m
    seed = f"starts-{m.mode}"
    r = random.Random(seed)
    work = journal.Work(one, seed, 300, notes_folder(m))
    work.wait_for(150)
    m.kill()
    ended(work.process)
    work.read()
    for _ in range(4 * journal.ROUNDS):
        with open(m.log, "ab") as log:
            m.process = m.popen(m.command(), stdin=subprocess.DEVNULL, stdout=log,
                                stderr=log)
        time.sleep(r.random() * 0.15)
        m.kill()
    m.start()
    check_written(work, m.path)


@pytest.mark.limit(200 * journal.ROUNDS)
def test_remote_converges(host):
    """The publisher goes on where it was killed; the remote never shows a
    `latest` without its shards."""
    one = host(remote=True, flush_rate="80M")
    m = one.m
    r = random.Random(f"remote {m.mode}")
    watch = steps.Watch(m.remote_dir)
    try:
        first = 0
        for _ in range(5 * journal.ROUNDS):
            first = run_steps(one, first, r)
        m.wait("remote")
        steps.same_as_remote(m.path, m.remote_dir)
        assert steps.check_latest(m.remote_dir)
    finally:
        watch.close()
    assert watch.n_looks and len(watch.seen) > 2, "it was hardly looked at"


def run_steps(one, first, r):
    """Some steps, a death, a new mount; the number to go on with."""
    m = one.m
    notes = notes_folder(m) / "steps"
    p = one.spawn([sys.executable, steps.__file__, "--top", m.path,
                   "--journal", notes, "--first", first])
    want = first + r.randrange(2, 8)

    def reached():
        assert p.poll() is None, "the trainer failed"
        return steps_done(notes) >= want

    mounted.until(reached, 30, 0.005)
    m.kill()
    ended(p)
    m.start()
    done = steps_done(notes)
    if not steps.latest_of(m.path):
        calls.write(m.path / "latest", b"step-%d" % done)
    latest = int(steps.check_latest(m.path).split("-")[1])
    assert latest >= done, f"latest is {latest}, step {done} was complete"
    clean(m.path, latest)
    return latest + 1


def steps_done(notes):
    try:
        return max((int(x) for x in notes.read_text().split("\n")
                    if x and x[0] != "e"), default=-1)
    except OSError:
        return -1


def clean(top, latest):
    """As a trainer that begins anew: what is not complete goes."""
    for name in os.listdir(top):
        if name.endswith(".tmp") and name.startswith("latest"):
            os.unlink(top / name)
        elif name.startswith("step-"):
            number = int(name[5:].removesuffix(".tmp"))
            if name.endswith(".tmp") or number > latest \
                    or number <= latest - steps.KEEP:
                mounted.drop(top / name)


@pytest.mark.modes("passthrough")
def test_old_descriptor_goes_on(host):
    """Passthrough writes need no daemon: what they say is written, after its
    death and beside the next one, is there as well."""
    m = host().m
    path = m.path / "f"
    data = calls.noise(400_000)
    with open(path, "wb", buffering=0) as f:
        f.write(data[:100_000])
        m.kill()
        f.write(data[100_000:200_000])
        m.start()
        f.write(data[200_000:300_000])
        m.wait("nvme")
        f.write(data[300_000:])
        calls.errno_of(f.close)
    assert calls.read(path) == data
    # Nobody hears of that close: it is looked for every few seconds.
    mounted.until(lambda: not m.status()["counts"]["unsealed"], 20)
    m.wait("nvme")
    m.lose_dram()
    assert calls.read(path) == data

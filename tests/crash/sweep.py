# SPDX-License-Identifier: Apache-2.0
"""One scripted job on a mount whose daemon fails at one place: what it was
told, and whether what is there keeps it.

A fault point (metadata/fault.h) is armed by the environment of the daemon
alone, as `name:N`, its Nth pass. Which there are, and how often each is passed,
a first run with CKPTFS_FAULT=log tells.
"""
import collections
import fcntl
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import tempfile
import time

import calls
import mounted
import oplist
import steps
import writer

MIB = oplist.MIB
FULL = bool(os.environ.get("CKPTFS_FAULT_FULL"))
FILLED = 0x40104303  # CKPT_IOC_FILLED, providers/mount_ioctl.h

# Every way of the engine that a point stands in, in as few operations as it
# takes. Sizes: inside the database, a file, several chunks.
SCRIPT = [
    ("mkdir", "d", 0o755),
    ("write", "d/file", (1, 0, 300_000), 0o644, 1),
    ("write", "d/small", (2, 0, 900), 0o600, 1),
    ("setxattr", "d/file", "user.a", b"value"),
    ("fsync", "d/file"),
    ("write", "d/file", (3, 0, 200_000), 0o644, 3),
    ("pwrite", "d/file", 5000, (4, 0, 80_000)),
    ("write", "d/big", (5, 0, 9 * MIB), 0o644, 1),
    ("hold", "d/small"),
    ("write", "d/small", (6, 0, 70_000), 0o644, 1),
    ("append", "d/small", (7, 0, 500)),
    ("release",),
    ("write", "d/new", (8, 0, 100_000), 0o644, 1),
    ("rename", "d/new", "d/small"),
    ("link", "d/file", "other"),
    ("mkdir", "e", 0o700),
    ("rename", "d", "f"),
    ("symlink", "../f", "e/link"),
    ("fsync", "e"),
    ("open", "e/open", (9, 0, 9 * MIB), 0o644),
    ("chmod", "other", 0o640),
    ("fsync", "e/open"),
    ("close", "e/open", (10, 0, 1000)),
    ("hold", "f/big"),
    ("pwrite", "f/big", 4 * MIB - 7, (11, 0, 100_000)),
    ("release",),
    ("truncate", "other", 1000),
    ("hold", "f/small"),
    ("unlink", "f/small"),
    ("release",),
    ("write", "g", (12, 0, 500_000), 0o644, 1),
    ("exchange", "g", "other"),
    ("removexattr", "g", "user.a"),
    ("unlink", "e/link"),
    ("utime", "other", 10 ** 18 + 1),
    ("mkdir", "h", 0o755),
    ("rmdir", "h"),
    ("write", "latest", (13, 0, 20), 0o644, 1),
    ("fsync", "latest"),
    ("write", "after", (14, 0, 400_000), 0o644, 1),
    # Closed one after the other, without an event between: several seals of
    # one commit, a new version of an old file among them.
    *(("write", f"e/rank{i}", (15 + i, 0, 3000 * i), 0o644, 1)
      for i in range(6)),
    ("write", "after", (21, 0, 90_000), 0o644, 1),
    *(("write", f"e/rank{i}", (22 + i, 0, 200_000), 0o644, 1)
      for i in range(6, 9)),
    ("unlink", "g"),
]


class Hand(writer.Writer):
    """Does the operations; says of a big open file that it is filled."""

    def do_open(self, path, piece, mode):
        super().do_open(path, piece, mode)
        calls.errno_of(fcntl.ioctl, self.fd, FILLED,
                       struct.pack("QQ", 0, piece[2]))

    def let_go(self):
        calls.errno_of(self.do_release)
        self.held.clear()
        if self.fd is not None:
            calls.errno_of(os.close, self.fd)
            self.fd = None


def need_faults():
    version = subprocess.run([mounted.programs() / "ckptfs", "--version"],
                             check=True, stdout=subprocess.PIPE,
                             text=True).stdout
    if "fault points: yes" not in version:
        # Not missing(): CI runs the tests of the ordinary build, too.
        raise mounted.Missing("a build without fault points (CKPT_FAULTS=ON)")


def count(text):
    """How often each point was passed: those that fail, and all."""
    found = re.findall(r"fault point '([^']+)'( \(death only\))?", text)
    return (collections.Counter(n for n, deadly in found if not deadly),
            collections.Counter(n for n, _ in found))


class Faulty(mounted.Mounted):
    """A mount whose daemon is started with a point armed."""
    fault = None
    code = None  # of a start that failed

    def popen(self, command, **more):
        if self.fault and str(command[0]).endswith("/ckptfs"):
            os.environ["CKPTFS_FAULT"] = self.fault
        try:
            return super().popen(command, **more)
        finally:
            os.environ.pop("CKPTFS_FAULT", None)

    def begin(self, fault):
        """Up, or ended: true or false."""
        self.fault = fault
        try:
            self.start()
        except AssertionError:
            self.code = self.process.poll()
            if not self.code:
                raise
            self.process = None
        finally:
            self.fault = None
        return self.process is not None

    def fired(self):
        return "fault '" in self.log.read_text(errors="replace")

    def passed(self):
        return count(self.log.read_text(errors="replace"))

    def fsck(self):
        """Of a copy of the durable database, as it is now on the disk."""
        tool = self.bin / "../tests/tools/metadata_fsck"
        top = pathlib.Path(tempfile.mkdtemp(dir=self.base))
        try:
            shutil.copytree(self.nvme / "metadata", top / "durable",
                            ignore=shutil.ignore_patterns("*reserve*"))
            (top / "accepted").mkdir()
            r = subprocess.run([tool, top / "durable", top / "accepted"],
                               stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
            assert r.returncode == 0, f"fsck: {r.stdout}"
        finally:
            mounted.drop(top)


def sample(counts, seed, n):
    """name:N of a sweep: all, in full; else n of them, the first pass of each
    point and then passes that move with the seed, of each point as many."""
    r = random.Random(seed)
    rows = []
    for name in sorted(counts):
        later = list(range(2, counts[name] + 1))
        r.shuffle(later)
        rows.append([f"{name}:{i}" for i in [1, *later]])
    r.shuffle(rows)
    turns = itertools.zip_longest(*rows)
    every = [x for turn in turns for x in turn if x]
    return every if FULL else every[:n]


# ---- errors ---------------------------------------------------------------

class Errors:
    """Does the script on a mount that fails once."""

    def __init__(self, m):
        self.m = m
        self.hand = Hand(m.path)
        self.tree = oplist.Tree()
        self.failed = []

    def apply(self, op):
        for _ in self.tree.apply(op):
            pass

    def run(self):
        for op in SCRIPT:
            try:
                self.hand.do(op)
            except OSError as e:
                self.failed.append((op, e))
                assert self.m.alive(), f"{op} killed it"
                self.check_no_trace(op, e)
                self.again(op)
            self.apply(op)

    def check_no_trace(self, op, error):
        found = oplist.look(self.m.path)
        wanted = self.tree.describe(written=True)
        names = ()
        if op[0] in oplist.WRITES:
            node = self.tree.nodes.get(op[1]) or oplist.Node(0)
            names = {p for p, n in self.tree.nodes.items() if n is node}
            names |= {op[1]}
            if op[1] in found:
                data = calls.read(self.m.path / op[1])
                assert oplist.is_between(data, op, node), \
                    f"{op} failed ({error}): neither as before nor as after"
        text = oplist.differs(found, wanted, names)
        assert not text, f"{op} failed ({error}), but left a trace:\n{text}"

    def again(self, op):
        """It failed once; now it works."""
        if op[0] == "close":
            data = oplist.whole(self.tree.nodes[op[1]].pending + (op[2],))
            self.hand.let_go()
            calls.write(self.m.path / op[1], data)
            return
        if op[0] == "open":
            self.hand.let_go()
        self.hand.do(op)

    def finish(self, seconds=30):
        """All of it is promised: an fsync works, at last."""
        self.hand.let_go()

        def synced():
            with calls.opened(self.m.path, os.O_RDONLY) as fd:
                return calls.errno_of(os.fsync, fd) == 0
        mounted.until(synced, seconds, 0.05)

    def check(self, when):
        text = oplist.differs(oplist.look(self.m.path),
                              self.tree.describe(written=True), ())
        assert not text, f"{when} (found / wanted):\n{text}"


def one_error(mode, fault):
    """Did it fire? What failed is returned, too."""
    m = Faulty(mode, remote=True)
    try:
        if not m.begin(fault):
            assert m.fired(), f"it ended: {m.log_tail()}"
            m.start()
        work = Errors(m)
        work.run()
        work.finish()
        work.check("before the cut")
        m.lose_dram()
        work.check("after all was fsynced, and the DRAM lost")
        m.wait("remote")
        steps.same_as_remote(m.path, m.remote_dir)
        status = m.status()
        for tier in status["tiers"]:
            assert not tier["error"], tier
        m.kill()
        m.fsck()
        return m.fired(), work.failed
    except BaseException as e:
        e.add_note(f"CKPTFS_FAULT={fault} mode {mode}\n{m.log_tail()}")
        raise
    finally:
        m.close()


# ---- deaths ---------------------------------------------------------------

class Deaths:
    """Does the script until the daemon is dead."""

    def __init__(self, m):
        self.m = m
        self.hand = Hand(m.path)
        self.begun = self.done = self.promised = -1

    def run(self):
        for number, op in enumerate(SCRIPT):
            self.begun = number
            try:
                self.hand.do(op)
            except OSError as e:
                mounted.until(lambda: not self.m.alive(), 5)
                self.hand.let_go()
                return
            self.done = number
            if op[0] in oplist.PROMISES:
                self.promised = number
        self.hand.let_go()

    def linger(self, seconds=1.5):
        """It may still die of what it does in the background."""
        end = time.monotonic() + seconds
        while self.m.alive() and time.monotonic() < end:
            status = self.m.ctl("status", self.m.path, "--json", check=False)
            if status.returncode:
                time.sleep(0.01)
                continue
            tiers = json.loads(status.stdout)["tiers"]
            if tiers[2]["seq"] >= tiers[0]["seq"]:
                return

    def judge_death(self):
        text = oplist.judge_written(SCRIPT, self.m.path, self.done, self.begun)
        assert not text, f"after {self.where()} (found / wanted):\n{text}"

    def judge_cut(self):
        found = oplist.look(self.m.path)
        got = oplist.matches(SCRIPT, found, self.begun)
        if not got:
            n, number, op, text = oplist.nearest(SCRIPT, found, self.begun)
            raise AssertionError(
                f"{self.where()}: this is no state that ever was. The nearest "
                f"is after operation {number} {op}:\n{text}")
        assert max(got) >= self.promised, \
            f"{self.where()}: promised, but {max(got)} is there"

    def where(self):
        return (f"done {self.done}, begun {self.begun} "
                f"{SCRIPT[self.begun]}, promised {self.promised}")


def one_death(mode, fault, cut):
    m = Faulty(mode, remote=True)
    try:
        if m.begin(f"{fault}:kill"):
            work = Deaths(m)
            work.run()
            work.linger()
        else:
            work = None
        fired = m.fired()
        if m.process:
            m.kill()
        if cut and m.dram_dir:
            m.unmount(lazy=True)
            mounted.free_dram(m.dram_dir)
        m.start()
        if work:
            work.judge_cut() if cut and m.dram_dir else work.judge_death()
        goes_on(m)
        return fired
    except BaseException as e:
        e.add_note(f"CKPTFS_FAULT={fault}:kill mode {mode} cut {cut}\n"
                   f"{m.log_tail()}")
        raise
    finally:
        m.close()


def goes_on(m):
    """It is a mount like any other."""
    path = calls.write(m.path / "goes-on", calls.noise(MIB, "goes on"))
    with calls.opened(path, os.O_RDONLY) as fd:
        os.fsync(fd)
    m.wait("remote")
    steps.same_as_remote(m.path, m.remote_dir)
    before = oplist.look(m.path)
    m.stop()
    m.fsck()
    m.start()
    assert not calls.difference(before, oplist.look(m.path))

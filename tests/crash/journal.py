# SPDX-License-Identifier: Apache-2.0
"""What a writer process was told, and whether what is there keeps it."""
import os
import pathlib
import random
import sys
import time

import mounted
import oplist

HERE = pathlib.Path(__file__).parent
ROUNDS = int(os.environ.get("CKPTFS_CRASH_ROUNDS", "1"))


def seeds(name, n=1):
    """Seeds of the rounds of a test, n by default and always the same ones;
    $CKPTFS_CRASH_ROUNDS times as many, and new ones. $CKPTFS_CRASH_SEED
    repeats one."""
    given = os.environ.get("CKPTFS_CRASH_SEED")
    if given:
        return [given]
    if ROUNDS == 1:
        return [f"{name}-{i}" for i in range(n)]
    stamp = random.SystemRandom().randrange(10 ** 9)
    return [f"{name}-{stamp}-{i}" for i in range(n * ROUNDS)]


class Work:
    """A writer of a list of operations, and what it noted."""

    def __init__(self, one, seed, n=4000, folder=None, top=None,
                 tolerate=False):
        self.seed, self.n = seed, n
        self.ops, self.latest = oplist.operations(seed, n)
        self.file = (folder or one.m.base) / f"journal-{seed}"
        self.process = one.spawn(
            [sys.executable, HERE / "writer.py", "--top",
             top or one.m.path,
             "--seed", seed, "--n", n, "--journal", self.file,
             *(["--tolerate"] if tolerate else [])])
        self.begun = self.done = self.promised = -1
        self.promised_at = 0.0
        self.error = None
        self.ended = False

    def read(self):
        self.begun = self.done = self.promised = -1
        self.failed = []
        try:
            lines = self.file.read_text().splitlines()
        except OSError:
            lines = []
        for line in lines:
            word, *rest = line.split()
            if word == "b":
                self.begun = int(rest[0])
            elif word == "d":
                self.done = int(rest[0])
                if self.ops[self.done][0] in oplist.PROMISES:
                    self.promised = self.done
                    self.promised_at = float(rest[1])
            elif word == "f":
                self.done = int(rest[0])
                self.failed.append(int(rest[1]))
            elif word == "e":
                self.error = (int(rest[0]), int(rest[1]), float(rest[2]))
            elif word == "end":
                self.ended = True
        return self

    def wait_for(self, number, seconds=60):
        def there():
            self.read()
            assert not self.error, self.trouble()
            return self.done >= number or self.ended
        mounted.until(there, seconds, 0.005)

    def trouble(self):
        number, error, _ = self.error
        return (f"seed {self.seed}: operation {number} "
                f"{self.ops[number]} failed: {os.strerror(error)}")

    def last_change(self):
        """The last finished operation after which something looks new."""
        for number in range(self.done, -1, -1):
            if self.ops[number][0] not in oplist.SILENT:
                return number
        return -1

    def judge(self, top, cut_at):
        """Is what lies at top the state after some operation? Its number."""
        self.read()
        if self.error and self.error[2] < cut_at:
            raise AssertionError(self.trouble())
        found = oplist.look(top)
        got = oplist.matches(self.ops, found, self.begun)
        where = (f"seed {self.seed}: done {self.done}, "
                 f"promised {self.promised}")
        if not got:
            n, number, op, text = oplist.nearest(self.ops, found, self.begun)
            raise AssertionError(
                f"{where}: this is no state that ever was. The nearest is "
                f"the one after operation {number} {op}, where {n} paths "
                f"differ (found / wanted):\n{text}")
        if max(got) < self.promised:
            raise AssertionError(f"{where}: an fsync returned, but the state "
                                 f"is the one after operation {max(got)} "
                                 "(it returned "
                                 f"{cut_at - self.promised_at:.4f} s before "
                                 "the cut)")
        self.check_latest(found, where)
        return max(got)

    def check_latest(self, found, where):
        if "latest" not in found:
            return
        step = self.latest[found["latest"]["sha256"]]
        assert step in found and f"{step}/.metadata" in found, \
            f"{where}: latest names {step}, which is not there"


def moment(seed, n):
    """When to strike: an operation, and some time after it."""
    r = random.Random(f"moment {seed}")
    return r.randrange(n // 40, n // 4), r.random() * 0.1, r


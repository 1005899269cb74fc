# SPDX-License-Identifier: Apache-2.0
"""A trainer that saves step after step and rotates, and somebody who looks at
the same files elsewhere (the remote) all the time.

    steps.py --top DIR --journal FILE --first N [--pace SECONDS]

A step's shards, then its `.metadata` (which names them), then `latest`. Half
of the steps are written under a temporary name and renamed. The journal gets
a line for each step that was complete.
"""
import argparse
import json
import os
import random
import shutil
import sys
import threading
import time

import calls
import oplist

KEEP = 3


def shards_of(step):
    r = random.Random(f"shards {step}")
    return {f"rank{i}.pt": (step % 1000 * 10 + i + 1,
                            r.choice((0, 100, 50000, 70000,
                                      r.randrange(1 << 20),
                                      r.randrange(4 << 20))))
            for i in range(r.randrange(2, 5))}


def bytes_of(shard):
    number, length = shard
    return bytes(oplist.piece_bytes((number, 0, length)))


def save(top, step):
    folder = os.path.join(top, f"step-{step}")
    at = folder + ".tmp" if step % 2 else folder
    os.mkdir(at)
    shards = shards_of(step)
    for name, shard in shards.items():
        calls.write(os.path.join(at, name), bytes_of(shard))
    calls.write(os.path.join(at, ".metadata"), json.dumps(shards).encode())
    if at != folder:
        os.rename(at, folder)
    latest = os.path.join(top, "latest")
    if step % 3:
        calls.write(latest, b"step-%d" % step)
    else:
        calls.write(latest + ".tmp", b"step-%d" % step)
        os.rename(latest + ".tmp", latest)


def remove_old(top, step):
    old = os.path.join(top, f"step-{step - KEEP}")
    shutil.rmtree(old, ignore_errors=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--top", required=True)
    p.add_argument("--journal", required=True)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--steps", type=int, default=1 << 30)
    p.add_argument("--pace", type=float, default=0)
    args = p.parse_args()
    journal = os.open(args.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in range(args.first, args.first + args.steps):
        try:
            save(args.top, step)
            os.write(journal, b"%d\n" % step)
            remove_old(args.top, step)
        except OSError as e:
            os.write(journal, b"e %d %d\n" % (step, e.errno or 0))
            sys.exit(1)
        time.sleep(args.pace)


# ---- whoever looks --------------------------------------------------------

class Broken(AssertionError):
    pass


def check_step(top, name):
    """A step that `latest` names is whole."""
    folder = os.path.join(top, name)
    try:
        shards = json.loads(calls.read(os.path.join(folder, ".metadata")))
    except FileNotFoundError:
        raise Broken(f"latest names {name}, whose .metadata is not there") \
            from None
    for shard, what in shards.items():
        try:
            data = calls.read(os.path.join(folder, shard))
        except FileNotFoundError:
            raise Broken(f"latest names {name}, whose {shard} is not there") \
                from None
        if data != bytes_of(what):
            raise Broken(f"{name}/{shard} is not what was saved "
                         f"({len(data)} of {what[1]} bytes)")


def latest_of(top):
    """None: not there, or empty, as a job leaves it that dies between the
    open with O_TRUNC and the write."""
    try:
        return calls.read(os.path.join(top, "latest")).decode() or None
    except FileNotFoundError:
        return None


def check_latest(top):
    """Which step latest names; None: not there, or it moved on meanwhile."""
    before = latest_of(top)
    if before is None:
        return None
    try:
        check_step(top, before)
    except (Broken, OSError):
        if latest_of(top) != before:
            return None
        raise
    return before


def listing(top):
    return {name: sorted(os.listdir(os.path.join(top, name)))
            if name.startswith("step") else "" for name in os.listdir(top)}


class Watch:
    """Looks at `top` all the time, in a thread of its own."""

    def __init__(self, top):
        self.top = top
        self.n_looks = 0
        self.seen = []
        self.broken = None
        self.away = lambda: False  # is the directory known to be away?
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _look(self):
        step = check_latest(self.top)
        if step is None:
            return
        self.n_looks += 1
        if not self.seen or self.seen[-1] != step:
            number = int(step.split("-")[1])
            last = int(self.seen[-1].split("-")[1]) if self.seen else -1
            if number < last:
                raise Broken(f"latest went back from {self.seen[-1]} to "
                             f"{step}")
            self.seen.append(step)

    def _run(self):
        while not self._stop.wait(0.002):
            try:
                self._look()
            except (Broken, OSError, ValueError) as e:
                if self.away():
                    continue
                self.broken = f"{e}; there is {listing(self.top)}"
                return

    def close(self):
        self._stop.set()
        self._thread.join()
        if self.broken:
            raise AssertionError(f"on {self.top}: {self.broken}")


def same_as_remote(mount, remote):
    """The remote shows what the mount does."""
    ours, theirs = tree(mount), tree(remote)
    text = calls.difference(ours, theirs)
    assert not text, f"mount / remote:\n{text}"


def tree(top):
    """Without what a remote need not hold."""
    seen = {}
    for folder, folders, files in os.walk(top):
        if folder == str(top) and ".ckptfs" in folders:
            folders.remove(".ckptfs")
        for name in folders + files:
            path = os.path.join(folder, name)
            what = calls.describe(path, times=False, owner=False)
            what["xattrs"] = {k: v for k, v in what.get("xattrs", {}).items()
                              if not k.startswith("user.ckptfs.")}
            seen[os.path.relpath(path, top)] = what
    return seen


if __name__ == "__main__":
    main()

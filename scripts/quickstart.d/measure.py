# SPDX-License-Identifier: Apache-2.0
"""measure.py CKPTCTL MOUNT DISK

Saves the same state to both directories in turn and prints medians: perceived
is when the save returns, durable is when it would also survive a power cut.

The memory that a save is about to take is held, touched, until right before
its clock starts: on a virtual machine whose hypervisor takes free memory back,
the first touch of the rest would be all that is measured.
"""
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import time

import formats
from model import Training

ROUNDS = 5
HELD = 1 << 30


def warm_memory():
    held = mmap.mmap(-1, HELD)
    held[::mmap.PAGESIZE] = b"\1" * (HELD // mmap.PAGESIZE)
    held.close()


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(root):
    for directory, _, names in os.walk(root, topdown=False):
        for name in names:
            sync(os.path.join(directory, name))
        sync(directory)
    sync(os.path.dirname(root))


def timed(saver, state, root):
    """Seconds until the save returned, and until it was durable."""
    directory = os.path.join(root, "save-time")
    os.mkdir(directory)
    warm_memory()
    began = time.monotonic()
    saver(state, directory)
    returned = time.monotonic()
    sync_tree(directory)
    durable = time.monotonic()
    shutil.rmtree(directory)
    return returned - began, durable - began


def warm_up(root):
    path = os.path.join(root, "warm-up")
    os.makedirs(path, exist_ok=True)
    return path


def settle(ckptctl, mount):
    """What the one before left to do in the background is done."""
    subprocess.run([ckptctl, "wait", mount, "--level", "remote", "--timeout",
                    "120"], check=True, stdout=subprocess.DEVNULL)


def measure(saver, state, ckptctl, mount, disk):
    samples = {mount: [], disk: []}
    saver(state, warm_up(disk))  # a library's first save also sets it up
    shutil.rmtree(warm_up(disk))
    for _ in range(ROUNDS):
        for root in (mount, disk):
            settle(ckptctl, mount)
            samples[root].append(timed(saver, state, root))
    return [[statistics.median(s) for s in zip(*samples[root])]
            for root in (mount, disk)]


def print_row(name, what, ours, theirs):
    print(f"      {name:12} {what:10} {ours:7.2f} s {theirs:9.2f} s "
          f"{theirs / ours:8.1f} x", flush=True)


def main():
    ckptctl, mount, disk = sys.argv[1:]
    training = Training()
    training.advance()  # Adam's moments are there from then on
    state = training.state()
    size = sum(t.nbytes for t in state.values())
    print(f"      {size / 1e6:.0f} MB a save      ckptfs  local disk"
          "   disk / ckptfs")
    for name, saver in formats.SAVERS:
        ours, theirs = measure(saver, state, ckptctl, mount, disk)
        print_row(name, "perceived", ours[0], theirs[0])
        print_row("", "durable", ours[1], theirs[1])


if __name__ == "__main__":
    try:
        main()
    except (OSError, RuntimeError, subprocess.CalledProcessError) as e:
        sys.exit(f"quickstart: measuring stopped: {e}")

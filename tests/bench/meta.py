# SPDX-License-Identifier: Apache-2.0
"""scripts/bench meta: operations on names, and fsyncs that arrive together.

The baseline of names is libfuse's own passthrough_hp on a tmpfs: what FUSE
costs without a database behind it.
"""
import contextlib
import os
import time

from harness import GIB, drop_slab, in_turn, program, sync_filesystem

N = 5000  # passthrough_hp holds a descriptor for each name it has seen
ROUNDS = 5
TARGET = 0.8
THREADS, N_SYNCED = 8, 800


def one_pass(root):
    """Operations per second of each kind, on the same fresh names."""
    directory = os.path.join(root, "names")
    os.mkdir(directory)
    seconds = {}
    for op in "create", "stat":
        seconds[op] = program("names", op, directory, N)
    drop_slab()
    time.sleep(0.2)
    seconds["stat, cold"] = program("names", "stat", directory, N)
    for op in "rename", "mkdir", "rmdir":
        seconds[op] = program("names", op, directory, N)
    back_to_first_names(directory)
    seconds["unlink"] = program("names", "unlink", directory, N)
    os.rmdir(directory)
    return {op: N / s for op, s in seconds.items()}


def back_to_first_names(directory):
    for i in range(N):
        os.rename(f"{directory}/g{i:07}", f"{directory}/f{i:07}")


def names(report, places, io):
    with contextlib.ExitStack() as stack:
        m = stack.enter_context(places.ckptfs(io, GIB))
        source = stack.enter_context(places.tmpfs(GIB))
        hp = stack.enter_context(places.passthrough_hp(source))

        def ours():
            result = one_pass(m.path)
            m.wait("nvme")
            return result

        ours()
        got = in_turn(ROUNDS, ckptfs=ours, hp=lambda: one_pass(hp))
    labels = {"create": "create+write+close"}
    for op in got["hp"][0]:
        report.ratio(f"{labels.get(op, op)}, {io}", "/ms",
                     [r[op] / 1e3 for r in got["ckptfs"]],
                     [r[op] / 1e3 for r in got["hp"]],
                     None if op == "rmdir" else TARGET,
                     "libfuse's passthrough_hp on tmpfs")


def passthrough(report, places):
    names(report, places, "passthrough")


def served(report, places):
    names(report, places, "served")


def fsyncs(report, places):
    def timed(root):
        directory = os.path.join(root, "synced")
        os.mkdir(directory)
        seconds = program("names", "fsync", directory, N_SYNCED, THREADS)
        program("names", "unlink", directory, N_SYNCED)
        os.rmdir(directory)
        sync_filesystem(places.disk)
        return N_SYNCED / seconds / 1e3

    with places.ckptfs("passthrough", GIB) as m:
        timed(m.path)
        got = in_turn(ROUNDS, ckptfs=lambda: timed(m.path),
                      disk=lambda: timed(places.disk))
    report.ratio(f"fsync of small files, {THREADS} threads", "/ms",
                 got["ckptfs"], got["disk"], 3, "disk, with fsync")


FIGURES = dict(passthrough=passthrough, served=served, fsync=fsyncs)

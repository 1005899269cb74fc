# SPDX-License-Identifier: Apache-2.0
"""Several writers whose files tell what was there before them.

    team.py order --top DIR --notes DIR --member K --of N --seed S
    team.py small --top DIR --notes DIR --threads N --files M

`order`, one process of N: file I of member K begins with the numbers of files
that each member had closed before this one was opened. So whatever survives
says itself what else must have. Every file is named once more in the
member's `latest`, which is overwritten in place.

`small`: N threads, each M files of their own, each fsynced, and beside each a
second one that is not.

Notes lie elsewhere: `counts`, an array in shared memory, and `promises-K`: a
line for each fsync that returned, saying what it covers.
"""
import argparse
import mmap
import os
import random
import struct
import threading

import calls
import oplist

MAX_FILES = 1500
HEAD_LEN = 200


class Counts:
    """How many files each member has closed."""

    def __init__(self, folder, n):
        fd = os.open(os.path.join(folder, "counts"), os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 8 * n)
        self.n, self.map = n, mmap.mmap(fd, 8 * n)
        os.close(fd)

    def all(self):
        return list(struct.unpack(f"={self.n}Q", self.map[:]))

    def set(self, member, count):
        self.map[8 * member:8 * member + 8] = struct.pack("=Q", count)


def content(seed, member, number, counts):
    """Head, then bytes that fit no other file."""
    head = " ".join(map(str, [member, number, *counts])).encode()
    r = random.Random(f"{seed} {member} {number}")
    pick = r.random()
    length = (r.randrange(0, 3000) if pick < 0.5 else
              r.randrange(3000, 200000) if pick < 0.9 else
              r.randrange(200000, 3000000))
    return head.ljust(HEAD_LEN) + oplist.piece_bytes(
        (member * MAX_FILES + number + 1, 0, length))


def head_of(data):
    member, number, *counts = map(int, data[:HEAD_LEN].split())
    return member, number, counts


def note_promise(fd, counts):
    os.write(fd, (" ".join(map(str, counts)) + "\n").encode())


def order(args):
    counts = Counts(args.notes, args.of)
    notes = os.open(os.path.join(args.notes, f"promises-{args.member}"),
                    os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    top = os.path.join(args.top, f"m{args.member}")
    os.mkdir(top)
    r = random.Random(f"{args.seed} how {args.member}")
    for number in range(MAX_FILES):
        data = content(args.seed, args.member, number, counts.all())
        path = os.path.join(top, f"f{number:05}")
        if r.random() < 0.5:
            calls.write(path, data)
        else:
            calls.write(path + ".tmp", data)
            os.rename(path + ".tmp", path)
        counts.set(args.member, number + 1)
        calls.write(os.path.join(top, "latest"),
                    content(args.seed, args.member, number, counts.all()))
        if r.random() < 0.03:
            before = counts.all()
            with calls.opened(path, os.O_RDONLY) as fd:
                os.fsync(fd)
            note_promise(notes, before)


def small_content(member, number):
    return calls.noise(100 + (number * 37 + member) % 3000, (member, number))


def small_member(args, notes, member):
    top = os.path.join(args.top, f"m{member}")
    try:
        os.mkdir(top)
        for number in range(args.files):
            data = small_content(member, number)
            with calls.opened(os.path.join(top, f"s{number:05}"),
                              os.O_WRONLY | os.O_CREAT) as fd:
                calls.write_all(fd, data)
                os.fsync(fd)
            os.write(notes, b"%d %d\n" % (member, number))
            calls.write(os.path.join(top, f"u{number:05}"), data)
    except OSError as e:
        os.write(notes, b"error %d\n" % (e.errno or 0))


def small(args):
    notes = os.open(os.path.join(args.notes, "promises"),
                    os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    threads = [threading.Thread(target=small_member, args=(args, notes, k))
               for k in range(args.threads)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("what", choices=("order", "small"))
    p.add_argument("--top", required=True)
    p.add_argument("--notes", required=True)
    p.add_argument("--member", type=int, default=0)
    p.add_argument("--of", type=int, default=1)
    p.add_argument("--seed", default="")
    p.add_argument("--threads", type=int, default=8)
    p.add_argument("--files", type=int, default=250)
    args = p.parse_args()
    try:
        order(args) if args.what == "order" else small(args)
    except OSError as e:
        print(f"team {args.what} {args.member}: {e}", flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()

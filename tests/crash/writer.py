# SPDX-License-Identifier: Apache-2.0
"""The process that does an operation list (oplist.py) on a mount.

    writer.py --top DIR --seed S --n N --journal FILE [--tolerate]

The journal lies elsewhere and tells what the process was told, a line each:

    b N              operation N begins
    d N TIME         it returned
    f N ERRNO        an fsync failed, which may be
    e N ERRNO TIME   it failed, and the process ends
    end              all was done
"""
import argparse
import mmap
import os
import time

import calls
import oplist


class Writer:
    def __init__(self, top):
        self.top = top
        self.held = []
        self.fd = None  # the file that stays open

    def at(self, path):
        return os.path.join(self.top, path)

    def do(self, op):
        getattr(self, "do_" + op[0])(*op[1:])

    def do_mkdir(self, path, mode):
        os.mkdir(self.at(path), mode)

    def do_rmdir(self, path):
        os.rmdir(self.at(path))

    def put(self, fd, piece, n=1):
        data = oplist.piece_bytes(piece)
        step = len(data) // n + 1
        for at in range(0, len(data), step):
            calls.write_all(fd, data[at:at + step])

    def do_write(self, path, piece, mode, n):
        flags = os.O_RDWR if n == 3 else os.O_WRONLY
        with calls.opened(self.at(path), flags | os.O_CREAT | os.O_TRUNC,
                          mode) as fd:
            self.put(fd, piece, n)

    def do_pwrite(self, path, at, piece):
        with calls.opened(self.at(path)) as fd:
            os.lseek(fd, at, os.SEEK_SET)
            self.put(fd, piece)

    def do_append(self, path, piece):
        with calls.opened(self.at(path), os.O_WRONLY | os.O_APPEND) as fd:
            self.put(fd, piece)

    def do_truncate(self, path, size):
        os.truncate(self.at(path), size)

    def do_rename(self, a, b):
        os.rename(self.at(a), self.at(b))

    def do_exchange(self, a, b):
        calls.rename2(self.at(a), self.at(b), calls.RENAME_EXCHANGE)

    def do_unlink(self, path):
        os.unlink(self.at(path))

    def do_symlink(self, target, path):
        os.symlink(target, self.at(path))

    def do_link(self, a, b):
        os.link(self.at(a), self.at(b))

    def do_mkfifo(self, path, mode):
        os.mkfifo(self.at(path), mode)

    def do_chmod(self, path, mode):
        os.chmod(self.at(path), mode)

    def do_setxattr(self, path, name, value):
        os.setxattr(self.at(path), name, value)

    def do_removexattr(self, path, name):
        os.removexattr(self.at(path), name)

    def do_utime(self, path, ns):
        os.utime(self.at(path), ns=(ns, ns))

    def do_fsync(self, path):
        with calls.opened(self.at(path), os.O_RDONLY) as fd:
            os.fsync(fd)

    def do_open(self, path, piece, mode):
        self.fd = os.open(self.at(path), os.O_WRONLY | os.O_CREAT
                          | os.O_TRUNC, mode)
        self.put(self.fd, piece)

    def do_close(self, path, piece):
        self.put(self.fd, piece)
        os.close(self.fd)
        self.fd = None

    def do_hold(self, path):
        f = open(self.at(path), "rb", buffering=0)
        size = os.fstat(f.fileno()).st_size
        mapped = size and len(self.held) % 2 and mmap.mmap(
            f.fileno(), size, prot=mmap.PROT_READ)
        self.held.append((f, mapped))

    def do_release(self):
        for f, mapped in self.held:
            if mapped:
                mapped.close()
            f.close()
        self.held.clear()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--top", required=True)
    p.add_argument("--seed", required=True)
    p.add_argument("--n", type=int, required=True)
    p.add_argument("--journal", required=True)
    p.add_argument("--tolerate", action="store_true",
                   help="an fsync may fail: it is noted as `f N ERRNO`")
    args = p.parse_args()
    os.umask(0)
    ops, _ = oplist.operations(args.seed, args.n)
    oplist.blob()
    journal = os.open(args.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    writer = Writer(args.top)
    for number, op in enumerate(ops):
        os.write(journal, b"b %d\n" % number)
        try:
            writer.do(op)
        except OSError as e:
            if args.tolerate and op[0] == "fsync":
                os.write(journal, b"f %d %d\n" % (number, e.errno or 0))
                continue
            os.write(journal, b"e %d %d %f\n"
                     % (number, e.errno or 0, time.monotonic()))
            os._exit(1)
        os.write(journal, b"d %d %f\n" % (number, time.monotonic()))
    os.write(journal, b"end\n")


if __name__ == "__main__":
    main()

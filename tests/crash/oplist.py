# SPDX-License-Identifier: Apache-2.0
"""What a job does to a mount, as a list of numbered operations, and what must
be seen after each.

The same seed gives the same list, so the process that does it (writer.py) and
the test that judges the result need not talk. An operation is a tuple, its
kind first. `Tree` is the model: apply() goes through the *events* of one
operation, one by one, because a crash may fall between them. A file appears
with its first seal, at its close; until then a crash leaves nothing of it.
"""
import functools
import hashlib
import os
import random
import stat

import calls

MIB = 1 << 20
BIGGEST = 12 * MIB
LIVE_MAX = 96 * MIB
_STRIDE, _SPREAD = 4099, MIB
_blob = None


def blob():
    """Bytes without a pattern; a piece with number n begins at its own place,
    so that no two pieces look alike anywhere."""
    global _blob
    if _blob is None:
        _blob = memoryview(calls.noise(BIGGEST + _SPREAD + 1, "crash"))
    return _blob


def piece_bytes(piece):
    number, off, length = piece
    if number is None:
        return bytes(length)
    at = number * _STRIDE % _SPREAD + off
    return blob()[at:at + length]


def length_of(content):
    return sum(p[2] for p in content)


def cut(content, start, end):
    """Bytes [start, end) of a content."""
    got, at = [], 0
    for number, off, length in content:
        a, b = max(start - at, 0), min(end - at, length)
        if a < b:
            got.append((number, off + a, b - a))
        at += length
    return tuple(got)


def resized(content, size):
    have = length_of(content)
    if size <= have:
        return cut(content, 0, size)
    return content + ((None, 0, size - have),)


def overwritten(content, at, piece):
    end = at + piece[2]
    content = resized(content, max(at, length_of(content)))
    return cut(content, 0, at) + (piece,) + cut(content, end, 1 << 62)


@functools.lru_cache(65536)
def digest(content):
    h = hashlib.sha256()
    for piece in content:
        h.update(piece_bytes(piece))
    return h.hexdigest()


# ---- the model ----------------------------------------------------------

class Node:
    def __init__(self, mode, content=None, target=None):
        self.mode = mode
        self.content = content  # None: a file never sealed, or no file
        self.pending = None     # of a file that is open for writing
        self.target = target
        self.mtime = None       # only if the user set it
        self.xattrs = {}

    def is_dir(self):
        return stat.S_ISDIR(self.mode)

    def is_file(self):
        return stat.S_ISREG(self.mode)

    def seal(self, content):
        self.content, self.mtime = content, None


class Tree:
    def __init__(self):
        self.nodes = {}  # relative path: Node; links share one

    def files(self):
        return [p for p, n in self.nodes.items() if n.is_file()]

    def dirs(self):
        return [p for p, n in self.nodes.items() if n.is_dir()]

    def children(self, path):
        return [p for p in self.nodes if p.startswith(path + "/")]

    def live_bytes(self):
        return sum(length_of(n.content or ()) + length_of(n.pending or ())
                   for n in self.nodes.values() if n.is_file())

    def move(self, a, b):
        node = self.nodes.pop(a)
        if node.is_dir():
            for path in self.children(b):
                del self.nodes[path]
            for path in self.children(a):
                self.nodes[b + path[len(a):]] = self.nodes.pop(path)
        self.nodes[b] = node

    def apply(self, op):
        """Yields after each event of the operation."""
        kind = op[0]
        yield from getattr(self, "do_" + kind)(*op[1:])

    def describe(self, deep=True, written=False):
        """As look() sees it; mtime only where it is known. Not deep: without
        checksums, which cost. written: what is unsealed counts, too."""
        links = {}
        for node in self.nodes.values():
            links[id(node)] = links.get(id(node), 0) + 1
        seen = {}
        for path, node in self.nodes.items():
            content = node.content
            if written and node.pending is not None:
                content = node.pending
            if node.is_file() and content is None:
                continue
            what = {"mode": oct(node.mode)}
            if node.is_file():
                what["size"] = length_of(content)
                if deep:
                    what["sha256"] = digest(content)
                what["links"] = links[id(node)]
                if node.mtime is not None:
                    what["mtime"] = node.mtime
            if node.target is not None:
                what["target"] = node.target
            else:
                what["xattrs"] = dict(node.xattrs)
            seen[path] = what
        return seen

    # one function for each kind of operation

    def do_mkdir(self, path, mode):
        self.nodes[path] = Node(stat.S_IFDIR | mode)
        yield

    def do_rmdir(self, path):
        del self.nodes[path]
        yield

    def do_write(self, path, piece, mode, *_):
        node = self.nodes.setdefault(path, Node(stat.S_IFREG | mode))
        node.seal((piece,) if piece[2] else ())
        yield

    def do_pwrite(self, path, at, piece):
        node = self.nodes[path]
        node.seal(overwritten(node.content, at, piece))
        yield

    def do_append(self, path, piece):
        node = self.nodes[path]
        node.seal(node.content + (piece,))
        yield

    def do_truncate(self, path, size):
        node = self.nodes[path]
        node.seal(resized(node.content, size))
        yield

    def do_rename(self, a, b):
        node = self.nodes[a]
        if node.pending is not None:  # sealed first, as it is now
            node.seal(node.pending)
            yield
        self.move(a, b)
        yield

    def do_exchange(self, a, b):
        x, y = self.nodes[a], self.nodes[b]
        self.nodes[a], self.nodes[b] = y, x
        yield

    def do_unlink(self, path):
        del self.nodes[path]
        yield

    def do_symlink(self, target, path):
        self.nodes[path] = Node(stat.S_IFLNK | 0o777, target=target)
        yield

    def do_link(self, a, b):
        self.nodes[b] = self.nodes[a]
        yield

    def do_mkfifo(self, path, mode):
        self.nodes[path] = Node(stat.S_IFIFO | mode)
        yield

    def do_chmod(self, path, mode):
        node = self.nodes[path]
        node.mode = stat.S_IFMT(node.mode) | mode
        yield

    def do_setxattr(self, path, name, value):
        self.nodes[path].xattrs[name] = value
        yield

    def do_removexattr(self, path, name):
        del self.nodes[path].xattrs[name]
        yield

    def do_utime(self, path, ns):
        self.nodes[path].mtime = ns
        yield

    def do_fsync(self, path):
        node = self.nodes.get(path)
        if node and node.pending is not None:
            node.seal(node.pending)
        yield

    def do_open(self, path, piece, mode):
        """Opened with O_TRUNC and written, not closed."""
        node = self.nodes.setdefault(path, Node(stat.S_IFREG | mode))
        node.pending = (piece,)
        yield

    def do_close(self, path, piece):
        """Writes more, then closes."""
        node = self.nodes[path]
        node.seal(node.pending + (piece,))
        node.pending = None
        yield

    def do_hold(self, path):
        yield  # a reader keeps it open

    def do_release(self):
        yield


PROMISES = ("fsync",)  # kinds after which all before it is durable
SILENT = ("fsync", "hold", "release", "open")  # change nothing that is seen


def look(top):
    """What is really there, as Tree.describe()."""
    seen = {}
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            what = calls.describe(path, owner=False)
            s = os.lstat(path)
            if stat.S_ISREG(s.st_mode):
                what["links"] = s.st_nlink
            else:
                what.pop("mtime")
            if stat.S_ISFIFO(s.st_mode):
                what["xattrs"] = {}
            seen[os.path.relpath(path, top)] = what
    return seen


def without_times(found, wanted):
    """found, with mtime only where wanted names one."""
    return {path: {k: v for k, v in what.items()
                   if k != "mtime" or "mtime" in wanted.get(path, {})}
            for path, what in found.items()}


def same(found, tree):
    wanted = tree.describe(deep=False)
    return found.keys() == wanted.keys() and all(
        found[path][key] == value for path, what in wanted.items()
        for key, value in what.items()) and all(
        found[path].get("sha256") == what.get("sha256")
        for path, what in tree.describe().items())


# ---- the list -----------------------------------------------------------

class Generator:
    """Operations that all work, in the order they are given."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tree = Tree()
        self.ops = []
        self.n_pieces = 0
        self.busy = set()    # paths being written, and what is above them
        self.steps = []      # complete ones, oldest first
        self.opened = None
        self.n_holds = 0

    def add(self, *op):
        self.ops.append(op)
        for _ in self.tree.apply(op):
            pass

    def size(self):
        r = self.random
        if self.tree.live_bytes() > LIVE_MAX:
            return r.choice((0, 100, 70000))
        pick = r.random()
        if pick < 0.4:
            return r.randrange(1, 65537)
        if pick < 0.7:
            return r.randrange(65537, MIB)
        if pick < 0.9:
            return r.randrange(MIB, BIGGEST)
        return r.choice((0, 1, 65536, 65537, MIB, 4 * MIB, 4 * MIB + 1,
                         8 * MIB - 1))

    def piece(self, length=None):
        self.n_pieces += 1
        return (self.n_pieces, 0, self.size() if length is None else length)

    def name(self, base=""):
        parent = base or self.random.choice([""] + self.free_dirs())
        name = f"{self.random.choice('abcdefgh')}{self.random.randrange(8)}"
        return f"{parent}/{name}" if parent else name

    def is_free(self, path):
        return not any(path == b or path.startswith(b + "/")
                       or b.startswith(path + "/") for b in self.busy)

    def free_dirs(self):
        return [p for p in self.tree.dirs() if not p.startswith("step-")]

    def some(self, kinds, steps=False):
        """A path of one of these kinds that may be changed, or None."""
        have = [p for p, n in self.tree.nodes.items()
                if stat.S_IFMT(n.mode) in kinds and self.is_free(p)
                and (steps or not p.startswith("step-")) and p != "latest"]
        return self.random.choice(have) if have else None

    def new_name(self):
        path = self.name()
        return None if path in self.tree.nodes else path

    # simple ones

    def op_write(self):
        path = self.name()
        node = self.tree.nodes.get(path)
        if node and (not node.is_file() or not self.is_free(path)):
            return
        self.add("write", path, self.piece(),
                 self.random.choice((0o644, 0o600, 0o664)),
                 self.random.choice((1, 3)))

    def op_overwrite(self):
        path = self.some((stat.S_IFREG,))
        if path:
            self.add("write", path, self.piece(), 0o644, 1)

    def op_pwrite(self):
        path = self.some((stat.S_IFREG,), steps=True)
        if path:
            have = length_of(self.tree.nodes[path].content)
            at = self.random.randrange(have + 1)
            length = self.random.randrange(1, min(2 * MIB, BIGGEST - at) + 1)
            self.add("pwrite", path, at, self.piece(length))

    def op_append(self):
        path = self.some((stat.S_IFREG,))
        if path and length_of(self.tree.nodes[path].content) < BIGGEST:
            self.add("append", path,
                     self.piece(self.random.randrange(1, 300000)))

    def op_truncate(self):
        path = self.some((stat.S_IFREG,))
        if path:
            have = length_of(self.tree.nodes[path].content)
            self.add("truncate", path, self.random.choice(
                (0, have // 2, have, min(have + 100000, BIGGEST))))

    def op_replace(self):
        """A temporary name, then the rename over what is there."""
        path = self.some((stat.S_IFREG,))
        if not path or path + ".tmp" in self.tree.nodes:
            return
        self.add("write", path + ".tmp", self.piece(), 0o644, 3)
        if self.random.random() < 0.2:
            self.add("fsync", path + ".tmp")
        self.add("rename", path + ".tmp", path)

    def op_rename(self):
        path, to = self.some((stat.S_IFREG, stat.S_IFLNK)), self.name()
        at = self.tree.nodes.get(to)
        if path and path != to and self.is_free(to) and (
                not at or not at.is_dir()
                and at is not self.tree.nodes[path]):
            self.add("rename", path, to)

    def op_rename_dir(self):
        path, to = self.some((stat.S_IFDIR,)), self.new_name()
        if path and to and not to.startswith(path + "/"):
            self.add("rename", path, to)

    def op_exchange(self):
        a, b = self.some((stat.S_IFREG,)), self.some((stat.S_IFREG,))
        if a and b and self.tree.nodes[a] is not self.tree.nodes[b]:
            self.add("exchange", a, b)

    def op_mkdir(self):
        path = self.new_name()
        if path and path.count("/") < 5:
            self.add("mkdir", path, self.random.choice((0o755, 0o700)))

    def op_rmdir(self):
        path = self.some((stat.S_IFDIR,))
        if path and not self.tree.children(path):
            self.add("rmdir", path)

    def op_unlink(self):
        path = self.some((stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO))
        if path:
            self.add("unlink", path)

    def op_symlink(self):
        path = self.new_name()
        if path:
            self.add("symlink", f"../{self.name()}", path)

    def op_link(self):
        a, b = self.some((stat.S_IFREG,)), self.new_name()
        if a and b:
            self.add("link", a, b)

    def op_mkfifo(self):
        path = self.new_name()
        if path:
            self.add("mkfifo", path, 0o640)

    def op_chmod(self):
        path = self.some((stat.S_IFREG, stat.S_IFDIR), steps=True)
        if path:
            self.add("chmod", path, self.random.choice(
                (0o755, 0o700, 0o711, 0o750)))

    def op_setxattr(self):
        path = self.some((stat.S_IFREG, stat.S_IFDIR), steps=True)
        if path:
            self.add("setxattr", path, f"user.n{self.random.randrange(3)}",
                     calls.noise(self.random.randrange(1, 600),
                                 len(self.ops)))

    def op_removexattr(self):
        path = self.some((stat.S_IFREG, stat.S_IFDIR))
        names = sorted(self.tree.nodes[path].xattrs) if path else None
        if names:
            self.add("removexattr", path, names[0])

    def op_utime(self):
        path = self.some((stat.S_IFREG,))
        if path:
            self.add("utime", path, self.random.randrange(10 ** 18))

    def op_fsync(self):
        path = self.some((stat.S_IFREG, stat.S_IFDIR), steps=True)
        if path and self.random.random() < 0.5:
            self.add("fsync", path)

    def op_hold(self):
        path = self.some((stat.S_IFREG,), steps=True)
        if path and self.n_holds < 6:
            self.n_holds += 1
            self.add("hold", path)

    def op_hold_latest(self):
        if "latest" in self.tree.nodes and self.n_holds < 6:
            self.n_holds += 1
            self.add("hold", "latest")

    def op_release(self):
        self.n_holds = 0
        self.add("release")

    # a file that stays open for some operations

    def op_open(self):
        path = self.name()
        node = self.tree.nodes.get(path)
        if self.opened or node and (not node.is_file()
                                    or node.xattrs is None):
            return
        links = [p for p, n in self.tree.nodes.items() if n is node] \
            if node else []
        if len(links) > 1:
            return
        self.add("open", path, self.piece(max(1, self.size() // 4)), 0o644)
        self.opened = path
        self.busy = {path}

    def op_opened(self):
        """Something happens to the file that is being written."""
        path = self.opened
        if not path:
            return
        pick = self.random.random()
        if pick < 0.3:
            self.add("fsync", path)
        elif pick < 0.5:
            to = self.new_name()
            if to and not to.startswith(path):
                self.add("rename", path, to)
                self.opened, self.busy = to, {to}
        else:
            self.add("close", path, self.piece(max(1, self.size() // 4)))
            self.opened, self.busy = None, set()

    # a checkpoint

    def op_step(self):
        r = self.random
        number = len(self.ops)
        name = f"step-{number}"
        folder = name + (".tmp" if r.random() < 0.5 else "")
        self.add("mkdir", folder, 0o755)
        shards = [f"rank{i}.pt" for i in range(r.randrange(2, 6))]
        for shard in shards:
            self.add("write", f"{folder}/{shard}", self.piece(), 0o644, 1)
            if r.random() < 0.1:
                self.op_other()
        self.add("write", f"{folder}/.metadata",
                 self.piece(r.randrange(1, 3000)), 0o644, 1)
        if folder != name:
            self.add("rename", folder, name)
        self.steps.append(name)
        self.op_latest(name)
        if len(self.steps) > 3:
            self.remove_tree(self.steps.pop(0))

    def op_latest(self, name):
        """`latest` names a step by its number and its length."""
        piece = self.piece(int(name.split("-")[1]) % 900 + 1)
        pick = self.random.random()
        if pick < 0.5:
            self.add("write", "latest", piece, 0o644, 1)
        else:
            self.add("write", "latest.tmp", piece, 0o644, 1)
            self.add("rename", "latest.tmp", "latest")
        self.latest[piece] = name

    def remove_tree(self, name):
        # A rotation goes the way shutil.rmtree does.
        for path in sorted(self.tree.children(name), reverse=True):
            if self.tree.nodes[path].is_dir():
                self.add("rmdir", path)
            else:
                self.add("unlink", path)
        self.add("rmdir", name)

    def op_remove_tree(self):
        path = self.some((stat.S_IFDIR,))
        if path and len(self.tree.children(path)) < 12:
            self.remove_tree(path)

    WEIGHTS = (("write", 16), ("overwrite", 10), ("pwrite", 6), ("append", 5),
               ("truncate", 4), ("replace", 8), ("rename", 4),
               ("rename_dir", 3), ("exchange", 1), ("mkdir", 5), ("rmdir", 1),
               ("unlink", 7), ("symlink", 2), ("link", 2), ("mkfifo", 1),
               ("chmod", 3), ("setxattr", 3), ("removexattr", 1),
               ("utime", 2), ("fsync", 2), ("hold", 3), ("hold_latest", 2),
               ("release", 2), ("open", 3), ("opened", 8),
               ("remove_tree", 1))

    def op_other(self):
        names = [n for n, _ in self.WEIGHTS]
        weights = [w for _, w in self.WEIGHTS]
        if self.tree.live_bytes() > LIVE_MAX:
            names, weights = names + ["unlink"], weights + [60]
        pick = self.random.choices(names, weights)[0]
        getattr(self, "op_" + pick)()

    def generate(self, n):
        self.latest = {}
        for path in ("d0", "d1", "d0/e"):
            self.add("mkdir", path, 0o755)
        while len(self.ops) < n:
            if self.random.random() < 0.06:
                self.op_step()
            else:
                self.op_other()
        return self.ops


def operations(seed, n):
    """The list, and which step each content of `latest` names."""
    g = Generator(seed)
    return g.generate(n), {digest((piece,)): name
                           for piece, name in g.latest.items()}


# ---- judging ------------------------------------------------------------

def matches(ops, found, upto):
    """The operations after one of whose events the tree looks as found."""
    tree = Tree()
    got = [-1] if not found else []
    for number, op in enumerate(ops[:upto + 1]):
        for _ in tree.apply(op):
            if same(found, tree):
                got.append(number)
    return got


def nearest(ops, found, upto):
    """For people: the state that differs least from what was found."""
    tree = Tree()
    best = None
    for number, op in enumerate(ops[:upto + 1]):
        for _ in tree.apply(op):
            wanted = tree.describe()
            have = without_times(found, wanted)
            n = sum(have.get(p) != wanted.get(p)
                    for p in have.keys() | wanted.keys())
            if best is None or n <= best[0]:
                best = (n, number, op,
                        calls.difference(have, wanted))
    return best


# ---- judging what a daemon's death left -----------------------------------

WRITES = ("write", "pwrite", "append", "truncate", "open", "close")


def written_content(op, node):
    """The bytes a file may hold while op writes it: those before, and those
    after if all of it was done."""
    old = node.pending if node.pending is not None else node.content or ()
    kind, piece = op[0], op[-1]
    if kind in ("write", "open"):
        return (), (op[2],)
    if kind == "truncate":
        return old, resized(old, piece)
    if kind == "pwrite":
        return old, overwritten(old, op[2], piece)
    return old, old + (piece,)


def whole(content):
    return b"".join(bytes(piece_bytes(p)) for p in content)


def is_between(data, op, node):
    """Was op on its way when the daemon died? A write goes from front to
    back; whatever is not yet written is as it was."""
    before = whole(node.content or ())
    if data == before:
        return True
    start, end = map(whole, written_content(op, node))
    if data in (start, end):
        return True
    if len(data) > max(len(start), len(end)):
        return False
    at = op[2] if op[0] == "pwrite" else len(start)
    done = at
    while done < len(data) and data[done] == end[done]:
        done += 1
    return (data[:at] == end[:at] and data[done:] == start[done:len(data)]
            and len(data) >= min(len(start), len(end)))


def differs(found, wanted, without):
    have = without_times(found, wanted)
    return calls.difference(
        {k: v for k, v in have.items() if k not in without},
        {k: v for k, v in wanted.items() if k not in without})


def judge_written(ops, top, done, begun):
    """All that returned is there; of the one on its way, something between
    nothing and all. Returns what is wrong, or ""."""
    tree = Tree()
    for op in ops[:done + 1]:
        for _ in tree.apply(op):
            pass
    found = look(top)
    answers = [differs(found, tree.describe(written=True), ())]
    if begun > done and answers[0]:
        op = ops[begun]
        if op[0] in WRITES:
            node = tree.nodes.get(op[1]) or Node(0)
            names = {p for p, n in tree.nodes.items() if n is node} | {op[1]}
            answer = differs(found, tree.describe(written=True), names)
            path = os.path.join(top, op[1])
            if not answer and op[1] in found and not is_between(
                    calls.read(path), op, node):
                answer = f"{op[1]} is neither as before {op} nor after"
            answers.append(answer)
        else:
            for _ in tree.apply(op):
                answers.append(differs(found, tree.describe(written=True),
                                       ()))
    return min(answers, key=len)

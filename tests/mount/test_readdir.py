# SPDX-License-Identifier: Apache-2.0
"""Listings: large ones, changing ones, and nothing in them that is ours."""
import ctypes
import errno
import os

import pytest

import mounted
from calls import RENAME_EXCHANGE, fails, opened, rename2, write

MANY = 10_000 if mounted.SANITIZED else 100_000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.opendir.restype = _libc.fdopendir.restype = ctypes.c_void_p
_libc.opendir.argtypes = [ctypes.c_char_p]
_libc.readdir64.restype = ctypes.c_void_p
_libc.telldir.restype = ctypes.c_long
for call, rest in (("readdir64", []), ("closedir", []), ("rewinddir", []),
                   ("telldir", []), ("seekdir", [ctypes.c_long])):
    getattr(_libc, call).argtypes = [ctypes.c_void_p, *rest]


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64),
                ("reclen", ctypes.c_ushort), ("type", ctypes.c_ubyte),
                ("name", ctypes.c_char * 256)]


class Listing:
    """opendir(3) and its family, one entry at a time."""

    def __init__(self, path):
        self.dir = _libc.opendir(os.fsencode(path))
        assert self.dir

    def next(self):
        at = _libc.readdir64(self.dir)
        return Dirent.from_address(at).name.decode() if at else None

    def rest(self):
        return [n for n in iter(self.next, None) if n not in (".", "..")]

    def tell(self):
        return _libc.telldir(self.dir)

    def seek(self, at):
        _libc.seekdir(self.dir, at)

    def rewind(self):
        _libc.rewinddir(self.dir)

    def close(self):
        _libc.closedir(self.dir)


def fill(folder, names):
    """Cheap entries: no matter what they are."""
    for name in names:
        os.mknod(folder / name, 0o100600)


def test_empty(d):
    (d / "sub").mkdir()
    one = Listing(d / "sub")
    assert sorted([one.next(), one.next()]) == [".", ".."]
    assert one.next() is None
    one.close()


def test_types_are_told(d):
    write(d / "file", b"")
    (d / "dir").mkdir()
    os.symlink("x", d / "link")
    os.mkfifo(d / "fifo")
    with os.scandir(d) as entries:
        found = {e.name: (e.is_file(follow_symlinks=False), e.is_dir(),
                          e.is_symlink(), e.inode() == os.lstat(e).st_ino)
                 for e in entries}
    assert found == {"file": (True, False, False, True),
                     "dir": (False, True, False, True),
                     "link": (False, False, True, True),
                     "fifo": (False, False, False, True)}


def test_dot_and_dotdot_have_numbers(d):
    (d / "sub").mkdir()
    one = _libc.opendir(os.fsencode(d / "sub"))
    found = {}
    while at := _libc.readdir64(one):
        entry = Dirent.from_address(at)
        found[entry.name] = entry.ino
    _libc.closedir(one)
    assert found[b"."] == os.stat(d / "sub").st_ino
    assert b".." in found


def test_hundred_thousand_entries(fresh, mode):
    """Complete, each name once, in bounded memory."""
    if mode == "served":
        pytest.skip("listing knows no io mode")
    m = fresh()
    top = m.path / "many"
    top.mkdir()
    names = [f"rank-{i:06}.distcp" for i in range(MANY)]
    fill(top, names)
    listed = os.listdir(top)
    assert len(listed) == MANY
    assert set(listed) == set(names)
    assert sorted(os.listdir(m.path)) == ["many"]
    if m.process:
        with open(f"/proc/{m.process.pid}/smaps_rollup") as f:
            anonymous = next(int(line.split()[1]) for line in f
                             if line.startswith("Anonymous:"))
        if not mounted.SANITIZED:
            assert anonymous < 150 * 1024
    for name in names[::7]:
        os.unlink(top / name)
    assert len(os.listdir(top)) == MANY - len(names[::7])


def test_stable_while_entries_change(d):
    """What was there all the time is listed exactly once."""
    stay = [f"stay-{i:05}" for i in range(3000)]
    go = [f"go-{i:05}" for i in range(3000)]
    fill(d, [n for pair in zip(stay, go) for n in pair])
    one = Listing(d)
    seen = []
    for i in range(3000):
        if name := one.next():
            seen.append(name)
        os.unlink(d / go[i])
        if i % 3 == 0:
            os.mknod(d / f"new-{i:05}", 0o100600)
    seen += one.rest()
    one.close()
    assert sorted(n for n in seen if n.startswith("stay")) == stay
    assert len(seen) == len(set(seen))


def test_rm_while_listing(d):
    """rm -r: unlinks each entry as it comes."""
    fill(d, [f"f{i}" for i in range(5000)])
    one = Listing(d)
    for name in iter(one.next, None):
        if name not in (".", ".."):
            os.unlink(d / name)
    one.close()
    assert os.listdir(d) == []


def test_rename_of_others_while_listing(d):
    fill(d, [f"f{i:04}" for i in range(2000)])
    one = Listing(d)
    seen = [one.next() for _ in range(100)]
    for i in range(1000, 2000):
        os.rename(d / f"f{i:04}", d / f"g{i:04}")
    seen += one.rest()
    one.close()
    assert {f"f{i:04}" for i in range(1000)} <= set(seen)
    assert len(seen) == len(set(seen))


def rewrite(folder, name):
    """By a new file from elsewhere, as a converter does."""
    write(folder.parent / f"{folder.name}.tmp", b"new")
    os.rename(folder.parent / f"{folder.name}.tmp", folder / name)


def there_and_back(folder, name):
    """xfstests generic/736."""
    os.rename(folder / name, folder / "temporary")
    os.rename(folder / "temporary", folder / name)


def swapped(folder, name):
    for other in (folder.parent / "other", folder / "f7"):
        rename2(folder / name, other, RENAME_EXCHANGE)


def copied(folder, name):
    os.mknod(folder / f"copy-of-{name}", 0o100600)


@pytest.mark.parametrize("change", (rewrite, there_and_back, swapped, copied))
def test_each_entry_changed_as_it_comes(m, d, change):
    """It ends, and shows each once."""
    top = d / "top"
    top.mkdir()
    write(d / "other", b"")
    names = [f"f{i}" for i in range(20)]
    fill(top, names)
    one = Listing(top)
    seen = []
    for name in iter(one.next, None):
        if name not in (".", ".."):
            seen.append(name)
            change(top, name)
        assert len(seen) <= 20
    one.close()
    assert sorted(seen) == sorted(names)


def test_pointer_replaced_while_listing(d):
    """`latest`, replaced between any two entries, is listed exactly once."""
    names = [f"step-{i}" for i in range(600)]
    fill(d, [*names[:300], "latest", *names[300:]])
    one = Listing(d)
    seen = []
    for name in iter(one.next, None):
        seen.append(name)
        assert len(seen) <= len(names) + 3
        write(d / ".latest.tmp", name.encode())
        os.rename(d / ".latest.tmp", d / "latest")
    one.close()
    assert sorted(seen) == sorted([".", "..", "latest", *names])


def test_telldir_seekdir_rewinddir(d):
    fill(d, [f"f{i}" for i in range(1000)])
    one = Listing(d)
    before = [one.next() for _ in range(500)]
    place = one.tell()
    after = one.rest()
    one.seek(place)
    assert one.rest() == after
    os.mknod(d / "new", 0o100600)
    one.rewind()
    again = one.rest()
    one.close()
    assert set(again) == set(before) - {".", ".."} | set(after) | {"new"}


def test_new_entries_are_seen_at_once(d):
    for i in range(100):
        os.mknod(d / f"f{i}", 0o100600)
        assert len(os.listdir(d)) == i + 1
    for i in range(100):
        os.unlink(d / f"f{i}")
        assert len(os.listdir(d)) == 99 - i


def test_nothing_of_ours_is_listed(m, d, mode):
    """Also while files are open, unlinked, replaced."""
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, b"x")
        os.unlink(d / "f")
        assert os.listdir(d) == []
        assert not [n for n in os.listdir(m.path) if n.startswith(".")]
    write(d / "a", b"1")
    write(d / "b", b"2")
    with opened(d / "b", os.O_RDONLY):
        os.rename(d / "a", d / "b")
        assert os.listdir(d) == ["b"]


def test_hidden_tree(m, mode):
    """Looked up, never listed, never changed."""
    if mode == "plain":
        pytest.skip("a plain directory has none")
    ours = m.path / ".ckptfs"
    assert ours.is_dir()
    assert ".ckptfs" not in os.listdir(m.path)
    text = (ours / "metrics").read_text()
    assert "ckptfs" in text
    for line in text.splitlines():
        if not line.startswith("#"):
            float(line.rsplit(" ", 1)[1])
    for call in (lambda: os.mkdir(ours), lambda: os.rmdir(ours),
                 lambda: write(ours / "x", b""), lambda: os.mkdir(ours / "d"),
                 lambda: os.unlink(ours / "metrics"),
                 lambda: os.rename(ours, m.path / "y"),
                 lambda: os.symlink("x", ours / "l"),
                 lambda: os.open(ours / "metrics", os.O_RDWR)):
        with fails(errno.EPERM, errno.EACCES, errno.EEXIST, errno.EROFS,
                   errno.EBUSY, errno.ENOTEMPTY, errno.EXDEV):
            call()

# SPDX-License-Identifier: Apache-2.0
"""Tensors as files: /ckpt/.ckptfs/tensors, ckptctl tensors and diff."""
import errno
import json
import os
import shutil
import subprocess

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
from safetensors.torch import save_file  # noqa: E402

from calls import coming_and_going, errno_of, noise, opened, read, write  # noqa: E402
from mounted import Mounted, until  # noqa: E402
from user import OTHER, in_child  # noqa: E402

MB = 1 << 20


@pytest.fixture(autouse=True)
def not_plain(mode):
    if mode == "plain":
        pytest.skip("a plain directory has no tree of tensors")


def tree(m, path=None):
    top = m.path / ".ckptfs" / "tensors"
    return top / path.relative_to(m.path) if path else top


def some_tensors(scale=1, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {
        "layer.0.weight": torch.randn(64 * scale, 33, generator=g),
        "layer.0.bias": torch.randn(33, generator=g).to(torch.bfloat16),
        "layer.1.weight": torch.arange(6000 * scale).reshape(2, 3, -1),
        "a/b%c": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 4),
    }


def file_name(name):
    return name.replace("%", "%25").replace("/", "%2F") + ".npy"


def as_numpy(t):
    return t.view(torch.uint16).numpy() if t.dtype == torch.bfloat16 \
        else t.numpy()


def check_file(folder, tensors):
    """A directory of the tree shows these tensors, whichever way it is read."""
    assert sorted(os.listdir(folder)) == sorted(map(file_name, tensors))
    for name, t in tensors.items():
        path = folder / file_name(name)
        want = as_numpy(t)
        got = np.load(path)
        assert got.dtype == want.dtype and got.shape == want.shape
        assert (got == want).all(), name
        data = path.read_bytes()
        assert os.stat(path).st_size == len(data)
        if want.size:
            assert (np.load(path, mmap_mode="r") == want).all()


def fetched(m):
    return m.status()["counts"]["fetched_bytes"]


# ---- what is shown ---------------------------------------------------------

def test_safetensors(m, d):
    save_file(some_tensors(), d / "model.safetensors")
    check_file(tree(m, d) / "model.safetensors", some_tensors())


def test_torch_save(m, d):
    t = some_tensors()
    torch.save({"model": t, "step": 7}, d / "rank0.pt")
    check_file(tree(m, d) / "rank0.pt",
               {f"model.{name}": value for name, value in t.items()})


def test_npy_and_npz(m, d):
    a = np.arange(5000.).reshape(50, 100)
    np.save(d / "one.npy", a)
    np.savez_compressed(d / "more.npz", a=a, b=a.T.copy())
    names = os.listdir(tree(m, d) / "one.npy")
    assert len(names) == 1
    assert (np.load(tree(m, d) / "one.npy" / names[0]) == a).all()
    assert sorted(os.listdir(tree(m, d) / "more.npz")) == ["a.npy", "b.npy"]
    assert (np.load(tree(m, d) / "more.npz" / "b.npy") == a.T).all()


def test_mirrors_directories(m, d):
    (d / "step-1" / "deep").mkdir(parents=True)
    (d / "empty").mkdir()
    save_file(some_tensors(), d / "step-1" / "deep" / "x.safetensors")
    write(d / "step-1" / "config.json", b"{}")
    os.symlink("step-1", d / "latest")
    os.symlink("/etc", d / "elsewhere")
    top = tree(m, d)
    assert sorted(os.listdir(top)) == ["empty", "latest", "step-1"]
    assert os.listdir(top / "step-1") == ["deep"]
    assert os.listdir(top / "latest" / "deep") == ["x.safetensors"]
    assert os.readlink(top / "latest") == "step-1"
    s, real = os.stat(top / "step-1"), os.stat(d / "step-1")
    assert (s.st_mtime_ns, s.st_uid) == (real.st_mtime_ns, real.st_uid)
    path = top / "step-1" / "deep" / "x.safetensors" / "scalar.npy"
    assert os.stat(path).st_mtime_ns == \
        os.stat(d / "step-1" / "deep" / "x.safetensors").st_mtime_ns
    os.rename(d / "step-1", d / "step-2")
    until(lambda: os.listdir(top / "step-2" / "deep") == ["x.safetensors"])


def test_is_never_listed(m, d):
    assert ".ckptfs" not in os.listdir(m.path)
    assert sorted(os.listdir(m.path / ".ckptfs")) == ["metrics", "tensors"]
    assert ".ckptfs" not in os.listdir(tree(m))
    assert errno_of(os.stat, tree(m) / ".ckptfs") == errno.ENOENT
    assert errno_of(os.stat, d / ".ckptfs") == errno.ENOENT


def test_is_read_only(m, d):
    save_file(some_tensors(), d / "f.safetensors")
    folder = tree(m, d) / "f.safetensors"
    path = folder / "scalar.npy"
    for call in ((write, path, b"x"), (write, folder / "new", b"x"),
                 (os.unlink, path), (os.rmdir, folder),
                 (os.mkdir, tree(m, d) / "sub"), (os.truncate, path, 0),
                 (os.rename, path, folder / "y"), (os.chmod, path, 0o777),
                 (os.utime, path), (os.link, path, folder / "z"),
                 (os.rename, path, d / "stolen"),
                 (os.setxattr, path, "user.x", b"")):
        assert errno_of(*call) in (errno.EPERM, errno.EROFS, errno.EACCES,
                                   errno.EXDEV), call
    assert errno_of(os.stat, folder / "none.npy") == errno.ENOENT
    assert errno_of(os.stat, folder / "scalar") == errno.ENOENT
    assert errno_of(os.stat, path / "x") == errno.ENOTDIR
    check_file(folder, some_tensors())


def test_what_is_opaque_is_not_shown(m, d):
    save_file(some_tensors(), d / "whole.safetensors")
    whole = read(d / "whole.safetensors")
    write(d / "empty.safetensors", b"")
    write(d / "text.txt", b"hello\n" * 100)
    write(d / "cut.safetensors", whole[:len(whole) // 2])
    write(d / "huge.safetensors", b"\xff" * 7 + b"\x7f" + whole[8:])
    write(d / "noise.pt", noise(MB))
    write(d / "zip.pt", b"PK\3\4" + noise(MB))
    write(d / "gguf", b"GGUF" + b"\xff" * 200)
    write(d / "npy.npy", b"\x93NUMPY\1\0\xff\xff" + noise(1000))
    write(d / "m.index.json", b'{"weight_map": {"a": "../../x"}}')
    write(d / ".metadata", b"\x80\2cos\nsystem\n(S'id'\ntR.")
    shown = set(os.listdir(tree(m, d)))
    assert shown <= {"whole.safetensors", "m.index.json"}
    assert "whole.safetensors" in shown
    for name in ("cut.safetensors", "text.txt", ".metadata"):
        assert errno_of(os.stat, tree(m, d) / name) == errno.ENOENT
    assert m.alive()


def test_odd_names(m, d):
    t = {"x" * 300: torch.tensor([1]), "x" * 299 + "y": torch.tensor([2]),
         "ü" * 200: torch.tensor([3]), "..": torch.tensor([4]),
         "new\nline": torch.tensor([5]), "%2F": torch.tensor([6]),
         "/": torch.tensor([7]), "%~0": torch.tensor([8]),
         "z" * 251: torch.tensor([9]), "z" * 252: torch.tensor([10])}
    save_file(t, d / "f.safetensors")
    folder = tree(m, d) / "f.safetensors"
    names = os.listdir(folder)
    assert len(set(names)) == len(t)
    assert all(len(os.fsencode(n)) <= 255 for n in names)
    assert sorted(int(np.load(folder / n)[0]) for n in names) == \
        list(range(1, 11))
    assert int(np.load(folder / "new%0Aline.npy")[0]) == 5
    assert int(np.load(folder / ("z" * 251 + ".npy"))[0]) == 9


@pytest.mark.limit(200)
def test_ten_thousand_tensors(m, d):
    t = {f"layer.{i}.w": torch.tensor([i, i + 1]) for i in range(10000)}
    save_file(t, d / "many.safetensors")
    folder = tree(m, d) / "many.safetensors"
    names = os.listdir(folder)
    assert len(names) == 10000
    with os.scandir(folder) as entries:
        sizes = {e.stat().st_size for e in entries}
    assert sizes == {128 + 16}
    for i in (0, 1, 4999, 9999):
        assert list(np.load(folder / f"layer.{i}.w.npy")) == [i, i + 1]


def test_cp_and_ls(m, d, plain):
    t = some_tensors(scale=1000)
    save_file(t, d / "f.safetensors")
    folder = tree(m, d) / "f.safetensors"
    subprocess.run(["cp", "-r", folder, plain / "copy"], check=True)
    assert (np.load(plain / "copy" / "layer.0.weight.npy")
            == t["layer.0.weight"].numpy()).all()
    out = subprocess.run(["ls", "-l", folder], check=True, text=True,
                         capture_output=True).stdout
    assert str(128 + 64 * 1000 * 33 * 4) in out


# ---- sharded ---------------------------------------------------------------

def save_sharded(folder, tensors, n=3):
    names = sorted(tensors)
    shards = [f"model-{i:05}-of-{n:05}.safetensors" for i in range(n)]
    for i, shard in enumerate(shards):
        save_file({k: tensors[k] for k in names[i::n]}, folder / shard)
    write(folder / "model.safetensors.index.json", json.dumps({
        "metadata": {"total_size": 1},
        "weight_map": {k: shards[names.index(k) % n] for k in names},
    }).encode())


def test_index_shows_whole_checkpoint(m, d):
    t = some_tensors()
    save_sharded(d, t)
    check_file(tree(m, d) / "model.safetensors.index.json", t)
    # One shard is replaced: seen a second later at the latest.
    t2 = some_tensors(seed=5)
    save_sharded(d, t2)

    def is_new():
        path = tree(m, d) / "model.safetensors.index.json"
        return (np.load(path / "layer.0.weight.npy")
                == t2["layer.0.weight"].numpy()).all()
    until(is_new)


def test_dcp_shows_whole_tensors(m, d):
    import torch.distributed.checkpoint as dcp
    t = {"w": torch.randn(300, 20), "b": torch.arange(7)}
    dcp.save({"model": t}, checkpoint_id=str(d / "step-1"),
             no_dist=True)
    folder = tree(m, d) / "step-1" / ".metadata"
    assert sorted(os.listdir(folder)) == ["model.b.npy", "model.w.npy"]
    assert (np.load(folder / "model.w.npy") == t["w"].numpy()).all()
    assert (np.load(folder / "model.b.npy") == t["b"].numpy()).all()


# ---- who may ---------------------------------------------------------------

def by(uid, function, *arguments):
    return in_child(lambda: errno_of(function, *arguments), uid)


@pytest.mark.root
def test_rights_are_those_of_the_file(m, d):
    os.chmod(d, 0o755)
    save_sharded(d, some_tensors())
    path = d / "model-00000-of-00003.safetensors"
    name = sorted(map(file_name, sorted(some_tensors())[::3]))[0]
    folder = tree(m, d) / path.name
    os.chmod(path, 0o600)
    until(lambda: by(OTHER, os.listdir, folder) == errno.EACCES)
    assert by(OTHER, read, folder / name) == errno.EACCES
    assert os.listdir(folder)
    # Also through the index, which may be read.
    os.chmod(d / "model.safetensors.index.json", 0o644)
    for shard in d.glob("model-*"):
        os.chmod(shard, 0o644)
    whole = tree(m, d) / "model.safetensors.index.json" / name
    until(lambda: by(OTHER, read, whole) == 0)
    os.chmod(path, 0o600)
    until(lambda: by(OTHER, read, whole) == errno.EACCES)
    # Nor does an index tell what is in it.
    assert by(OTHER, os.listdir, whole.parent) == errno.EACCES
    until(lambda: by(OTHER, os.stat, whole) == errno.EACCES)
    assert by(OTHER, read, whole.parent / ".record") == errno.EACCES
    assert os.listdir(whole.parent)
    os.chmod(path, 0o644)
    assert by(OTHER, os.listdir, whole.parent) == 0
    assert by(OTHER, read, whole.parent / ".record") == 0
    until(lambda: by(OTHER, read, folder / name) == 0)
    # Nobody gets past a directory.
    os.chmod(d, 0o700)
    until(lambda: by(OTHER, read, folder / name) == errno.EACCES)


@pytest.mark.root
def test_an_index_tells_nothing_of_others_files(m, d):
    os.chmod(d, 0o755)
    (d / "closed").mkdir(mode=0o700)
    secret = d / "closed" / "secret.safetensors"
    save_file({"full": torch.ones(4), "empty": torch.zeros(0, 4096)}, secret)
    index = d / "own.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {
        name: "closed/secret.safetensors"
        for name in ("full", "empty", "ghost")}}))
    os.chmod(index, 0o644)
    folder = tree(m, d) / index.name
    names = [".record", "full.npy", "empty.npy", "ghost.npy"]
    for _ in range(2):
        assert by(OTHER, os.listdir, folder) == errno.EACCES
        for name in names:
            assert by(OTHER, os.stat, folder / name) == errno.EACCES, name
        # Also where the file may be read, and only its folder not.
        os.chmod(secret, 0o644)
    # A name in an open folder will do, too.
    os.link(secret, d / "open.safetensors")
    assert by(OTHER, os.listdir, folder) == 0
    for name in names[:3]:
        assert by(OTHER, read, folder / name) == 0, name
    assert by(OTHER, os.stat, folder / "ghost.npy") == errno.ENOENT


# ---- changes ---------------------------------------------------------------

@pytest.mark.parametrize("how", ["rename", "truncate", "unlink"])
def test_open_tensors_stay_what_they_are(m, d, how):
    """An open one keeps its bytes, whatever becomes of its file."""
    old, new = some_tensors(100), some_tensors(100, seed=9)
    save_file(old, d / "f.safetensors")
    path = tree(m, d) / "f.safetensors" / "layer.0.weight.npy"
    want = old["layer.0.weight"].numpy()
    with opened(path, os.O_RDONLY) as fd:
        mapped = np.load(path, mmap_mode="r")
        if how == "rename":
            save_file(new, d / "g.safetensors")
            os.rename(d / "g.safetensors", d / "f.safetensors")
        elif how == "truncate":
            save_file(new, d / "other.safetensors")
            write(d / "f.safetensors", read(d / "other.safetensors"))
        else:
            os.unlink(d / "f.safetensors")
        assert (mapped == want).all()
        data = os.pread(fd, os.fstat(fd).st_size, 0)
        assert data[-want.nbytes:] == want.tobytes()
        if how == "unlink":
            until(lambda: errno_of(os.stat, path) == errno.ENOENT)
            return
        assert (np.load(path) == new["layer.0.weight"].numpy()).all()
        assert (mapped == want).all()


@pytest.mark.parametrize("how", ["rename", "unlink"])
def test_open_and_not_read_yet(m, d, how):
    """A large one, so that nothing of it is in the page cache either."""
    n = 8 << 20
    old = {"w": torch.arange(n // 8)}
    save_file(old, d / "f.safetensors")
    save_file({"w": torch.zeros(n // 8, dtype=torch.int64)},
              d / "g.safetensors")
    m.wait("nvme")
    fd = os.open(tree(m, d) / "f.safetensors" / "w.npy", os.O_RDONLY)
    if how == "rename":
        os.rename(d / "g.safetensors", d / "f.safetensors")
    else:
        os.unlink(d / "f.safetensors")
    m.wait("nvme")
    data = os.pread(fd, n + 4096, 0)
    os.close(fd)
    assert data[-n:] == old["w"].numpy().tobytes()


def test_overwritten_in_place(m, d):
    """Its own bytes, or an error; never those of the next version."""
    old, new = some_tensors(500), some_tensors(500, seed=9)
    save_file(old, d / "f.safetensors")
    save_file(new, d / "g.safetensors")
    data = read(d / "g.safetensors")
    path = tree(m, d) / "f.safetensors" / "layer.0.weight.npy"
    want = old["layer.0.weight"].numpy().tobytes()
    with opened(path, os.O_RDONLY) as fd:
        with opened(d / "f.safetensors", os.O_RDWR) as out:
            os.pwrite(out, data, 0)
            size = os.fstat(fd).st_size
            try:
                assert os.pread(fd, size, 0)[-len(want):] == want
            except OSError as e:
                assert e.errno in (errno.ESTALE, errno.EIO)
    assert (np.load(path) == new["layer.0.weight"].numpy()).all()


def test_seen_while_it_is_written(m, d):
    """Until it is sealed again, what was sealed last."""
    t = some_tensors(100)
    save_file(t, d / "f.safetensors")
    m.wait("nvme", d)
    with opened(d / "f.safetensors", os.O_RDWR) as fd:
        os.pwrite(fd, b"\0" * 100000, 0)
        check_file(tree(m, d) / "f.safetensors", t)


def test_from_nvme(m, d):
    t = some_tensors(100)
    save_file(t, d / "f.safetensors")
    save_file({"x": torch.ones(3)}, d / "small.safetensors")
    m.evict("nvme", d)
    check_file(tree(m, d) / "f.safetensors", t)
    check_file(tree(m, d) / "small.safetensors", {"x": torch.ones(3)})


def test_restart_and_power_cut(fresh):
    """The record may be gone: it is made again from the bytes."""
    m = fresh()
    t = some_tensors(100)
    save_file(t, m.path / "f.safetensors")
    m.wait("nvme")
    check_file(tree(m) / "f.safetensors", t)
    m.remount()
    check_file(tree(m) / "f.safetensors", t)
    m.lose_dram()
    check_file(tree(m) / "f.safetensors", t)


def test_daemon_death(fresh):
    m = fresh()
    t = some_tensors(100)
    save_file(t, m.path / "f.safetensors")
    m.wait("dram")
    m.kill()
    m.unmount(lazy=True)
    m.start()
    check_file(tree(m) / "f.safetensors", t)


# ---- remote-only -----------------------------------------------------------

@pytest.fixture
def pair(mode, fresh):
    """A mount with a remote, and a function that mounts an empty machine."""
    first = fresh(remote=True)
    others = []

    def another(**options):
        if first.process:
            first.stop()
        one = Mounted(mode, remote=f"dir:{first.remote_dir}", **options)
        others.append(one)
        return one.start()

    yield first, another
    for one in others:
        one.close()


def test_a_slice_of_the_remote_fetches_its_bytes(pair):
    first, another = pair
    t = {f"w{i}": torch.randn(MB * 2) for i in range(6)}  # 8 MiB each
    save_file(t, first.path / "f.safetensors")
    torch.save(t, first.path / "f.pt")
    for i in range(20):
        write(first.path / f"other-{i}.json", b"{}" * 1000)
    first.wait("remote")
    m = another()
    assert fetched(m) == 0
    assert sorted(os.listdir(tree(m))) == ["f.pt", "f.safetensors"]
    assert sorted(os.listdir(tree(m) / "f.safetensors")) == \
        [f"w{i}.npy" for i in range(6)]
    seen = fetched(m)
    assert seen < 17 * MB  # headers, by chunks; a zip's is at its end
    a = np.load(tree(m) / "f.safetensors" / "w3.npy", mmap_mode="r")
    assert (a[100:200] == t["w3"].numpy()[100:200]).all()
    assert fetched(m) - seen <= 8 * MB
    seen = fetched(m)
    for i in range(0, 100000, 1000):
        assert a[i] == t["w3"][i]
    assert fetched(m) - seen <= 4 * MB
    for kind in ("f.safetensors", "f.pt"):
        seen = fetched(m)
        got = np.load(tree(m) / kind / "w5.npy")
        assert (got == t["w5"].numpy()).all()
        assert fetched(m) - seen <= 12 * MB
    state = m.status(m.path / "f.safetensors")
    assert m.status()["counts"]["fetched"] == 0, state


def test_damage_on_the_remote_is_not_handed_out(pair):
    first, another = pair
    t = {f"w{i}": torch.randn(MB * 2) for i in range(3)}
    save_file(t, first.path / "f.safetensors")
    first.wait("remote")
    s = os.stat(first.remote_dir / "f.safetensors")
    with opened(first.remote_dir / "f.safetensors") as fd:
        os.pwrite(fd, b"damage", 22 * MB)
    os.utime(first.remote_dir / "f.safetensors",
             ns=(s.st_atime_ns, s.st_mtime_ns))
    m = another()
    folder = tree(m) / "f.safetensors"
    assert (np.load(folder / "w0.npy") == t["w0"].numpy()).all()
    assert errno_of(read, folder / "w2.npy") in (errno.EBADMSG, errno.EIO)
    assert m.alive()


def test_damaged_header_is_not_believed(pair):
    """However short it is."""
    first, another = pair
    save_file({"w": torch.randn(MB), "v": torch.ones(4)},
              first.path / "f.safetensors")
    np.save(first.path / "a.npy", np.ones(2 * MB, dtype=np.float32))
    first.wait("remote")
    first.stop()
    for name in ("f.safetensors", "a.npy"):
        path = first.remote_dir / name
        s = os.stat(path)
        good = read(path)
        with opened(path) as fd:
            at = good.index(b"F32" if name[0] == "f" else b"<f4")
            os.pwrite(fd, b"I" if name[0] == "f" else b"<i", at)
        os.utime(path, ns=(s.st_atime_ns, s.st_mtime_ns))
    m = another()
    for name in ("f.safetensors", "a.npy"):
        r = m.ctl("tensors", m.path / name, check=False)
        assert r.returncode, r.stdout
        assert errno_of(os.listdir, tree(m) / name) in \
            (errno.EBADMSG, errno.EIO)


# ---- ckptctl ---------------------------------------------------------------

def test_ctl_tensors(m, d, plain):
    t = some_tensors()
    save_file(t, d / "f.safetensors")
    shutil.copy(d / "f.safetensors", plain / "f.safetensors")
    for path in (d / "f.safetensors", plain / "f.safetensors"):
        all = json.loads(m.ctl("tensors", path, "--json").stdout)
        assert len(all["files"]) == 1
        got = {x["name"]: x for x in all["files"][0]["tensors"]}
        assert set(got) == set(t)
        for name, value in t.items():
            assert got[name]["shape"] == list(value.shape)
            assert "torch." + got[name]["dtype"] == str(value.dtype)
            assert got[name]["bytes"] == value.nbytes
        assert all["total"] == {"tensors": len(t), "bytes":
                                sum(v.nbytes for v in t.values())}
        assert all["by_dtype"]["bfloat16"] == {"tensors": 1, "bytes": 66}
        assert all["by_prefix"]["layer"]["tensors"] == 3
        assert all["by_prefix"]["layer.0"]["bytes"] == 64 * 33 * 4 + 66
    text = m.ctl("tensors", d, "--depth", "1").stdout
    assert "f.safetensors (safetensors)" in text
    assert "layer.0.weight" in text and "[64, 33]" in text
    assert "8.2 KiB" in text


def test_ctl_tensors_of_directories(m, d):
    save_sharded(d, some_tensors())
    write(d / "config.json", b"{}")
    all = json.loads(m.ctl("tensors", d, "--json").stdout)
    assert [f["path"] for f in all["files"]] == ["model.safetensors.index.json"]
    assert all["total"]["tensors"] == len(some_tensors())
    for path, what in ((d / "config.json", "no tensors"),
                       (d / "none", "No such file")):
        r = m.ctl("tensors", path, check=False)
        assert r.returncode == 1 and what in r.stderr
    assert m.ctl("tensors", check=False).returncode == 2


def test_ctl_tensors_of_a_directory_in_use(m, d, plain):
    for folder in (d, plain):
        for i in range(100):
            np.save(folder / f"stays-{i}.npy", np.zeros(3))
        with coming_and_going(folder, lambda path: write(path, b"x" * 100)):
            for _ in range(6):
                found = json.loads(m.ctl("tensors", folder, "--json").stdout)
                assert len(found["files"]) == 100


def test_ctl_tensors_fetches_no_data(pair):
    first, another = pair
    save_file({"w": torch.randn(MB * 8), "v": torch.ones(4)},
              first.path / "f.safetensors")
    first.wait("remote")
    m = another()
    all = json.loads(m.ctl("tensors", m.path, "--json").stdout)
    assert all["total"]["tensors"] == 2
    assert fetched(m) < 5 * MB


def test_ctl_diff(m, d):
    a, b = some_tensors(), some_tensors()
    del b["layer.1.weight"]
    b["new"] = torch.ones(5)
    b["layer.0.weight"] = a["layer.0.weight"].clone()
    b["layer.0.weight"][3, 4] += 1
    b["scalar"] = b["scalar"].float()
    (d / "A").mkdir()
    (d / "B").mkdir()
    save_file(a, d / "A" / "f.safetensors")
    save_file(b, d / "B" / "f.safetensors")
    r = m.ctl("diff", d / "A", d / "A", check=False)
    assert r.returncode == 0, r.stderr
    for x, y in ((d / "A", d / "B"), (d / "A" / "f.safetensors",
                                      d / "B" / "f.safetensors")):
        r = m.ctl("diff", x, y, "--json", check=False)
        assert r.returncode == 1
        got = json.loads(r.stdout)
        assert {c["name"]: c["why"] for c in got["changed"]} == \
            {"layer.0.weight": "bytes", "scalar": "dtype"}
        assert [c["name"] for c in got["appeared"]] == ["new"]
        assert [c["name"] for c in got["gone"]] == ["layer.1.weight"]
        assert got["same"] == 3
    text = m.ctl("diff", d / "A", d / "B", check=False).stdout
    assert "2 changed, 1 appeared, 1 gone, 3 the same" in text
    assert m.ctl("diff", d / "A", d / "none", check=False).returncode == 2
    assert m.ctl("diff", d / "A", check=False).returncode == 2


def test_ctl_names_that_are_not_utf8(m, d):
    """Nothing is left out, and what differs is said to."""
    for folder, value in (("A", np.zeros(3)), ("B", np.ones(3))):
        sub = os.fsencode(d / folder) + b"/rank\xff"
        os.makedirs(sub)
        np.save(os.fsdecode(sub + b"/w\xfe.npy"), value)
    r = m.ctl("diff", d / "A", d / "B", "--json", check=False)
    assert r.returncode == 1
    got = json.loads(r.stdout)
    assert [c["file"] for c in got["changed"]] == ["rank?/w?.npy"]
    r = m.ctl("diff", d / "A", d / "B", check=False)
    assert r.returncode == 1 and "1 changed" in r.stdout
    assert m.ctl("diff", d / "A", d / "A").returncode == 0
    all = json.loads(m.ctl("tensors", d / "A", "--json").stdout)
    assert [f["path"] for f in all["files"]] == ["rank?/w?.npy"]
    assert all["total"]["tensors"] == 1


def test_ctl_diff_that_cannot_be_written(m, d):
    """1 would say that they differ."""
    np.save(d / "a.npy", np.zeros(3))
    np.save(d / "b.npy", np.ones(3))
    for words in (("a.npy",), ("b.npy",), ("b.npy", "--json")):
        with open("/dev/full", "w") as full:
            r = m.run([m.bin / "ckptctl", "diff", d / "a.npy", d / words[0],
                       *words[1:]], stdout=full, check=False)
        assert r.returncode == 2 and "cannot write" in r.stderr


def test_ctl_diff_of_different_shards(m, d):
    for name, n in (("A", 2), ("B", 3)):
        (d / name).mkdir()
        save_sharded(d / name, some_tensors(), n)
    r = m.ctl("diff", d / "A", d / "B", check=False)
    assert r.returncode == 0, r.stdout + r.stderr


def test_ctl_diff_of_nothing_that_can_be_read(m, d):
    """What no reader knows is not "the same"."""
    for name in ("A", "B"):
        (d / name).mkdir()
        torch.save({"w": name}, d / name / "f.pt",
                   _use_new_zipfile_serialization=False)
    r = m.ctl("diff", d / "A", d / "B", check=False)
    assert r.returncode == 2 and not r.stdout
    assert "no tensors were found" in r.stderr


def test_ctl_tensors_that_an_index_does_not_name(m, d):
    """They stand in the shard, and are told of like any other."""
    for name, y in (("A", 0), ("B", 1)):
        (d / name).mkdir()
        save_file({"x": torch.ones(5), "y": torch.full((3,), float(y))},
                  d / name / "model-00001-of-00001.safetensors")
        (d / name / "model.safetensors.index.json").write_text(json.dumps(
            {"weight_map": {"x": "model-00001-of-00001.safetensors"}}))
    r = m.ctl("diff", d / "A", d / "B", "--json", check=False)
    assert r.returncode == 1, r.stdout + r.stderr
    got = json.loads(r.stdout)
    assert [c["name"] for c in got["changed"]] == ["y"] and got["same"] == 1
    found = json.loads(m.ctl("tensors", d / "A", "--json").stdout)
    assert sorted(t["name"] for f in found["files"] for t in f["tensors"]) == \
        ["x", "y"]

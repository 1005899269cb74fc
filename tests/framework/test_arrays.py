# SPDX-License-Identifier: Apache-2.0
"""numpy, h5py and zarr: mappings, headers rewritten last, many small files."""
import os
import subprocess
import sys

import h5py
import numpy
import pytest
import zarr

from calls import Mapping, digest, opened, read

pytestmark = pytest.mark.modes("passthrough", "served")

A = numpy.arange(1_500_000, dtype=numpy.float64).reshape(1500, 1000)


# ---- numpy ----


def test_npy(d, m):
    numpy.save(d / "a.npy", A)
    assert numpy.array_equal(numpy.load(d / "a.npy"), A)
    m.evict("nvme", d)
    assert numpy.array_equal(numpy.load(d / "a.npy"), A)
    mapped = numpy.load(d / "a.npy", mmap_mode="r")
    assert numpy.array_equal(mapped[77], A[77])


@pytest.mark.parametrize("save", [numpy.savez, numpy.savez_compressed])
def test_npz(d, m, save):
    save(d / "a.npz", a=A, b=A[:10], name=numpy.array("text"))
    m.evict("nvme", d)
    with numpy.load(d / "a.npz") as got:
        assert numpy.array_equal(got["a"], A)
        assert numpy.array_equal(got["b"], A[:10])
        assert str(got["name"]) == "text"


def test_memmap(d, m):
    """w+, then r+ by others, then r."""
    a = numpy.memmap(d / "a", A.dtype, "w+", shape=A.shape)
    a[:] = A
    a.flush()
    b = numpy.memmap(d / "a", A.dtype, "r+", shape=A.shape)
    b[10, 10] = -1
    assert a[10, 10] == -1
    del a, b
    m.evict("nvme", d)
    got = numpy.memmap(d / "a", A.dtype, "r", shape=A.shape)
    assert got[10, 10] == -1 and numpy.array_equal(got[11:], A[11:])
    with opened(d / "a", os.O_RDONLY) as fd:
        assert os.fstat(fd).st_size == A.nbytes


def test_memmap_stores_after_its_descriptor_is_closed(fresh):
    """The file is closed, the array is filled after; no flush, no msync."""
    m = fresh()
    with opened(m.path / "a", os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, A.nbytes)
        mapping = Mapping(fd, A.nbytes)
    a = numpy.frombuffer(mapping.bytes, A.dtype).reshape(A.shape)
    a[:] = A
    m.wait("nvme")
    a[5] = -5
    del a
    mapping.close()
    m.remount()
    got = numpy.fromfile(m.path / "a").reshape(A.shape)
    assert (got[5] == -5).all()
    assert numpy.array_equal(got[6:], A[6:])
    assert numpy.array_equal(got[:5], A[:5])


def test_memmap_that_lives_through_the_flush(fresh):
    m = fresh()
    a = numpy.memmap(m.path / "a", A.dtype, "w+", shape=A.shape)
    for row in range(0, 1500, 250):
        a[row:row + 250] = A[row:row + 250]
        m.wait("nvme")
    a.flush()
    del a
    m.wait("nvme")
    m.lose_dram()
    assert numpy.array_equal(numpy.fromfile(m.path / "a").reshape(A.shape), A)


def test_tofile(d, m):
    A.tofile(d / "a")
    m.evict("nvme", d)
    assert numpy.array_equal(numpy.fromfile(d / "a").reshape(A.shape), A)


# ---- HDF5 ----


def test_h5_written_and_read(d, m):
    with h5py.File(d / "a.h5", "w") as f:
        f["weights"] = A
        f.create_dataset("chunks", data=A, chunks=(100, 100),
                         compression="gzip")
        f.attrs["step"] = 7
        f.create_group("deep/er")["x"] = numpy.arange(10)
    m.evict("nvme", d)
    with h5py.File(d / "a.h5", "r") as f:
        assert numpy.array_equal(f["weights"][:], A)
        assert numpy.array_equal(f["chunks"][:], A)
        assert f.attrs["step"] == 7
        assert list(f["deep/er/x"]) == list(range(10))


def test_h5_changed_in_place(d, m):
    """r+: what was flushed is opened, changed and grown, again and again."""
    with h5py.File(d / "a.h5", "w") as f:
        f.create_dataset("x", data=numpy.zeros(1000), maxshape=(None,),
                         chunks=(500,))
    for step in range(1, 6):
        m.evict("nvme", d)
        with h5py.File(d / "a.h5", "r+") as f:
            f["x"].resize((1000 * (step + 1),))
            f["x"][1000 * step:] = step
            f["x"][step] = -step
            f.flush()
    m.evict("nvme", d)
    with h5py.File(d / "a.h5", "r") as f:
        x = f["x"][:]
    assert len(x) == 6000
    for step in range(1, 6):
        assert x[step] == -step
        assert (x[1000 * step:1000 * (step + 1)] == step).all()


def test_h5_locks(d):
    """A second writer is refused while the first has the file."""
    with h5py.File(d / "a.h5", "w", locking=True) as f:
        f["x"] = 1
        r = subprocess.run(
            [sys.executable, "-c", "import h5py, sys\n"
             "h5py.File(sys.argv[1], 'r+', locking=True)", d / "a.h5"],
            capture_output=True, text=True)
        assert r.returncode != 0 and "lock" in r.stderr


def test_h5_read_by_one_while_another_writes(d):
    """SWMR: a writer that flushes, a reader that refreshes."""
    with h5py.File(d / "a.h5", "w", libver="latest") as w:
        x = w.create_dataset("x", shape=(0,), maxshape=(None,), chunks=(100,),
                             dtype="f4")
        w.swmr_mode = True
        with h5py.File(d / "a.h5", "r", libver="latest", swmr=True) as r:
            for step in range(1, 6):
                x.resize((100 * step,))
                x[-100:] = step
                x.flush()
                r["x"].refresh()
                assert r["x"].shape == (100 * step,)
                assert r["x"][-1] == step


@pytest.mark.parametrize("driver", ["sec2", "stdio", "core"])
def test_h5_drivers(d, m, driver):
    with h5py.File(d / "a.h5", "w", driver=driver) as f:
        f["x"] = A
    m.evict("nvme", d)
    with h5py.File(d / "a.h5", "r", driver=driver) as f:
        assert numpy.array_equal(f["x"][:], A)


# ---- zarr ----


def test_zarr(d, m):
    """Many small files, each written under another name and renamed."""
    z = zarr.create_array(store=str(d / "a.zarr"), shape=A.shape,
                          chunks=(100, 100), dtype="f8")
    z[:] = A
    z.attrs["step"] = 3
    m.evict("nvme", d)
    z = zarr.open_array(str(d / "a.zarr"), mode="r")
    assert numpy.array_equal(z[:], A)
    assert z.attrs["step"] == 3


def test_zarr_changed_in_place(d, m):
    z = zarr.create_array(store=str(d / "a.zarr"), shape=(1000,),
                          chunks=(100,), dtype="f8", fill_value=0)
    for step in range(1, 4):
        z[step * 100:step * 100 + 150] = step
        m.evict("nvme", d)
        z = zarr.open_array(str(d / "a.zarr"), mode="r+")
    want = numpy.zeros(1000)
    for step in range(1, 4):
        want[step * 100:step * 100 + 150] = step
    assert numpy.array_equal(z[:], want)


def test_zarr_group_survives_the_machine(fresh):
    m = fresh(remote=not os.environ.get("CKPTFS_TEST_PLAIN"))
    g = zarr.open_group(str(m.path / "g.zarr"), mode="w")
    for i in range(4):
        g.create_array(f"layer{i}", data=A[i * 100:(i + 1) * 100],
                       chunks=(50, 500))
    before = {p.relative_to(m.path): digest(p)
              for p in (m.path / "g.zarr").rglob("*") if p.is_file()}
    m.evict("remote")
    for name, want in before.items():
        assert digest(m.path / name) == want
        if not m.plain:
            assert read(m.remote_dir / name) == read(m.path / name)
    g = zarr.open_group(str(m.path / "g.zarr"), mode="r")
    assert numpy.array_equal(g["layer3"][:], A[300:400])

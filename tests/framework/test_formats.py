# SPDX-License-Identifier: Apache-2.0
"""numpy, HDF5, zarr and sqlite on a mount, and again after DRAM is lost."""
import sqlite3

import numpy as np
import pytest

from calls import read

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

pytestmark = pytest.mark.modes("passthrough", "served")
A = np.arange(300_000, dtype=np.float32).reshape(300, 1000)


def cut_and(m, check):
    m.wait("nvme")
    check()
    m.lose_dram()
    check()


def test_save_and_savez(fresh):
    m = fresh()
    np.save(m.path / "a.npy", A)
    np.savez(m.path / "b.npz", a=A, b=A[:3])

    def check():
        assert np.array_equal(np.load(m.path / "a.npy"), A)
        assert np.array_equal(np.load(m.path / "a.npy", mmap_mode="r"), A)
        assert np.array_equal(np.load(m.path / "b.npz")["b"], A[:3])

    cut_and(m, check)


def test_memmap(fresh):
    """numpy stores long after it has closed its descriptor."""
    m = fresh()
    path = m.path / "a.dat"
    view = np.memmap(path, dtype=np.float32, mode="w+", shape=A.shape)
    view[:] = A
    view.flush()
    view[7] = 1
    want = A.copy()
    want[7] = 1
    view.flush()
    del view
    cut_and(m, lambda: np.testing.assert_array_equal(
        np.frombuffer(read(path), np.float32).reshape(A.shape), want))


def test_h5py(fresh):
    m = fresh()
    path = m.path / "a.h5"
    with h5py.File(path, "w") as f:
        f["a"] = A
    with h5py.File(path, "r+") as f:
        f["a"][5] = 2
        f["b"] = A[:2]

    def check():
        with h5py.File(path, "r") as f:
            assert np.all(f["a"][5] == 2)
            assert np.array_equal(f["a"][6:], A[6:])
            assert np.array_equal(f["b"][:], A[:2])

    cut_and(m, check)


def test_zarr(fresh):
    m = fresh()
    z = zarr.open(str(m.path / "a.zarr"), mode="w", shape=A.shape,
                  chunks=(100, 500), dtype="f4")
    z[:] = A
    cut_and(m, lambda: np.testing.assert_array_equal(
        zarr.open(str(m.path / "a.zarr"), mode="r")[:], A))


def test_sqlite(fresh):
    """Each commit is an fsync: it is there after the cut, unasked."""
    m = fresh()
    path = m.path / "a.db"
    db = sqlite3.connect(path)
    # Else the removal of the journal, which commits, is not synced.
    db.execute("pragma synchronous=extra")
    db.execute("create table t (n int)")
    for n in range(20):
        db.execute("insert into t values (?)", (n,))
        db.commit()
    db.close()
    m.lose_dram()
    db = sqlite3.connect(path)
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    assert db.execute("select count(*), sum(n) from t").fetchone() == (20, 190)
    db.close()

# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint: fsync of every shard from threads,
.metadata.tmp renamed last; in one process and in two."""
import os
import pathlib
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from calls import digest, opened, read

pytestmark = [pytest.mark.modes("passthrough", "served"),
              pytest.mark.limit(200),
              pytest.mark.filterwarnings("ignore")]

RANK = pathlib.Path(__file__).parent / "dcp_rank.py"


@pytest.fixture(scope="module", autouse=True)
def group():
    """async_save wants a process group, even of one."""
    dist.init_process_group("gloo", rank=0, world_size=1,
                            store=dist.HashStore())
    yield
    dist.destroy_process_group()


def state(factor):
    return {f"layer.{i}": torch.arange(100_000 + i, dtype=torch.float32)
            * factor for i in range(8)} | {"step": int(factor)}


def load(folder):
    got = state(0)
    dcp.load(got, checkpoint_id=str(folder))
    return got


def same(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) if torch.is_tensor(a[k]) else a[k] == b[k]
        for k in a)


def test_save_and_load(d, m):
    dcp.save(state(2), checkpoint_id=str(d / "step-1"))
    assert ".metadata" in os.listdir(d / "step-1")
    assert same(load(d / "step-1"), state(2))
    m.evict("nvme", d)
    assert same(load(d / "step-1"), state(2))


def test_saved_and_the_folder_synced(fresh):
    """DCP fsyncs each file, and .metadata before its last rename; after an
    fsync of the folder that is on NVMe as well."""
    m = fresh()
    dcp.save(state(3), checkpoint_id=str(m.path / "step-1"))
    with opened(m.path / "step-1", os.O_RDONLY) as fd:
        os.fsync(fd)
    m.lose_dram()
    assert same(load(m.path / "step-1"), state(3))


def test_metadata_is_never_there_without_its_shards(fresh):
    """Also without a sync of the files: prefix durability."""
    m = fresh(flush_rate="2M")
    writer = dcp.FileSystemWriter(m.path / "step-1", sync_files=False)
    dcp.save(state(4), storage_writer=writer)
    m.lose_dram()
    if (m.path / "step-1" / ".metadata").exists():
        assert same(load(m.path / "step-1"), state(4))


@pytest.mark.parametrize("threads", [1, 4])
def test_writer_threads(d, m, threads):
    writer = dcp.FileSystemWriter(d / "x", single_file_per_rank=False,
                                  thread_count=threads)
    dcp.save(state(5), storage_writer=writer)
    m.evict("nvme", d)
    assert same(load(d / "x"), state(5))


def test_async_save(d, m):
    """Training goes on meanwhile, and may save over it again."""
    futures = []
    for step in range(3):
        weights = state(step)
        futures.append(dcp.async_save(weights,
                                      checkpoint_id=str(d / f"step-{step}")))
        futures[-1].result()
        for t in weights.values():
            if torch.is_tensor(t):
                t.zero_()
    m.evict("nvme", d)
    for step in range(3):
        assert same(load(d / f"step-{step}"), state(step))


def test_async_save_overlaps_with_changes(d, m):
    weights = state(7)
    future = dcp.async_save(weights, checkpoint_id=str(d / "x"))
    for t in weights.values():
        if torch.is_tensor(t):
            t.zero_()
    future.result()
    m.evict("nvme", d)
    assert same(load(d / "x"), state(7))


def test_saved_over_the_last_one(d, m):
    """.metadata is unlinked or replaced; both generations are whole."""
    for factor in range(1, 5):
        dcp.save(state(factor), checkpoint_id=str(d / "last"))
        assert same(load(d / "last"), state(factor))
    m.evict("nvme", d)
    assert same(load(d / "last"), state(4))


def test_same_files_as_on_a_disk(d, plain):
    for folder in (d, plain):
        dcp.save(state(6), checkpoint_id=str(folder / "x"))
    names = sorted(n for n in os.listdir(d / "x"))
    assert names == sorted(os.listdir(plain / "x"))
    for name in names:
        if name.endswith(".distcp"):
            assert digest(d / "x" / name) == digest(plain / "x" / name)


def test_two_ranks(fresh, plain):
    """Saved by both, plainly and in the background; the machine is lost; read
    by both."""
    m = fresh()
    ranks = [subprocess.Popen(
        [sys.executable, RANK, str(r), "2", plain / "store", m.path / "step"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=open(plain / f"log{r}", "w"), text=True) for r in range(2)]
    try:
        for r, rank in enumerate(ranks):
            assert rank.stdout.readline() == "saved\n", read(
                plain / f"log{r}").decode()
        for name in ("save", "async"):
            assert sorted(os.listdir(m.path / "step" / name)) == [
                ".metadata", "__0_0.distcp", "__1_0.distcp"]
        m.wait("nvme")
        m.lose_dram()
        for rank in ranks:
            rank.stdin.write("load\n")
            rank.stdin.close()
        for r, rank in enumerate(ranks):
            assert rank.wait(100) == 0, read(plain / f"log{r}").decode()
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_consolidated_to_one_file(d, m):
    """dcp_to_torch_save: read by one, written by another library."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    dcp.save(state(2), checkpoint_id=str(d / "x"))
    dcp_to_torch_save(str(d / "x"), str(d / "x.pt"))
    m.evict("nvme", d)
    got = torch.load(d / "x.pt", weights_only=False)
    assert same(got, state(2))

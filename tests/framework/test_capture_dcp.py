# SPDX-License-Identifier: Apache-2.0
"""ckptfs.dcp: what Writer captures torch's FileSystemReader reads, and the
other way round; save_async() under a step, of one process and of two."""
import os
import pathlib
import subprocess
import sys

import pytest
import torch.distributed.checkpoint as dcp

from states import (DTYPES, SANITIZED, ckptfs, ended, model,  # noqa: F401
                    names, place, random, same, step, torch)
from ckptfs.dcp import Reader, Writer, save_async

pytestmark = [pytest.mark.modes("passthrough", "served"),
              pytest.mark.limit(200),
              pytest.mark.filterwarnings("ignore")]

RANK = pathlib.Path(__file__).parent / "capture_rank.py"


def state(seed=0):
    torch.manual_seed(seed)
    base = torch.randn(300, 200)
    return {"w": torch.randn(1000, 700), "view": base[5:50], "base": base,
            "turned": base.t(), "scalar": torch.tensor(2.5 + seed),
            "none": torch.zeros(0, 3), "step": 3 + seed, "what": {"lr": [0.1]},
            "types": {str(t): random(t, 100) for t in DTYPES
                      if t.itemsize < 16}}


def zeros(want):
    if isinstance(want, torch.Tensor):
        return torch.zeros_like(want)
    if isinstance(want, dict):
        return {k: zeros(v) for k, v in want.items()}
    return None


def load(folder, like, reader):
    got = zeros(like)
    dcp.load(got, storage_reader=reader(str(folder)), no_dist=True)
    return got


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("reader", [Reader, dcp.FileSystemReader])
def test_written_by_captures(place, reader, single):
    want = state()
    dcp.save(want, storage_writer=Writer(place / "c",
                                         single_file_per_rank=single),
             no_dist=True)
    assert same(load(place / "c", want, reader), want)
    files = names(place / "c")
    assert ".metadata" in files
    assert len(files) == 2 if single else len(files) > 20


@pytest.mark.parametrize("reader", [Reader, dcp.FileSystemReader])
def test_quantised(place, reader):
    """A tensor that is more than its bytes, alone and as a view."""
    whole = torch.quantize_per_tensor(torch.randn(300, 200), 0.1, 10,
                                      torch.qint8)
    want = {"whole": whole, "view": whole[5:50],
            "unsigned": torch.quantize_per_tensor(torch.rand(7), 0.1, 3,
                                                  torch.quint8)}
    dcp.save(want, storage_writer=Writer(place / "c"), no_dist=True)
    got = {name: torch.quantize_per_tensor(
        torch.zeros(tensor.shape), tensor.q_scale(), tensor.q_zero_point(),
        tensor.dtype)
           for name, tensor in want.items()}
    dcp.load(got, storage_reader=reader(str(place / "c")), no_dist=True)
    for name, tensor in want.items():
        assert torch.equal(got[name].dequantize(), tensor.dequantize()), name
    assert sum(f.stat().st_size for f in (place / "c").iterdir()) < 90_000


def test_read_by_mapping(place):
    """What torch's own writer made."""
    want = state()
    dcp.save(want, storage_writer=dcp.FileSystemWriter(place / "c"),
             no_dist=True)
    assert same(load(place / "c", want, Reader), want)


def test_a_slice(place):
    """Resharding: only a part of a saved tensor."""
    want = {"w": torch.arange(1000.0).view(100, 10)}
    dcp.save(want, storage_writer=Writer(place / "c"), no_dist=True)
    mapped = Reader(str(place / "c"))
    metadata = mapped.read_metadata()
    mapped.set_up_storage_reader(metadata, True)
    (index, info), = metadata.storage_data.items()
    from ckptfs.dcp import _Mapped
    shard = _Mapped(str(place / "c" / info.relative_path)).tensor(info)
    assert same(shard[20:30].clone(), want["w"][20:30])


def test_from_a_device(place):
    want = state()
    with ckptfs.SlowDevice(1e9):
        dcp.save(want, storage_writer=Writer(place / "c"), no_dist=True)
    assert same(load(place / "c", want, Reader), want)


def test_async_under_a_step(place):
    net, optimizer = model(width=500)
    ckptfs.fence_before_step(optimizer)
    step(net, optimizer, 0)
    want = {k: v.clone() for k, v in net.state_dict().items()}
    with ckptfs.SlowDevice(10e6):
        pending = save_async({"net": dict(net.state_dict())}, place / "c")
    assert ".metadata" not in names(place / "c")
    step(net, optimizer, 1)
    pending.wait(60)
    assert pending.done
    assert same(load(place / "c", {"net": want}, dcp.FileSystemReader)["net"],
                want)


def test_changed_before_it_was_captured(place):
    want = {"w": torch.randn(2000, 1000)}
    with ckptfs.SlowDevice(20e6):
        pending = save_async(want, place / "c")
    want["w"].add_(1)
    with pytest.raises(ckptfs.ChangedError, match="'w' was changed"):
        pending.wait()
    assert names(place / "c") == []


def test_a_small_view_may_change_at_once(place):
    """As BatchNorm's statistics do in forward: they are copied at the submit,
    however large the storage is that they lie in."""
    flat = torch.ones(100_000)
    want = {"w": torch.randn(200_000), "mean": flat[:16].clone()}
    with ckptfs.SlowDevice(10e6):
        pending = save_async({"w": want["w"], "mean": flat[:16]}, place / "c")
    flat[:16].add_(1)
    ckptfs.fence()
    pending.wait()
    assert same(load(place / "c", want, Reader), want)


def test_dcps_own_async_save(place):
    """It copies first, so the state may change at once."""
    torch.distributed.init_process_group(
        "gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        live = {"w": torch.randn(500, 500)}
        want = {"w": live["w"].clone()}
        future = dcp.async_save(live, storage_writer=Writer(place / "c"))
        live["w"].zero_()
        future.result()
    finally:
        torch.distributed.destroy_process_group()
    assert same(load(place / "c", want, Reader), want)


def test_the_old_one_until_the_new_one(place):
    """An older checkpoint loads until the new one is complete; then nothing is
    left of it, nor of one that failed."""
    folder = place / "c"
    old, new = ({"w": torch.full((100_000,), step)} for step in (1.0, 2.0))
    dcp.save(old, storage_writer=Writer(folder), no_dist=True)
    (folder / "__3_0.distcp").write_bytes(b"of a rank that is no more")
    with ckptfs.SlowDevice(1e6):
        pending = save_async(new, folder)
    for reader in (Reader, dcp.FileSystemReader):
        assert same(load(folder, old, reader), old)
    pending.wait()
    assert same(load(folder, new, Reader), new)
    files = names(folder)
    assert len(files) == 2 and files[0] == ".metadata"
    dcp.save(old, storage_writer=Writer(folder), no_dist=True)
    assert same(load(folder, old, dcp.FileSystemReader), old)
    assert len(names(folder)) == 2


def ranks(d, folder, step, how):
    """Two ranks: their exit codes, and what they said."""
    running = [subprocess.Popen(
        [sys.executable, RANK, str(rank), d / f"store-{step}", d / folder,
         str(step), how if rank else "good"], stderr=subprocess.PIPE,
        text=True) for rank in range(2)]
    said = [r.communicate(timeout=150)[1] for r in running]
    return [r.returncode for r in running], said


@pytest.mark.modes("passthrough")
def test_two_ranks(d):
    """Sharded by rank; where one of them fails nothing is published, and what
    was there is not touched."""
    def is_step(step):
        want = {f"both.{rank}": torch.full((40_000,), float(step + rank))
                for rank in range(2)}
        for reader in (dcp.FileSystemReader, Reader):
            assert same(load(d / "good", want, reader), want)

    code, said = ranks(d, "good", 1, "good")
    assert code == [0, 0], said
    is_step(1)
    code, said = ranks(d, "good", 10, "bad")
    assert code == [5, 5], said
    is_step(1)
    code, said = ranks(d, "good", 20, "good")
    assert code == [0, 0], said
    is_step(20)
    assert len(os.listdir(d / "good")) == 3

# SPDX-License-Identifier: Apache-2.0
"""torch.save and torch.load as trainers use them."""
import os

import pytest
import torch

from calls import digest, noise, opened, read

pytestmark = pytest.mark.modes("passthrough", "served")


def state(seed=0, size=512):
    """A small model's and its optimizer's state after one step."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(size, size),
                                torch.nn.LayerNorm(size),
                                torch.nn.Linear(size, 3 * size))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, size)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "step": seed, "rng": torch.get_rng_state(),
            "half": torch.randn(1000).to(torch.bfloat16)}


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("how", ["path", "file"])
@pytest.mark.parametrize("zipped", [True, False])
def test_save_and_load(d, m, how, zipped):
    want = state()
    if how == "path":
        torch.save(want, d / "model.pt",
                   _use_new_zipfile_serialization=zipped)
    else:
        with open(d / "model.pt", "wb") as f:
            torch.save(want, f, _use_new_zipfile_serialization=zipped)
    assert same(torch.load(d / "model.pt", weights_only=True), want)
    m.evict("nvme", d)
    assert same(torch.load(d / "model.pt", weights_only=True), want)


def test_same_bytes_as_on_a_disk(d, plain):
    want = state()
    torch.save(want, d / "model.pt")
    torch.save(want, plain / "model.pt")
    assert digest(d / "model.pt") == digest(plain / "model.pt")


@pytest.mark.parametrize("tier", ["dram", "nvme"])
def test_load_by_mapping(d, m, tier):
    want = state()
    torch.save(want, d / "model.pt")
    if tier == "nvme":
        m.evict("nvme", d)
    got = torch.load(d / "model.pt", mmap=True, weights_only=True)
    assert same(got, want)


def test_mapped_while_it_is_replaced(d, m):
    """A job that resumed with mmap=True goes on saving under that name."""
    old, new = state(1), state(2)
    torch.save(old, d / "model.pt")
    got = torch.load(d / "model.pt", mmap=True, weights_only=True)
    torch.save(new, d / "model.pt.tmp")
    os.replace(d / "model.pt.tmp", d / "model.pt")
    m.evict("nvme", d)
    assert same(got, old)
    assert same(torch.load(d / "model.pt", weights_only=True), new)


def test_overwritten_in_place(d, m):
    """torch.save over the last one: O_TRUNC, no rename, no fsync."""
    for step in range(6):
        want = state(step, 128 * (1 + step % 3))
        torch.save(want, d / "model.pt")
        if step % 2:
            m.evict("nvme", d)
        assert same(torch.load(d / "model.pt", weights_only=True), want)


def test_older_one_survives_a_save_cut_short(fresh):
    m = fresh()
    old = state(1)
    torch.save(old, m.path / "model.pt")
    m.wait("nvme")
    whole = read(m.path / "model.pt")
    fd = os.open(m.path / "model.pt", os.O_WRONLY | os.O_TRUNC)
    os.write(fd, noise(len(whole) // 2))
    if not m.plain:
        m.lose_dram()
        assert read(m.path / "model.pt") == whole
        assert same(torch.load(m.path / "model.pt", weights_only=True), old)
    try:
        os.close(fd)
    except OSError:
        pass


def test_save_survives_the_machine(fresh):
    """From the remote alone."""
    m = fresh(remote=not os.environ.get("CKPTFS_TEST_PLAIN"))
    want = state(3)
    torch.save(want, m.path / "model.pt")
    m.wait("remote")
    m.evict("remote")
    assert same(torch.load(m.path / "model.pt", weights_only=True), want)
    assert same(torch.load(m.path / "model.pt", mmap=True,
                           weights_only=True), want)


def test_untyped_storage_on_the_mount(d, m):
    """from_file: a shared mapping that is trained in, in place."""
    n = 1_000_000
    t = torch.from_file(str(d / "weights.bin"), shared=True, size=n)
    t.copy_(torch.arange(n, dtype=torch.float32))
    t[12345] = -1
    del t
    want = torch.arange(n, dtype=torch.float32)
    want[12345] = -1
    with opened(d / "weights.bin", os.O_RDONLY) as fd:
        os.fsync(fd)
    m.evict("nvme", d)
    got = torch.from_file(str(d / "weights.bin"), shared=False, size=n)
    assert torch.equal(got, want)


def test_many_ranks_save_at_once(d, m):
    """Forked ranks, each its shard; then rank 0 writes `latest`."""
    pids = []
    for rank in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                torch.set_num_threads(1)
                os.makedirs(d / "step-1", exist_ok=True)
                torch.save({"rank": rank, "w": torch.full((400_000,), rank)},
                           d / "step-1" / f"rank-{rank}.pt")
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(p, 0)[1] for p in pids] == [0] * 4
    (d / "latest").write_text("step-1")
    m.evict("nvme", d)
    step = (d / "latest").read_text()
    for rank in range(4):
        got = torch.load(d / step / f"rank-{rank}.pt", weights_only=True)
        assert got["rank"] == rank and bool((got["w"] == rank).all())

# SPDX-License-Identifier: Apache-2.0
"""What training libraries do round their saves, done the way they do it."""
import fcntl
import json
import os
import re
import shutil
import tempfile

import pytest
import torch

from calls import (F_OFD_SETLK, lock, noise, opened, read, write, write_all)
from mounted import until

MB = 1 << 20

pytestmark = pytest.mark.modes("passthrough", "served")


def weights(step):
    torch.manual_seed(step)
    return {f"layer.{i}.weight": torch.randn(200, 300) for i in range(6)}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def load(path):
    return torch.load(path, weights_only=True)


# ---- transformers.Trainer: checkpoint-N, rotation, every name is parsed ----

CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")


def trainer_checkpoints(top, by_mtime=False):
    found = []
    for name in os.listdir(top):
        number = CHECKPOINT.match(name)
        assert number, f"a trainer would stumble over {name!r}"
        found.append((os.path.getmtime(top / name) if by_mtime
                      else int(number[1]), name))
    return [name for _, name in sorted(found)]


def trainer_save(top, step, limit):
    folder = top / f"checkpoint-{step}"
    folder.mkdir()
    torch.save(weights(step), folder / "pytorch_model.bin")
    torch.save({"step": step}, folder / "optimizer.pt")
    torch.save(torch.get_rng_state(), folder / "rng_state.pth")
    with open(folder / "trainer_state.json", "w") as f:
        json.dump({"global_step": step, "log": list(range(step))}, f)
    for old in trainer_checkpoints(top)[:-limit]:
        shutil.rmtree(top / old)


@pytest.mark.parametrize("rate", [None, "4M"])
def test_trainer_rotation(fresh, rate):
    """Also with a flush that cannot keep up."""
    m = fresh(flush_rate=rate)
    top = m.path / "run"
    top.mkdir()
    for step in range(1, 13):
        trainer_save(top, step, 3)
    assert trainer_checkpoints(top) == [f"checkpoint-{s}"
                                        for s in (10, 11, 12)]
    assert trainer_checkpoints(top, True) == trainer_checkpoints(top)
    m.wait("nvme")
    m.lose_dram()
    assert trainer_checkpoints(top, True) == [f"checkpoint-{s}"
                                              for s in (10, 11, 12)]
    for step in (10, 11, 12):
        folder = top / f"checkpoint-{step}"
        assert same(load(folder / "pytorch_model.bin"), weights(step))
        with open(folder / "trainer_state.json") as f:
            assert json.load(f)["global_step"] == step


def test_trainer_cut_at_any_moment(fresh):
    """Whatever checkpoints there are after a power cut: the newest one that
    is complete by its last file is complete."""
    m = fresh(flush_rate="6M")
    if m.plain:
        pytest.skip("a plain directory has no power")
    top = m.path / "run"
    top.mkdir()
    for round_ in range(3):
        for step in range(round_ * 10 + 1, round_ * 10 + 6):
            trainer_save(top, step, 2)
        m.lose_dram()
        if not top.exists():
            top.mkdir()
        for name in trainer_checkpoints(top):
            if (top / name / "trainer_state.json").exists():
                step = int(name.split("-")[1])
                with open(top / name / "trainer_state.json") as f:
                    assert json.load(f)["global_step"] == step
                assert same(load(top / name / "pytorch_model.bin"),
                            weights(step))


def test_saved_under_a_temporary_name(fresh):
    """tmp-checkpoint-N renamed when it is complete, then its parent synced."""
    m = fresh()
    for step in (10, 20):
        staging = m.path / f"tmp-checkpoint-{step}"
        staging.mkdir()
        torch.save(weights(step), staging / "model.bin")
        os.rename(staging, m.path / f"checkpoint-{step}")
        with opened(m.path, os.O_RDONLY) as fd:
            os.fsync(fd)
        m.lose_dram()
        assert sorted(os.listdir(m.path))[-1] == f"checkpoint-{step}"
        assert same(load(m.path / f"checkpoint-{step}" / "model.bin"),
                    weights(step))


# ---- DeepSpeed and Megatron: global_stepN, `latest`, a tracker file ----


def deepspeed_save(top, step, ranks=3):
    folder = top / f"global_step{step}"
    for _ in range(ranks):  # all of them at once
        os.makedirs(folder, exist_ok=True)
    for rank in range(ranks):
        torch.save(weights(step * 10 + rank),
                   folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    torch.save({"step": step}, folder / "mp_rank_00_model_states.pt")
    with open(top / "latest", "w") as f:
        f.write(f"global_step{step}")
    with open(top / "latest_checkpointed_iteration.txt", "w") as f:
        f.write(str(step))


def deepspeed_check(top, ranks=3):
    with open(top / "latest") as f:
        tag = f.read()
    step = int(tag.removeprefix("global_step"))
    for rank in range(ranks):
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        assert same(load(top / tag / name), weights(step * 10 + rank))
    assert load(top / tag / "mp_rank_00_model_states.pt")["step"] == step
    return step


def test_deepspeed_layout(fresh):
    m = fresh()
    for step in range(1, 5):
        deepspeed_save(m.path, step)
        assert deepspeed_check(m.path) == step
    m.wait("nvme")
    m.lose_dram()
    assert deepspeed_check(m.path) == 4
    assert read(m.path / "latest_checkpointed_iteration.txt") == b"4"


def test_latest_never_names_what_is_not_there(fresh):
    """Cut while the flush is far behind: `latest` is older, never wrong."""
    m = fresh(flush_rate="3M")
    if m.plain:
        pytest.skip("a plain directory has no power")
    deepspeed_save(m.path, 1)
    m.wait("nvme")
    for step in range(2, 8):
        deepspeed_save(m.path, step)
        if step % 2:
            reached = step
            m.lose_dram()
            assert 1 <= deepspeed_check(m.path) <= reached


def test_latest_on_the_remote(fresh):
    """The same for whoever looks at the remote at any moment."""
    m = fresh(remote=not os.environ.get("CKPTFS_TEST_PLAIN"))
    if m.plain:
        pytest.skip("a plain directory has no remote")
    seen = []
    for step in range(1, 6):
        deepspeed_save(m.path, step)
        if (m.remote_dir / "latest").exists():
            seen.append(deepspeed_check(m.remote_dir))
    m.wait("remote")
    assert deepspeed_check(m.remote_dir) == 5
    assert seen == sorted(seen)


def test_deepspeed_direct_writer(d, m):
    """O_DIRECT in aligned pieces, the tail by a second, buffered handle."""
    import mmap
    data = noise(5 * MB + 777)
    buffer = mmap.mmap(-1, MB)
    with opened(d / "f", os.O_CREAT | os.O_WRONLY | os.O_DIRECT) as fd:
        for i in range(5):
            buffer[:] = data[i * MB:(i + 1) * MB]
            os.write(fd, buffer)
    with opened(d / "f", os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, data[5 * MB:])
    m.evict("nvme", d)
    assert read(d / "f") == data


# ---- Lightning: a copy from elsewhere, a symlink for "last" ----


def test_lightning(d, m, plain):
    """Temporary file on another disk, copied with times and modes, "last" a
    relative symlink; the oldest of k removed."""
    for epoch in range(5):
        with tempfile.NamedTemporaryFile(dir=plain, delete=False) as f:
            torch.save(weights(epoch), f)
        name = f"epoch={epoch}-step={epoch * 10}.ckpt"
        shutil.copy2(f.name, d / name)
        os.unlink(f.name)
        if os.path.islink(d / "last.ckpt"):
            os.remove(d / "last.ckpt")
        os.symlink(name, d / "last.ckpt")
        if epoch >= 2:
            os.remove(d / f"epoch={epoch - 2}-step={(epoch - 2) * 10}.ckpt")
    m.evict("nvme", d)
    assert sorted(os.listdir(d)) == ["epoch=3-step=30.ckpt",
                                     "epoch=4-step=40.ckpt", "last.ckpt"]
    assert same(load(d / "last.ckpt"), weights(4))
    assert os.readlink(d / "last.ckpt") == "epoch=4-step=40.ckpt"


# ---- Orbax and TensorStore ----


def tensorstore_write(path, data):
    """Lock file, temporary name, fsync, rename, fsync of the directory."""
    guard = f"{path}.__lock"
    while True:
        fd = os.open(guard, os.O_RDWR | os.O_CREAT, 0o666)
        lock(fd, F_OFD_SETLK, fcntl.F_WRLCK)
        a, b = os.fstat(fd), os.stat(guard)
        if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino):
            break
        os.close(fd)
    write_all(fd, data)
    os.fsync(fd)
    os.rename(guard, path)
    os.close(fd)
    with opened(os.path.dirname(path), os.O_RDONLY) as folder:
        os.fsync(folder)


def test_orbax(fresh):
    """A step under a temporary name, renamed as a directory, marked done."""
    m = fresh()
    for step in range(3):
        tmp = m.path / f"{step}.orbax-checkpoint-tmp-{step}"
        (tmp / "default" / "d").mkdir(parents=True)
        for i in range(8):
            tensorstore_write(tmp / "default" / "d" / f"chunk{i}",
                              noise(50_000 + i, (step, i)))
        write(tmp / "_METADATA", b"{}")
        os.rename(tmp, m.path / str(step))
        with opened(m.path, os.O_RDONLY) as fd:
            os.fsync(fd)
    m.lose_dram()
    assert sorted(os.listdir(m.path)) == ["0", "1", "2"]
    for step in range(3):
        for i in range(8):
            assert read(m.path / str(step) / "default" / "d" / f"chunk{i}") \
                == noise(50_000 + i, (step, i))


# ---- GGUF: the header is rewritten at the end ----


def test_gguf_like_writer(d, m):
    with open(d / "model.gguf", "w+b") as f:
        f.write(bytes(1000))
        for i in range(5):
            f.write(noise(700_001, i))
            f.flush()
        f.seek(0)
        f.write(b"GGUF" + (5).to_bytes(8, "little"))
    want = (b"GGUF" + (5).to_bytes(8, "little")).ljust(1000, b"\0") + \
        b"".join(noise(700_001, i) for i in range(5))
    m.evict("nvme", d)
    assert read(d / "model.gguf") == want


# ---- DataLoader workers ----


def test_dataloader_workers_while_saving(fresh):
    """They fork while the checkpoint is open, and live on."""
    m = fresh()
    data = torch.utils.data.TensorDataset(torch.arange(64.))
    loader = torch.utils.data.DataLoader(data, 4, num_workers=2,
                                         persistent_workers=True)
    with open(m.path / "model.pt.tmp", "wb") as f:
        batches = iter(loader)
        torch.save(weights(1), f)
        next(batches)
    os.rename(m.path / "model.pt.tmp", m.path / "model.pt")
    write(m.path / "latest", b"model.pt")
    m.wait("nvme", timeout=30)
    for _ in batches:
        pass
    m.lose_dram()
    assert same(load(m.path / read(m.path / "latest").decode()), weights(1))
    del batches, loader


def test_state_can_be_asked_in_the_loop(d, m):
    """How a trainer waits for "on NVMe" without any library of ours."""
    if m.plain:
        pytest.skip("a plain directory has no levels")
    torch.save(weights(1), d / "model.pt")
    until(lambda: os.getxattr(d / "model.pt", "user.ckpt.state") == b"nvme")

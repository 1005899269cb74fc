# SPDX-License-Identifier: Apache-2.0
"""safetensors: temporary file, ftruncate, 1 MiB writes, rename; mmap loads."""
import os

import numpy
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from calls import digest

pytestmark = pytest.mark.modes("passthrough", "served")


def tensors(seed):
    torch.manual_seed(seed)
    return {"embed.weight": torch.randn(3000, 256),
            "layer.0.weight": torch.randn(700, 700).to(torch.float16),
            "layer.0.bias": torch.randn(700).to(torch.bfloat16),
            "empty": torch.empty(0), "ids": torch.arange(12345)}


def same(a, b):
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


def test_version():
    major, minor = map(int, safetensors.__version__.split(".")[:2])
    assert (major, minor) >= (0, 8)


def test_save_and_load(d, m):
    want = tensors(0)
    path = d / "model.safetensors"
    safetensors.torch.save_file(want, path, {"format": "pt"})
    assert os.listdir(d) == ["model.safetensors"], "no temporary file is left"
    assert same(safetensors.torch.load_file(path), want)
    m.evict("nvme", d)
    assert same(safetensors.torch.load_file(path), want)


def test_same_bytes_as_on_a_disk(d, plain):
    for folder in (d, plain):
        safetensors.torch.save_file(tensors(0), folder / "x.safetensors")
    assert digest(d / "x.safetensors") == digest(plain / "x.safetensors")


def test_slices(d, m):
    safetensors.torch.save_file(tensors(0), d / "x.safetensors")
    m.evict("nvme", d)
    with safetensors.safe_open(d / "x.safetensors", "pt") as f:
        part = f.get_slice("embed.weight")[100:200, 3:7]
        assert torch.equal(part, tensors(0)["embed.weight"][100:200, 3:7])
        assert sorted(f.keys()) == sorted(tensors(0))


def test_saved_over_one_that_is_mapped(d, m):
    old, new = tensors(1), tensors(2)
    path = d / "x.safetensors"
    safetensors.torch.save_file(old, path)
    loaded = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, "pt") as f:
        safetensors.torch.save_file(new, path)
        m.evict("nvme", d)
        assert torch.equal(f.get_tensor("ids"), old["ids"])
        assert torch.equal(f.get_tensor("embed.weight"), old["embed.weight"])
    assert same(loaded, old)
    assert same(safetensors.torch.load_file(path), new)


def test_over_and_over(d, m):
    path = d / "x.safetensors"
    for seed in range(5):
        safetensors.torch.save_file(tensors(seed), path)
        assert same(safetensors.torch.load_file(path), tensors(seed))
    m.evict("nvme", d)
    assert same(safetensors.torch.load_file(path), tensors(4))


def test_larger_than_dram(fresh):
    """Its size is said by ftruncate; it is spilled, and the save succeeds."""
    m = fresh(dram="32M")
    want = {f"t{i}": torch.full((1_000_000,), float(i)) for i in range(7)}
    safetensors.torch.save_file(want, m.path / "x.safetensors")
    assert same(safetensors.torch.load_file(m.path / "x.safetensors"), want)
    m.wait("nvme")
    m.lose_dram()
    assert same(safetensors.torch.load_file(m.path / "x.safetensors"), want)


def test_numpy(d, m):
    want = {"a": numpy.arange(1_000_000).reshape(1000, 1000)}
    safetensors.numpy.save_file(want, d / "x.safetensors")
    m.evict("nvme", d)
    got = safetensors.numpy.load_file(d / "x.safetensors")
    assert numpy.array_equal(got["a"], want["a"])

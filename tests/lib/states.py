# SPDX-License-Identifier: Apache-2.0
"""States for the tests of the capture library, and what "the same" is.

Importing this skips where the Python package is not built (sanitizers)."""
import os

import pytest

from mounted import SANITIZED

if SANITIZED:
    pytest.skip("the Python package is not built with sanitizers",
                allow_module_level=True)

import ckptfs  # noqa: E402
import torch  # noqa: E402


def bits(t):
    """The elements of a dense tensor as bytes."""
    t = t.detach().resolve_conj().resolve_neg().contiguous()
    if not t.numel():
        return torch.empty(0, dtype=torch.uint8)
    return t.view(-1).view(torch.uint8)


def same(a, b):
    """Bit for bit, with types and order of keys."""
    if isinstance(a, torch.Tensor):
        if a.is_sparse:
            return same(a.coalesce().values(), b.coalesce().values()) and \
                same(a.coalesce().indices(), b.coalesce().indices())
        return (type(a) is type(b) and a.dtype == b.dtype
                and a.shape == b.shape
                and a.requires_grad == b.requires_grad
                and torch.equal(bits(a), bits(b)))
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and \
            all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and \
            all(map(same, a, b))
    return a == b


DTYPES = [getattr(torch, name) for name in (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn",
    "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "complex32", "complex64", "complex128", "int8", "uint8", "int16",
    "uint16", "int32", "uint32", "int64", "uint64", "bool")
    if hasattr(torch, name)]


def random(dtype, n):
    """n elements of any bits that the type may have."""
    if dtype is torch.bool:
        return torch.randint(0, 2, (n,)).bool()
    raw = torch.randint(0, 256, (n * dtype.itemsize,), dtype=torch.uint8)
    return raw.view(dtype)


def model(seed=0, width=256):
    """A model with statistics that forward changes, its optimizer, and what
    one step made of both."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, width), torch.nn.BatchNorm1d(width),
        torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
        torch.nn.Linear(width, 8))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    return net, optimizer


def step(net, optimizer, number, before_update=lambda: None):
    """One step of training, the same for the same number; its loss."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(32, 64, generator=generator)
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    before_update()
    optimizer.step()
    return loss.item()


@pytest.fixture(autouse=True)
def ended():
    """No test leaves a capture behind, nor its grip on the mount."""
    yield
    try:
        ckptfs.close()
    except ckptfs.CaptureError:
        pass
    ckptfs.configure(at_exit="drain", staging=0, budget=0, chunk=0)


@pytest.fixture(params=["mount", "plain"])
def place(request, mode, d, plain):
    """A directory of the mount, and (once) one of an ordinary filesystem."""
    if request.param == "plain" and mode == "served":
        pytest.skip("the mode makes no difference to an ordinary directory")
    return d if request.param == "mount" else plain


def names(folder):
    return sorted(os.listdir(folder))

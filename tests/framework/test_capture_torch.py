# SPDX-License-Identifier: Apache-2.0
"""save_async() in torch's format: torch.load gets back what torch.save keeps,
from a mount and from an ordinary directory."""
import collections
import os
import subprocess
import zipfile

import pytest

from states import (DTYPES, bits, ckptfs, ended, model, names,  # noqa: F401
                    place, random, same, step, torch)

pytestmark = pytest.mark.modes("passthrough", "served")


def save(state, path, **more):
    ckptfs.save_async(state, path, **more).wait("dram")


def loads(path, **more):
    return torch.load(path, weights_only=True, **more)


@pytest.fixture(params=["host", "device"])
def device(request):
    return None if request.param == "host" else ckptfs.SlowDevice(4e9)


def trained():
    net, optimizer = model()
    step(net, optimizer, 0)
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(),
            "step": 1, "rng": torch.get_rng_state(), "lr": [0.1, (2, None)]}


def test_save_and_load(place, device):
    want = trained()
    save(want, place / "a.pt", device=device)
    assert same(loads(place / "a.pt"), want)
    assert same(loads(place / "a.pt", mmap=True), want)
    assert names(place) == ["a.pt"]


def test_after_eviction(d, m):
    want = trained()
    ckptfs.save_async(want, d / "a.pt").wait("nvme")
    ckptfs.close()
    m.evict("nvme", d)
    assert same(loads(d / "a.pt", mmap=True), want)


@pytest.mark.parametrize("n", [0, 1, 7, 100_000])
def test_all_types(place, device, n):
    want = {str(dtype): random(dtype, n) for dtype in DTYPES}
    save(want, place / "types.pt", device=device)
    assert same(torch.load(place / "types.pt"), want)


def test_shapes(place):
    want = [torch.tensor(1.5), torch.zeros(0), torch.zeros(3, 0, 5),
            torch.ones([1] * 20), torch.arange(24).view(2, 3, 4)]
    save(want, place / "shapes.pt")
    assert same(loads(place / "shapes.pt"), want)


def test_a_state_without_tensors(place):
    for want in ({}, [], None, {"a": {"b": [1, 2.5, "c"]}}):
        save(want, place / "none.pt")
        assert same(loads(place / "none.pt"), want)


def test_views_of_one_storage_stay_so(place, device):
    base = torch.randn(500, 300)
    want = {"row": base[7], "whole": base, "turned": base.t(),
            "every": base[::3, ::2], "tied": {"again": base}}
    save(want, place / "views.pt", device=device)
    got = loads(place / "views.pt")
    assert same(got, want)
    assert got["turned"].stride() == (1, 300)
    at = {t.untyped_storage().data_ptr() for t in
          (got["row"], got["whole"], got["turned"], got["every"],
           got["tied"]["again"])}
    assert len(at) == 1
    got["whole"][7, 0] = 42
    assert got["row"][0] == 42
    with zipfile.ZipFile(place / "views.pt") as z:
        data = [i for i in z.infolist() if "/data/" in i.filename]
    assert [i.file_size for i in data] == [500 * 300 * 4]


def test_an_object_twice_is_one(place):
    inner = {"w": torch.randn(9)}
    save({"a": inner, "b": inner}, place / "twice.pt")
    got = loads(place / "twice.pt")
    assert got["a"] is got["b"]


def test_kinds_of_tensors(place):
    parameter = torch.nn.Parameter(torch.randn(100, 100))
    buffer = torch.randn(4, dtype=torch.complex64)
    want = {"parameter": parameter, "grad": torch.randn(3, requires_grad=True),
            "conj": buffer.conj(), "neg": buffer.clone().conj().imag,
            "sparse": torch.eye(5).to_sparse(), "size": torch.Size([2, 3]),
            "type": torch.bfloat16, "meta": torch.empty(3, device="meta"),
            "ordered": collections.OrderedDict(a=parameter)}
    save(want, place / "kinds.pt")
    got = torch.load(place / "kinds.pt")
    assert got["meta"].is_meta and got.pop("meta").shape == (3,)
    del want["meta"]
    assert same(got, want)
    assert got["ordered"]["a"] is got["parameter"]
    assert got["conj"].is_conj()


class Custom:
    def __init__(self):
        self.weight = torch.randn(5000)
        self.what = {"x": 1}


def test_objects(place):
    want = Custom()
    save({"custom": want}, place / "custom.pt")
    got = torch.load(place / "custom.pt", weights_only=False)["custom"]
    assert same(got.weight, want.weight) and got.what == want.what


def test_objects_may_change_at_once(place):
    state = {"list": [1, 2], "counter": torch.tensor(5),
             "big": torch.randn(2000, 1000)}
    device = ckptfs.SlowDevice(100e6)
    capture = ckptfs.save_async(state, place / "a.pt", device=device)
    state["list"].append(3)
    state["counter"] += 1
    capture.wait("dram")
    got = loads(place / "a.pt")
    assert got["list"] == [1, 2] and got["counter"] == 5


def test_lazy_objects(place):
    want = trained()
    save(want, place / "lazy.pt", objects="lazy")
    assert same(loads(place / "lazy.pt", mmap=True), want)
    ckptfs.save_async({"custom": Custom()}, place / "no.pt", objects="lazy")
    with pytest.raises(ckptfs.CaptureError) as e:
        ckptfs.fence()
    assert "objects='submit'" in str(e.value.__cause__)
    assert names(place) == ["lazy.pt"]


def test_the_zip_is_a_good_one(place, device):
    save(trained(), place / "name.of.it.pt", device=device)
    with zipfile.ZipFile(place / "name.of.it.pt") as z:
        assert z.testzip() is None
        assert z.read("name.of.it/version") == b"3\n"
    subprocess.run(["unzip", "-tqq", place / "name.of.it.pt"], check=True)


def test_types_of_one_storage(place):
    """As torch.save has it."""
    both = torch.zeros(10)
    with pytest.raises(RuntimeError, match="different types"):
        ckptfs.save_async([both, both.view(torch.int32)], place / "no.pt")
    assert names(place) == []


def test_torch_may_compute_places(place, monkeypatch):
    """Its loader can, by the rule of its own writer."""
    from torch.utils.serialization import config
    want = trained()
    save(want, place / "a.pt")
    monkeypatch.setenv("TORCH_SERIALIZATION_DEBUG", "1")
    config.load.calculate_storage_offsets = True
    try:
        assert same(loads(place / "a.pt"), want)
        assert same(loads(place / "a.pt", mmap=True), want)
    finally:
        config.load.calculate_storage_offsets = False


def test_replaced_while_it_is_mapped(place):
    first, second = trained(), {"other": torch.randn(1000)}
    save(first, place / "a.pt")
    got = loads(place / "a.pt", mmap=True)
    save(second, place / "a.pt")
    assert same(got, first)
    assert same(loads(place / "a.pt"), second)


def test_many_at_once(place):
    states = [{"w": torch.full((300, 300), float(i)), "i": i}
              for i in range(12)]
    for i, state in enumerate(states):
        ckptfs.save_async(state, place / f"{i}.pt")
    ckptfs.fence()
    ckptfs.wait("nvme")
    assert len(names(place)) == 12
    for i, state in enumerate(states):
        assert same(loads(place / f"{i}.pt"), state)


def test_what_it_says(place):
    capture = ckptfs.save_async(trained(), place / "a.pt")
    assert capture.path == str(place / "a.pt")
    capture.wait("nvme", timeout=60)
    assert capture.done and capture.error is None
    s = capture.stats
    assert s.submitted <= s.captured <= s.complete
    assert s.file_bytes == os.path.getsize(place / "a.pt")
    assert sum(s[:4]) == s.file_bytes


def test_memory_is_kept_as_long_as_needed(place):
    """The state may be dropped at once."""
    want = [torch.randn(1000, 1000) for _ in range(4)]
    copy = [t.clone() for t in want]
    capture = ckptfs.save_async(want, place / "a.pt",
                                device=ckptfs.SlowDevice(100e6))
    del want
    torch.randn(4000, 1000)
    capture.wait("dram")
    assert same(loads(place / "a.pt"), copy)


def test_slow_device_as_a_context(place):
    with ckptfs.SlowDevice(4e9):
        capture = ckptfs.save_async(trained(), place / "a.pt")
    capture.wait("dram")
    assert capture.stats.device_bytes > 0
    assert bits(torch.zeros(1)).tolist() == [0, 0, 0, 0]

# SPDX-License-Identifier: Apache-2.0
"""save_async() in the safetensors format, read by the library."""
import pytest
import safetensors
import safetensors.torch

from states import (DTYPES, ckptfs, ended, model, names,  # noqa: F401
                    place, random, same, torch)

pytestmark = pytest.mark.modes("passthrough", "served")


def save(state, path, **more):
    ckptfs.save_async(state, path, **more).wait("dram")


def test_save_and_load(place):
    net, _ = model()
    want = net.state_dict()
    save(want, place / "m.safetensors")
    got = safetensors.torch.load_file(place / "m.safetensors")
    assert same({k: got[k] for k in want}, dict(want))
    with safetensors.safe_open(place / "m.safetensors", "pt") as f:
        assert f.metadata() == {"format": "pt"}
    assert names(place) == ["m.safetensors"]


def test_from_a_device(place):
    want = {"w": torch.randn(1000, 700), "v": torch.randn(3)}
    save(want, place / "m.safetensors", device=ckptfs.SlowDevice(2e9))
    got = safetensors.torch.load_file(place / "m.safetensors")
    assert same({k: got[k] for k in want}, want)


def test_same_bytes_as_the_library(place):
    net, _ = model()
    want = net.state_dict()
    save(want, place / "a.safetensors")
    safetensors.torch.save_file(want, place / "b.safetensors",
                                {"format": "pt"})
    with safetensors.safe_open(place / "a.safetensors", "pt") as a, \
            safetensors.safe_open(place / "b.safetensors", "pt") as b:
        assert a.offset_keys() == b.offset_keys()
    assert (place / "a.safetensors").stat().st_size == \
        (place / "b.safetensors").stat().st_size


@pytest.mark.parametrize("n", [0, 1, 7, 50_000])
def test_all_types(place, n):
    types = [t for t in DTYPES if t not in (torch.complex32,
                                            torch.complex128)]
    want = {str(t): random(t, n) for t in types}
    save(want, place / "types.safetensors")
    got = safetensors.torch.load_file(place / "types.safetensors")
    assert same({k: got[k] for k in want}, want)


def test_nested_views_and_names(place):
    base = torch.randn(200, 300)
    want = {"a": {"b": {0: base}}, "turned": base.t(), "row": base[3],
            'odd "\\\t\u00e9\U0001f600': torch.ones(2),
            "scalar": torch.tensor(2.5), "none": torch.zeros(0, 4)}
    save(want, place / "v.safetensors", metadata={"step": "7", "x": "\n"})
    got = safetensors.torch.load_file(place / "v.safetensors")
    assert same(got.pop("a.b.0"), base)
    del want["a"]
    assert same({k: got[k] for k in want},
                {k: v.contiguous() for k, v in want.items()})
    with safetensors.safe_open(place / "v.safetensors", "pt") as f:
        assert f.metadata() == {"step": "7", "x": "\n"}


def test_what_it_cannot_hold(place):
    for state, words in (({"a": 1}, "torch's format"),
                         ({"a": torch.eye(3).to_sparse()}, "dense"),
                         ({"a": torch.zeros(1, dtype=torch.complex128)},
                          "no type"),
                         ({"a": torch.zeros(1, device="meta")}, "no data"),
                         (torch.zeros(1), "named tensors")):
        with pytest.raises(TypeError, match=words):
            ckptfs.save_async(state, place / "no.safetensors")
    with pytest.raises(ValueError, match="two tensors"):
        ckptfs.save_async({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)},
                          place / "no.safetensors")
    with pytest.raises(ckptfs.CaptureError):
        ckptfs.save_async({"__metadata__": torch.ones(1)},
                          place / "no.safetensors")
    assert names(place) == []

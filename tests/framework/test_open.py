# SPDX-License-Identifier: Apache-2.0
"""ckptfs.open(): tensors by name, of files that the frameworks saved, mapped
where that is possible."""
import errno
import json
import os
import zipfile

import numpy
import pytest
import safetensors.torch
import torch.distributed.checkpoint as dcp

from states import (DTYPES, bits, ckptfs, ended, model, names,  # noqa: F401
                    place, random, same, step, torch)

pytestmark = [pytest.mark.modes("passthrough", "served"),
              pytest.mark.filterwarnings("ignore")]


def flat(state, prefix=""):
    out = {}
    for key, value in state.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, dict):
            out.update(flat(value, name))
        elif isinstance(value, torch.Tensor):
            out[name] = value
    return out


def all_there(path, want, mapped=None):
    """Every tensor of want and no others; who is mapped."""
    got = ckptfs.open(path)
    assert set(got) == set(want) and len(got) == len(want)
    for name, tensor in want.items():
        info = got.info(name)
        assert info.shape == tuple(tensor.shape)
        assert info.nbytes == tensor.numel() * tensor.element_size()
        assert f"torch.{info.dtype}" == str(tensor.dtype)
        assert same(got[name], tensor.detach()), name
        if mapped is not None and tensor.numel():
            assert info.mapped == mapped, name
    return got


def trained():
    net, optimizer = model()
    step(net, optimizer, 0)
    return {"net": net.state_dict(), "optimizer": optimizer.state_dict()}


@pytest.mark.parametrize("by", ["torch", "ckptfs"])
def test_torch_files(place, by):
    want = trained()
    if by == "torch":
        torch.save(want, place / "a.pt")
    else:
        ckptfs.save_async(want, place / "a.pt").wait("dram")
    got = all_there(place / "a.pt", flat(want), mapped=True)
    assert got.format == "torch"
    assert "net.0.weight" in got and "net" not in got


@pytest.mark.parametrize("by", ["safetensors", "ckptfs"])
def test_safetensors_files(place, by):
    want = trained()["net"]
    if by == "safetensors":
        safetensors.torch.save_file(want, place / "a.safetensors")
    else:
        ckptfs.save_async(want, place / "a.safetensors").wait("dram")
    assert all_there(place / "a.safetensors", dict(want)).format == \
        "safetensors"


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_all_types(place, n):
    want = {str(t).split(".")[1]: random(t, n) for t in DTYPES}
    torch.save(want, place / "types.pt")
    all_there(place / "types.pt", want)
    few = {k: v for k, v in want.items()
           if k not in ("complex32", "complex128")}
    safetensors.torch.save_file(few, place / "types.safetensors")
    all_there(place / "types.safetensors", few)
    arrays = ckptfs.open(place / "types.pt", framework="numpy")
    for name, tensor in want.items():
        array = arrays[name]
        assert array.nbytes == tensor.numel() * tensor.element_size()
        assert array.tobytes() == bits(tensor).numpy().tobytes()
    assert arrays["float32"].dtype == "<f4" and arrays["bool"].dtype == bool
    assert arrays["bfloat16"].dtype == "<u2"


def test_views(place):
    base = torch.randn(40, 30)
    want = {"whole": base, "row": base[7], "turned": base.t(),
            "every": base[::3, ::2], "scalar": base[1, 1],
            "wide": torch.ones(1).expand(5, 5)}
    torch.save(want, place / "views.pt")
    got = all_there(place / "views.pt", want)
    assert got.info("row").mapped and not got.info("turned").mapped
    assert got.info("row").shared and not got.info("whole").shared


def test_a_mapped_tensor_is_the_file(place):
    want = torch.arange(1 << 20)
    torch.save({"w": want}, place / "a.pt")
    got = ckptfs.open(place / "a.pt")
    one, two = got["w"], got["w"]
    assert one.data_ptr() == two.data_ptr()
    del got
    one[0] = 7  # changes no file
    assert same(torch.load(place / "a.pt")["w"], want)
    array = ckptfs.open(place / "a.pt", framework="numpy")["w"]
    assert not array.flags.writeable
    with pytest.raises(ValueError):
        array[0] = 1
    assert same(torch.from_numpy(array.copy()), want)


def test_what_was_listed_is_read(place):
    first, second = torch.ones(50_000), torch.zeros(50_000)
    torch.save({"w": first, "v": first.view(100, 500).t()}, place / "a.pt")
    got = ckptfs.open(place / "a.pt")
    torch.save({"w": second}, place / "b.pt")
    os.replace(place / "b.pt", place / "a.pt")
    assert same(got["w"], first)
    assert same(got["v"], first.view(100, 500).t().contiguous())
    assert same(ckptfs.open(place / "a.pt")["w"], second)


def test_numpy_files(place):
    a = numpy.arange(24, dtype="f4").reshape(2, 3, 4)
    numpy.save(place / "a.npy", a)
    (name,) = ckptfs.open(place / "a.npy")
    assert (ckptfs.open(place / "a.npy", framework="numpy")[name] == a).all()
    for save in (numpy.savez, numpy.savez_compressed):
        save(place / "a.npz", x=a, y=a.T, z=a[0, 0, 0])
        got = ckptfs.open(place / "a.npz", framework="numpy")
        assert sorted(got) == ["x", "y", "z"]
        assert (got["x"] == a).all() and (got["y"] == a.T).all()
        assert got["z"] == 0 and got["z"].shape == ()


@pytest.mark.parametrize("what", ["folder", "index"])
def test_checkpoints_in_several_files(place, what):
    parts = [{f"layer.{i}.{k}": torch.randn(30, 20) for k in "wb"}
             for i in range(3)]
    index = {}
    for i, part in enumerate(parts):
        name = f"model-{i + 1:05}-of-00003.safetensors"
        safetensors.torch.save_file(part, place / name)
        index.update({k: name for k in part})
    path = place / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": index}))
    want = {k: v for part in parts for k, v in part.items()}
    all_there(place if what == "folder" else path, want, mapped=True)
    os.unlink(place / "model-00002-of-00003.safetensors")
    got = ckptfs.open(path)
    assert same(got["layer.0.w"], want["layer.0.w"])
    with pytest.raises(FileNotFoundError, match="layer.1.w"):
        got["layer.1.w"]


@pytest.mark.parametrize("by", ["torch", "ckptfs"])
def test_dcp_folders(place, by):
    want = trained()
    kind = dcp.FileSystemWriter
    if by == "ckptfs":
        from ckptfs.dcp import Writer as kind
    dcp.save(want, storage_writer=kind(place / "c"), no_dist=True)
    for path in (place / "c", place / "c" / ".metadata"):
        got = ckptfs.open(path)
        for name, tensor in flat(want).items():
            assert same(got[name], tensor.detach()), name


def test_after_eviction(d, m):
    want = trained()["net"]
    torch.save(want, d / "a.pt")
    m.evict("nvme", d)
    all_there(d / "a.pt", dict(want))


def test_gguf_files(place):
    """A quantised tensor is its bytes."""
    import gguf
    plain = numpy.arange(64, dtype="f4").reshape(2, 32)
    packed = gguf.quantize(plain, gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(place / "a.gguf", "llama")
    writer.add_tensor("plain", plain)
    writer.add_tensor("packed", packed,
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for framework in ("numpy", "torch"):
        got = ckptfs.open(place / "a.gguf", framework=framework)
        assert got.format == "gguf"
        assert (numpy.asarray(got["plain"]) == plain).all()
        assert numpy.asarray(got["packed"]).tobytes() == packed.tobytes()
        assert got.info("packed").stored_as == "Q8_0"


def test_what_is_none(place):
    (place / "text.pt").write_text("no checkpoint")
    with zipfile.ZipFile(place / "other.zip", "w") as z:
        z.writestr("a", "b")
    for name in ("text.pt", "other.zip"):
        with pytest.raises(OSError, match="no checkpoint") as e:
            ckptfs.open(place / name)
        assert e.value.errno == errno.ENOMSG
        assert e.value.filename == str(place / name)
    with pytest.raises(FileNotFoundError):
        ckptfs.open(place / "none.pt")
    with pytest.raises(IsADirectoryError, match="name the file"):
        ckptfs.open(place)
    torch.save({"a": torch.ones(1)}, place / "a.pt")
    with pytest.raises(KeyError):
        ckptfs.open(place / "a.pt")["b"]
    with pytest.raises(ValueError, match="framework"):
        ckptfs.open(place / "a.pt", framework="jax")
    os.truncate(place / "a.pt", 300)
    with pytest.raises(OSError, match="no checkpoint"):
        ckptfs.open(place / "a.pt")

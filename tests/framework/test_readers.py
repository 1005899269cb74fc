# SPDX-License-Identifier: Apache-2.0
"""What the format readers find in files that the real frameworks wrote: names,
types, shapes, and every byte. Nothing is mounted."""
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

BUILD = pathlib.Path(os.environ.get("CKPTFS_BUILD")
                     or pathlib.Path(os.environ["CKPTFS_BIN"]).parent)
DUMP = BUILD / "tests/tools/reader_dump"

TYPES = [torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16,
         torch.uint32, torch.int32, torch.uint64, torch.int64, torch.float16,
         torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn,
         torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
         torch.float8_e8m0fnu, torch.complex64]


def dump(path, *arguments):
    done = subprocess.run([DUMP, path, *map(str, arguments)],
                          stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def images(path, folder, step=4 << 20):
    """{name: (what is told, the tensor's .npy)}"""
    folder.mkdir()
    told = dump(path, folder, step)["tensors"]
    return {t["name"]: (t, np.load(folder / f"{i}.npy"))
            for i, t in enumerate(told)}


def some(dtype, *shape):
    n = int(np.prod(shape, dtype=int)) * torch.empty((), dtype=dtype).itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (n,),
                        dtype=torch.uint8)
    return raw.view(dtype).reshape(shape) if n else torch.empty(
        shape, dtype=dtype)


def raw(tensor):
    """Its bytes in C order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() \
        if tensor.numel() else b""


def compare(found, want):
    assert set(found) == set(want)
    for name, tensor in want.items():
        told, array = found[name]
        assert told["dtype"] == str(tensor.dtype).removeprefix("torch."), name
        assert told["shape"] == list(tensor.shape), name
        assert list(array.shape) == list(tensor.shape), name
        assert array.tobytes() == raw(tensor), name


def model():
    want = {f"layer.{i}.{str(t).removeprefix('torch.')}": some(t, 5, 7)
            for i, t in enumerate(TYPES)}
    want["scalar"] = some(torch.float32)
    want["none"] = some(torch.bfloat16, 3, 0, 2)
    want["näme \"quoted\" \\ / 日本 😀"] = some(torch.int64, 2, 3, 4, 5)
    return want


def test_safetensors(tmp_path):
    want = model()
    path = tmp_path / "model.safetensors"
    save_file(want, path, {"format": "pt", "é": "\n\t\"\\"})
    compare(images(path, tmp_path / "out"), want)
    assert dump(path)["format"] == "safetensors"
    assert all(t["run"] for t in dump(path)["tensors"] if t["len"])


def test_safetensors_f4(tmp_path):
    """Two in a byte: the file counts single ones, PyTorch pairs."""
    want = {"f4": torch.arange(12, dtype=torch.uint8).reshape(3, 4).view(
        torch.float4_e2m1fn_x2)}
    path = tmp_path / "f4.safetensors"
    save_file(want, path)
    (told, array), = images(path, tmp_path / "out").values()
    assert told["dtype"] == "float4_e2m1fn_x2"
    assert told["shape"] == [3, 4]
    assert array.tobytes() == bytes(range(12))


def test_safetensors_without_tensors(tmp_path):
    save_file({}, tmp_path / "x")
    assert dump(tmp_path / "x") == {"format": "safetensors", "tensors": []}


def test_index(tmp_path):
    """As transformers shards it; what is missing stays unknown."""
    want = model()
    names = list(want)
    files = {}
    for shard in range(3):
        file = f"model-{shard + 1:05}-of-00003.safetensors"
        part = names[shard::3]
        save_file({name: want[name] for name in part}, tmp_path / file)
        files |= dict.fromkeys(part, file)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({
        "metadata": {"total_size": 1}, "weight_map": {n: files[n] for n in names},
    }, indent=2))
    compare(images(path, tmp_path / "out"), want)
    raw_table = json.loads(subprocess.check_output([DUMP, "-r", path]))
    assert raw_table["format"] == "index"
    assert [t["name"] for t in raw_table["tensors"]] == names
    assert {t["dtype"] for t in raw_table["tensors"]} == {"unknown"}
    (tmp_path / files[names[0]]).unlink()
    for told in dump(path)["tensors"]:
        gone = files[told["name"]] == files[names[0]]
        assert (told["dtype"] == "unknown") == gone


NPY = ["?", "u1", "i1"] + [order + t for order in "<>" for t in (
    "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16")]


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", NPY)
def test_npy(tmp_path, dtype, order):
    rng = np.random.default_rng(1)
    for i, shape in enumerate([(), (1,), (7,), (3, 0), (5, 7), (2, 3, 4, 5)]):
        want = np.asarray(rng.integers(0, 2, shape), dtype=dtype, order=order)
        path = tmp_path / f"{i}.npy"
        np.save(path, want)
        (told, array), = images(path, tmp_path / f"out{i}", 13).values()
        assert told["name"] == "array"
        assert np.dtype(told["dtype"]) == want.dtype.newbyteorder("=")
        assert array.shape == want.shape
        assert array.dtype == want.dtype.newbyteorder("<")
        np.testing.assert_array_equal(array, want)


def test_npy_versions(tmp_path):
    for version in ((1, 0), (2, 0), (3, 0)):
        path = tmp_path / "a.npy"
        with open(path, "wb") as f:
            np.lib.format.write_array(f, np.arange(9), version=version)
        assert dump(path)["tensors"][0]["shape"] == [9]


@pytest.mark.parametrize("array", [
    np.array([{"a": 1}, None], dtype=object), np.array(["text", "more"]),
    np.array([b"bytes"]), np.array(["2024-01-01"], "M8[D]"),
    np.zeros(3, "f4,i8"), np.zeros(3, np.longdouble),
])
def test_npy_of_no_numbers(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    assert dump(tmp_path / "a.npy") == {"opaque": True}


def test_npy_large_transposed(tmp_path):
    want = np.arange(3000 * 1700, dtype=np.float32).reshape(3000, 1700).T
    np.save(tmp_path / "a.npy", want)
    for step in (4 << 20, 128 << 10):
        (told, array), = images(tmp_path / "a.npy",
                                tmp_path / f"out{step}", step).values()
        assert not told["run"]
        assert np.array_equal(array, want)


def test_npy_header_is_numpys(tmp_path):
    """Byte for byte what NumPy writes for the same array."""
    for shape in [(), (3,), (2, 3), (4, 5, 6)]:
        want = np.ones(shape, "<f8")
        np.save(tmp_path / "a.npy", want)
        out = tmp_path / f"out{len(shape)}"
        out.mkdir()
        dump(tmp_path / "a.npy", out)
        ours = (out / "0.npy").read_bytes()
        theirs = (tmp_path / "a.npy").read_bytes()
        assert ours.replace(b" ", b"") == theirs.replace(b" ", b"")


def gguf_file(path, endian):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama", endianess=endian)
    writer.add_uint8("a.u8", 1)
    writer.add_int64("a.i64", -1)
    writer.add_float64("a.f64", 0.5)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "é" * 1000)
    writer.add_array("a.texts", [f"token {i}" for i in range(40000)])
    writer.add_array("a.numbers", list(range(300)))
    writer.add_custom_alignment(64)
    return gguf, writer


@pytest.mark.parametrize("endian", ["LITTLE", "BIG"])
def test_gguf(tmp_path, endian):
    gguf = pytest.importorskip("gguf")
    order = getattr(gguf.GGUFEndian, endian)
    gguf, writer = gguf_file(tmp_path / "m.gguf", order)
    rng = np.random.default_rng(1)
    want = {f"blk.0.{t}": rng.integers(0, 100, (3, 5)).astype(t)
            for t in ("f2", "f4", "f8", "i1", "i2", "i4", "i8")}
    want["one"] = np.array([1.5], "f4")
    for name, array in want.items():
        writer.add_tensor(name, array.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = images(tmp_path / "m.gguf", tmp_path / "out")
    assert list(found) == list(want)
    for name, array in want.items():
        assert np.dtype(found[name][0]["dtype"]) == array.dtype
        np.testing.assert_array_equal(found[name][1], array)


def test_gguf_quantised(tmp_path):
    gguf = pytest.importorskip("gguf")
    gguf, writer = gguf_file(tmp_path / "q.gguf", gguf.GGUFEndian.LITTLE)
    want = {}
    for kind, (n, size) in gguf.GGML_QUANT_SIZES.items():
        if n == 1:
            continue
        data = np.random.default_rng(1).integers(
            0, 256, (3, 2 * size), dtype=np.uint8)
        want[kind.name] = (n * 2, data)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = images(tmp_path / "q.gguf", tmp_path / "out")
    assert list(found) == list(want)
    for name, (columns, data) in want.items():
        told, array = found[name]
        assert told["dtype"] == "packed"
        assert told["type_name"] == name
        assert told["shape"] == [3, columns]
        assert told["len"] == data.nbytes
        assert array.tobytes() == data.tobytes()


def test_opaque(tmp_path):
    for i, content in enumerate([b"", b"{", b"text", os.urandom(1000),
                                 b"\0" * 1000]):
        (tmp_path / f"{i}").write_bytes(content)
        assert dump(tmp_path / f"{i}") == {"opaque": True}

# SPDX-License-Identifier: Apache-2.0
"""The readers of DCP's .metadata and of .npz against what PyTorch and NumPy
write. Nothing is mounted."""
import os
import pathlib
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as md

from readers import DEFLATE, NESTED, PLAIN, dump, images, look, opaque

pytestmark = pytest.mark.filterwarnings("ignore")

RANK = pathlib.Path(__file__).parent / "dcp_rank.py"


def as_bytes(t):
    return t.detach().contiguous().reshape(-1).view(torch.uint8) \
        .numpy().tobytes()


def check(folder, want):
    path = folder / ".metadata"
    seen = look(path, "dcp")
    assert seen.keys() == want.keys()
    out = folder.parent / (folder.name + ".out")
    for name, (told, image) in images(path, out).items():
        assert told["dtype"] == str(want[name].dtype).removeprefix("torch.")
        assert told["shape"] == list(want[name].shape), name
        assert image == as_bytes(want[name]), name
        assert {p["coding"] for p in seen[name]["pieces"]} <= {NESTED}
        assert {p["coding"] for p in told["pieces"]} <= {PLAIN}
    return seen


def state():
    t = torch.arange(12.)
    return {"model": {"w": t.reshape(3, 4), "turned": t.reshape(3, 4).T,
                      "view": torch.arange(1000)[10:20]},
            "half": torch.ones(3, dtype=torch.bfloat16),
            "f8": torch.ones(5).to(torch.float8_e5m2),
            "u16": torch.ones(2, dtype=torch.uint16),
            "p": torch.nn.Parameter(t + 1), "zero": torch.tensor(7),
            "empty": torch.zeros(0, 3), "list": [1, t + 2, {"x": t + 3}],
            "lr": 0.1, "name": "n"}


def flat(o, name=None):
    if isinstance(o, torch.Tensor):
        return {name: o}
    items = o.items() if isinstance(o, dict) else \
        enumerate(o) if isinstance(o, list) else ()
    return {k: t for key, v in items for k, t in flat(
        v, str(key) if name is None else f"{name}.{key}").items()}


@pytest.fixture
def saved(tmp_path):
    dcp.save(state(), checkpoint_id=tmp_path / "c", no_dist=True)
    return tmp_path / "c"


def change(folder, function, protocol=None):
    """Have the metadata changed by function, and written again."""
    path = folder / ".metadata"
    m = pickle.loads(path.read_bytes())
    m = function(m) or m
    path.write_bytes(pickle.dumps(m, protocol))


def test_one_process(saved):
    check(saved, flat(state()))


@pytest.mark.parametrize("threads", [1, 3])
def test_files_of_several_threads(tmp_path, threads):
    dcp.save(state(), no_dist=True, storage_writer=dcp.FileSystemWriter(
        tmp_path / "c", thread_count=threads, single_file_per_rank=False))
    seen = check(tmp_path / "c", flat(state()))
    assert len({p["file"] for s in seen.values() for p in s["pieces"]}) > 1


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_older_layouts(saved, protocol):
    """Without what was added since: storage_meta, version, descriptors."""
    def older(m):
        for name in ("storage_meta", "version"):
            m.__dict__.pop(name, None)
        for info in m.storage_data.values():
            info.__dict__.pop("transform_descriptors", None)

    change(saved, older, protocol)
    check(saved, flat(state()))


def test_ranks(tmp_path):
    """Three, so that shards are of uneven sizes."""
    store = tmp_path / "store"
    folder = tmp_path / "c"
    folder.mkdir()
    ranks = [subprocess.Popen(
        [sys.executable, RANK, str(r), "3", str(store), str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"}) for r in range(3)]
    try:
        for r in ranks:
            assert r.stdout.readline() == b"saved\n"
        want = {"w": torch.arange(4096 * 64.).reshape(4096, 64) * 3,
                "b": torch.arange(4096.) * 3, "step": torch.tensor(3)}
        for name in ("save", "async"):
            seen = check(folder / name, want)
            assert [len(seen[n]["pieces"]) for n in ("w", "b", "step")] == [
                3, 3, 1]
    finally:
        for r in ranks:
            r.stdin.close()
        for r in ranks:
            r.wait(timeout=60)
            r.stdout.close()


def test_missing_files(saved):
    """Places are not known then; what the tensor is remains."""
    for file in saved.glob("*.distcp"):
        file.unlink()
    told = {t["name"]: t for t in dump(saved / ".metadata")["tensors"]}
    assert told["model.w"]["shape"] == [3, 4]
    assert told["model.w"]["pieces"][0]["coding"] == NESTED


def entry(m, name):
    index, = [i for i in m.storage_data if i.fqn == name]
    return index, m.storage_data[index]


def test_left_out(saved):
    """One not stored, one compressed, one of an unknown type, one in part."""
    def function(m):
        del m.storage_data[entry(m, "half")[0]]
        entry(m, "f8")[1].transform_descriptors = ["zstd"]
        m.state_dict_metadata["u16"].properties.dtype = torch.qint8
        chunk = m.state_dict_metadata["model.w"].chunks[0]
        chunk.sizes = torch.Size([2, 4])

    change(saved, function)
    left = ("half", "f8", "u16", "model.w")
    check(saved, {k: v for k, v in flat(state()).items() if k not in left})


def chunks(m, *pairs):
    m.state_dict_metadata["model.w"].chunks = [
        md.ChunkStorageMetadata(torch.Size(o), torch.Size(s))
        for o, s in pairs]
    _, info = entry(m, "model.w")
    for o, _ in pairs:
        m.storage_data[md.MetadataIndex("model.w", torch.Size(o))] = info


def put(m, name, value):
    setattr(entry(m, "model.w")[1], name, value)


HOSTILE = {
    "overlap": lambda m: chunks(m, ([0, 0], [2, 4]), ([1, 0], [2, 4])),
    "twice": lambda m: chunks(m, ([0, 0], [3, 4]), ([0, 0], [3, 4])),
    "crossed": lambda m: chunks(m, ([0, 0], [3, 1]), ([0, 1], [3, 2]),
                                ([1, 2], [1, 2])),
    "outside": lambda m: chunks(m, ([0, 0], [4, 4])),
    "far": lambda m: chunks(m, ([2**62, 0], [2**62, 4])),
    "dims": lambda m: chunks(m, ([0], [12])),
    "up": lambda m: put(m, "relative_path", "../__0_0.distcp"),
    "root": lambda m: put(m, "relative_path", "/etc/passwd"),
    "nul": lambda m: put(m, "relative_path", "a\0b"),
    "no path": lambda m: put(m, "relative_path", ""),
    "number": lambda m: put(m, "relative_path", 3),
    "long": lambda m: put(m, "length", 2**63),
    "end": lambda m: put(m, "offset", 2**63 - 1),
    "before": lambda m: put(m, "offset", -1),
    "short": lambda m: put(m, "length", 48),
    "float": lambda m: put(m, "length", 1e3),
    "size": lambda m: setattr(m.state_dict_metadata["model.w"], "size",
                              torch.Size([2**62, 2**62])),
    "no chunks": lambda m: setattr(m.state_dict_metadata["model.w"],
                                   "chunks", None),
    "no storage": lambda m: setattr(m, "storage_data", None),
    "no metadata": lambda m: m.state_dict_metadata,
    "a string": lambda m: "Metadata",
}


@pytest.mark.parametrize("how", HOSTILE)
def test_hostile(saved, how):
    change(saved, HOSTILE[how])
    assert opaque(saved / ".metadata")


def test_grid(saved):
    """Cut in both dimensions: each chunk once, none overlaps."""
    change(saved, lambda m: chunks(
        m, ([0, 0], [2, 3]), ([0, 3], [2, 1]), ([2, 0], [1, 2]),
        ([2, 2], [1, 2]), ([3, 0], [0, 4])))
    assert len(look(saved / ".metadata", "dcp")["model.w"]["pieces"]) == 4


def test_broken(saved):
    path = saved / ".metadata"
    good = path.read_bytes()
    dice = random.Random(2)
    for _ in range(150):
        data = bytearray(good)
        for _ in range(dice.choice([1, 1, 2, 8])):
            data[dice.randrange(len(data))] = dice.randrange(256)
        path.write_bytes(data)
        opaque(path)
    for _ in range(50):
        path.write_bytes(good[:dice.randrange(len(good))])
        assert opaque(path)


def test_hugging_face(tmp_path):
    want = {"w": torch.arange(12.).reshape(3, 4), "b": torch.ones(3)}
    dcp.save(want, no_dist=True, storage_writer=dcp.HuggingFaceStorageWriter(
        str(tmp_path / "c")))
    file, = (tmp_path / "c").glob("*.safetensors")
    found = images(file, tmp_path / "out")
    assert {n: i for n, (_, i) in found.items()} == {
        n: as_bytes(t) for n, t in want.items()}


def test_safetensors_variant(tmp_path):
    """FileSystemWriter's: its .metadata says nothing of use."""
    from torch.distributed.checkpoint.filesystem import SerializationFormat
    dcp.save({"w": torch.ones(3)}, no_dist=True,
             storage_writer=dcp.FileSystemWriter(
                 tmp_path / "c",
                 serialization_format=SerializationFormat.SAFETENSORS))
    assert opaque(tmp_path / "c" / ".metadata")
    file, = (tmp_path / "c").glob("*.distcp")
    assert look(file, "safetensors").keys() == {"w"}


ARRAYS = {
    "a": np.arange(6.).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6, dtype="i4").reshape(2, 3)),
    "big": np.arange(6, dtype=">i8"), "half": np.ones(3, "f2"),
    "complex": np.ones((2, 1), "c16"), "bool": np.array([True, False]),
    "zero": np.array(3, "u2"), "empty": np.zeros((3, 0)),
    "large": np.random.default_rng(1).integers(0, 9, 100_000),
    "dir/in.side": np.ones(2, "i1"),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    path = tmp_path / "a.npz"
    save(path, **ARRAYS, text=np.array(["x"]), when=np.zeros(2, "M8[s]"),
         record=np.zeros(2, [("x", "i4")]), thing=np.array([{}], dtype=object))
    seen = look(path, "npz")
    assert list(seen) == list(ARRAYS)
    coding = PLAIN if save is np.savez else DEFLATE
    for name, (told, image) in images(path, tmp_path / "out").items():
        want = ARRAYS[name]
        assert told["dtype"] == want.dtype.name
        assert told["shape"] == list(want.shape)
        little = want.astype(want.dtype.newbyteorder("<"))
        assert image == little.tobytes(), name
        assert {p["coding"] for p in seen[name]["pieces"]} <= {coding}


def test_npz_broken(tmp_path):
    path = tmp_path / "a.npz"
    dice = random.Random(3)
    for save in (np.savez, np.savez_compressed):
        save(path, a=np.arange(9), b=np.ones((2, 3)))
        good = path.read_bytes()
        for _ in range(100):
            data = bytearray(good)
            data[dice.randrange(len(data))] = dice.randrange(256)
            path.write_bytes(data)
            opaque(path)
        for _ in range(30):
            path.write_bytes(good[:dice.randrange(len(good))])
            assert opaque(path)

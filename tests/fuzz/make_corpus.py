#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/fuzz/corpus anew with the real frameworks: small files of every
format, and their records.

    tests/fuzz/make_corpus.py build/tests/tools/reader_dump
"""
import collections
import io
import json
import pathlib
import pickle
import subprocess
import sys
import tempfile
import zipfile

import gguf
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

CORPUS = pathlib.Path(__file__).parent / "corpus"
READER = CORPUS / "reader"


def safetensors():
    save_file({"a": torch.arange(6, dtype=torch.int16).reshape(2, 3),
               "é": torch.ones((), dtype=torch.bfloat16),
               "none": torch.zeros(0, 4)}, READER / "a.safetensors",
              {"format": "pt"})
    save_file({"f4": torch.zeros(2, 2, dtype=torch.uint8).view(
        torch.float4_e2m1fn_x2)}, READER / "f4.safetensors")


def index():
    (READER / "a.index.json").write_text(json.dumps({
        "metadata": {"total_size": 12.5, "x": [None, True, "\\u00e9"]},
        "weight_map": {"a": "s-1", "d": "sub/s-2", "none": "?"}}))


def npy():
    a = np.arange(6, dtype="<f4").reshape(2, 3)
    np.save(READER / "c.npy", a)
    np.save(READER / "f.npy", a.T.astype(">i2"))
    with open(READER / "v3.npy", "wb") as f:
        np.lib.format.write_array(f, np.zeros((), "c16"), version=(3, 0))


def gguf_file(name, order):
    writer = gguf.GGUFWriter(READER / name, "x", endianess=order)
    writer.add_bool("b", True)
    writer.add_array("t", ["x", "yz"])
    writer.add_array("n", [1, 2, 3])
    writer.add_tensor("w", np.ones((2, 3), "f4"))
    if order == gguf.GGUFEndian.LITTLE:
        writer.add_tensor("q", np.zeros((1, 18), np.uint8),
                          raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def saved(o, **options):
    buf = io.BytesIO()
    torch.save(o, buf, **options)
    return buf.getvalue()


def torch_zips():
    """One tensor each: storages are spread out to multiples of 64."""
    zips = CORPUS / "zip"
    (zips / "one.pt").write_bytes(saved(torch.arange(3)))
    (zips / "dict.pt").write_bytes(saved({"a": torch.ones(2, 2).T}))
    for name, save in (("stored", np.savez), ("packed", np.savez_compressed)):
        with open(zips / f"{name}.npz", "wb") as f:
            save(f, a=np.arange(3, dtype="u1"), b=np.ones((2, 1), ">f2"))
    with zipfile.ZipFile(zips / "comment.zip", "w") as z:
        z.writestr("x/a", "text")
        z.comment = b"comment"
    for path in zips.iterdir():
        (READER / path.name).write_bytes(path.read_bytes())


def pickles():
    def put(name, data):
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            (CORPUS / "pickle" / name).write_bytes(
                z.read("archive/data.pkl"))

    t = torch.arange(4.)
    p = torch.nn.Parameter(torch.ones(1))
    p.note = 1
    put("types", saved({"a": t, 1: [t[1:], t[::2]], None: torch.ones(
        2, dtype=torch.uint16)}))
    put("wrapped", saved([p, (torch.nn.Parameter(t),)]))
    put("module", saved(torch.nn.Linear(1, 1)))
    put("others", saved(collections.OrderedDict(
        s=torch.eye(2).to_sparse(), m=torch.ones(1, device="meta"))))
    for protocol in (2, 4, 5):
        o = {"x": [1, -2, 2**70, 1.5, b"b", "u", None, True, {1}, (1,) * 4]}
        o["x"].append(o)
        (CORPUS / "pickle" / f"plain{protocol}").write_bytes(
            pickle.dumps(o, protocol))
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"w": t}, checkpoint_id=folder, no_dist=True)
        data = (pathlib.Path(folder) / ".metadata").read_bytes()
    m = pickle.loads(data)
    m.storage_meta = None
    for protocol in (2, 4):
        data = pickle.dumps(m, protocol)
        (CORPUS / "pickle" / f"dcp{protocol}").write_bytes(data)
    (READER / "a.metadata").write_bytes(data)


def records(dump):
    for path in sorted(READER.iterdir()):
        record = subprocess.run([dump, "-e", path], check=True,
                                stdout=subprocess.PIPE).stdout
        if not record.startswith(b"{"):
            (CORPUS / "record" / path.name).write_bytes(record)


def main(dump):
    for folder in ("reader", "record", "zip", "pickle"):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
    safetensors()
    index()
    npy()
    gguf_file("le.gguf", gguf.GGUFEndian.LITTLE)
    gguf_file("be.gguf", gguf.GGUFEndian.BIG)
    torch_zips()
    pickles()
    records(dump)


if __name__ == "__main__":
    main(sys.argv[1])

# SPDX-License-Identifier: Apache-2.0
"""What the format readers see in a file, by way of reader_dump."""
import json
import os
import pathlib
import subprocess

import numpy as np

TOOL = pathlib.Path(os.environ.get("CKPTFS_BUILD") or pathlib.Path(
    os.environ["CKPTFS_BIN"]).parent) / "tests/tools/reader_dump"

PLAIN, DEFLATE, NESTED = 0, 1, 2
WIDE = {"float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2, "float32": 4,
        "int32": 4, "uint32": 4, "complex32": 4, "float64": 8, "int64": 8,
        "uint64": 8, "complex64": 8, "complex128": 16}


def dump(path, *arguments):
    done = subprocess.run([TOOL, *arguments[:1], path, *arguments[1:]],
                          stdout=subprocess.PIPE, timeout=60, check=True)
    return json.loads(done.stdout)


def look(path, form):
    """{name: what the file itself tells of the tensor}"""
    told = dump(path, "-r")
    assert told["format"] == form
    return {t["name"]: t for t in told["tensors"]}


def opaque(path):
    return "opaque" in dump(path, "-r")


def images(path, folder):
    """{name: (what is told, other files looked into; the tensor's bytes)}"""
    folder.mkdir()
    done = subprocess.run([TOOL, path, folder], stdout=subprocess.PIPE,
                          timeout=60, check=True)
    return {t["name"]: (t, np.load(folder / f"{i}.npy").tobytes())
            for i, t in enumerate(json.loads(done.stdout)["tensors"])}


def plain_bytes(path, tensor):
    """The elements in C order, by the record alone (one plain piece)."""
    if not tensor["pieces"]:
        return b""
    piece, = tensor["pieces"]
    assert piece["coding"] == PLAIN
    with open(path, "rb") as f:
        f.seek(piece["off"])
        raw = f.read(piece["len"])
    assert len(raw) == piece["len"]
    wide = WIDE.get(tensor["dtype"], 1)
    raw = np.frombuffer(raw, np.dtype((np.void, wide)))
    return np.lib.stride_tricks.as_strided(
        raw, piece["shape"], [s * wide for s in piece["stride"]]).tobytes()

# SPDX-License-Identifier: Apache-2.0
"""The examples of the README, as they stand there, with /ckpt where the mount
is."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch

SOURCE = pathlib.Path(os.environ.get("CKPTFS_SOURCE", pathlib.Path(
    __file__).parents[2]))
README = (SOURCE / "README.md").read_text()


def examples(language):
    found = re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)
    assert found
    return found


def here(text, path):
    return text.replace("/ckpt/", f"{path}/")


@pytest.fixture
def built():
    build = os.environ.get("CKPTFS_BUILD") or str(
        pathlib.Path(os.environ["CKPTFS_BIN"]).parent)
    return pathlib.Path(build)


def test_python(fresh, mode):
    if mode == "user":
        pytest.skip("Python's packages are root's")
    m = fresh(dram="256M")
    for example in examples("python"):
        subprocess.run([sys.executable, "-c", here(example, m.path)],
                       check=True, timeout=120)
    assert os.listdir(m.path) == ["latest.pt"]
    assert torch.load(m.path / "latest.pt")["step"] == 3


def test_c(fresh, built, tmp_path, mode):
    compiler = shutil.which("cc")
    if mode == "user" or not compiler:
        pytest.skip("needs a compiler, and what root has built")
    m = fresh(dram="256M")
    for example in examples("c"):
        (tmp_path / "a.c").write_text(here(example, m.path))
        subprocess.run([compiler, "-Wall", "-Werror", tmp_path / "a.c",
                        f"-I{SOURCE / 'providers'}", f"-L{built}",
                        f"-Wl,-rpath,{built}", "-lckpt", "-o",
                        tmp_path / "a"], check=True)
        subprocess.run([tmp_path / "a"], check=True, timeout=60)
    assert (m.path / "weights.bin").stat().st_size == 4 << 20


def test_tensors(fresh, built, mode):
    """What is listed, and read by name, of what the first example saved."""
    if mode == "user":
        pytest.skip("Python's packages are root's")
    m = fresh(dram="256M")
    subprocess.run([sys.executable, "-c",
                    here(examples("python")[0], m.path)], check=True)
    m.wait("nvme")
    listed = subprocess.run([built / "bin" / "ckptctl", "tensors",
                             m.path / "latest.pt"], check=True,
                            capture_output=True, text=True).stdout
    assert "model.weight" in listed
    tree = m.path / ".ckptfs" / "tensors" / "latest.pt"
    code = re.search(r"python -c '(import numpy;.*?)'", README, re.S)[1]
    code = code.replace(
        '"/ckpt/.ckptfs/tensors/step-100/model.safetensors/'
        'layer.0.weight.npy"', repr(str(tree / "model.weight.npy")))
    out = subprocess.run([sys.executable, "-c", code], check=True,
                         capture_output=True, text=True).stdout
    assert "[" in out

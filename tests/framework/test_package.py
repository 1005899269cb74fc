# SPDX-License-Identifier: Apache-2.0
"""The Python package as users install it: a wheel from providers/python, in a
place of its own, without this tree."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

from mounted import SANITIZED, missing

pytestmark = [pytest.mark.modes("served"), pytest.mark.limit(300)]

SOURCE = pathlib.Path(__file__).parents[2] / "providers" / "python"
USE = """
import sys, ckptfs, torch
assert ckptfs.__file__.startswith(sys.argv[1]), ckptfs.__file__
want = torch.arange(100_000)
ckptfs.save_async({"w": want}, sys.argv[2]).wait("nvme")
assert torch.equal(torch.load(sys.argv[2])["w"], want)
assert torch.equal(ckptfs.open(sys.argv[2])["w"], want)
array = ckptfs.open(sys.argv[2], framework="numpy")["w"]
assert (array == want.numpy()).all()
"""


def test_wheel(d, plain):
    if SANITIZED:
        pytest.skip("the wheel is built without sanitizers")
    if not importlib.util.find_spec("scikit_build_core"):
        missing("no scikit-build-core in this Python: run scripts/venv")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps",
                    "--no-build-isolation", "--disable-pip-version-check",
                    "-w", plain, SOURCE], check=True)
    wheel, = plain.glob("*.whl")
    assert "-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as z:
        have = z.namelist()
        z.extractall(plain / "site")
    assert "ckptfs/py.typed" in have and "ckptfs/dcp.py" in have
    environment = dict(os.environ, PYTHONPATH=str(plain / "site"))
    subprocess.run([sys.executable, "-c", USE, plain / "site", d / "a.pt"],
                   env=environment, check=True)


def test_without_torch(d, plain):
    """Reading needs NumPy only; saving says what it needs."""
    if SANITIZED:
        pytest.skip("the package is not built with sanitizers")
    import torch
    torch.save({"w": torch.ones(1000)}, d / "a.pt")
    code = """
import sys
sys.modules["torch"] = None
import ckptfs
c = ckptfs.open(sys.argv[1], framework="numpy")
assert c["w"].sum() == 1000
try:
    ckptfs.save_async({}, sys.argv[2])
except ImportError as e:
    assert "torch" in str(e), e
else:
    raise SystemExit("saved without torch")
"""
    subprocess.run([sys.executable, "-c", code, d / "a.pt", plain / "b.pt"],
                   check=True)
    assert not list(plain.iterdir())

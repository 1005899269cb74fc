# SPDX-License-Identifier: Apache-2.0
"""scripts/quickstart leaves alone what the user has at a place that he names."""
import os
import pathlib
import subprocess

import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"
root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs")

# Mounts a tmpfs on $1, for this process and its children only.
QUICKSTART_ON_A_MOUNT = """
mount -t tmpfs precious "$1"
[ -z "$2" ] || touch "$1/$2"
scripts/quickstart --mount "$1"
code=$?
grep " $1 " /proc/self/mountinfo
exit $code
"""


def run(*command, **environment):
    return subprocess.run([str(c) for c in command], timeout=60,
                          cwd=SCRIPTS.parent, capture_output=True, text=True,
                          env=dict(os.environ, **environment))


@root
@pytest.mark.parametrize("content", ("model", ""))
def test_quickstart_leaves_a_mount_alone(tmp_path, content):
    # No python, no build: it ends early also where it goes on.
    p = run("unshare", "-m", "sh", "-c", QUICKSTART_ON_A_MOUNT, "sh", tmp_path,
            content, CKPT_PYTHON="false", CKPTFS_PYTHON="false")
    assert p.returncode == 1
    assert "--mount" in p.stderr
    assert "precious" in p.stdout


def test_quickstart_leaves_a_directory_alone(tmp_path):
    (tmp_path / "model").touch()
    p = run(SCRIPTS / "quickstart", "--mount", tmp_path)
    assert p.returncode == 1
    assert "--mount" in p.stderr
    assert os.listdir(tmp_path) == ["model"]

# SPDX-License-Identifier: Apache-2.0
"""scripts/quickstart, scripts/venv and scripts/install-deps leave alone what
the user has at a place that he names."""
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


def stubs(folder, text, *names):
    """Programs that do what text says; $0 tells it which one it is."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def test_venv_leaves_a_folder_alone(tmp_path):
    """A Python that cannot make an environment: nothing is fetched."""
    python = stubs(tmp_path / "stubs", '[ "$1" = -c ] && echo 3.99',
                   "python3") / "python3"
    own = tmp_path / "own"
    (own / "bin").mkdir(parents=True)
    p = run(SCRIPTS / "venv", CKPTFS_VENV=str(own), CKPTFS_PYTHON=str(python))
    assert p.returncode == 1
    assert os.listdir(own) == ["bin"]
    assert "CKPTFS_VENV" in p.stderr


def test_venv_replaces_its_own(tmp_path):
    """Of another Python, or half made."""
    python = stubs(tmp_path / "stubs", """
[ "$1" = -c ] && { echo 3.99; exit; }
[ ! -e "$3/bin" ] || exit 1
mkdir -p "$3/bin"
[ -n "$HALF" ] && exit 1
printf '#!/bin/sh\\n' >"$3/bin/python"
chmod 755 "$3/bin/python"
""", "python3") / "python3"
    venv = tmp_path / "venv"
    for half, code in (("1", 1), ("", 0), ("", 0)):
        p = run(SCRIPTS / "venv", CKPTFS_VENV=str(venv), HALF=half,
                CKPTFS_PYTHON=str(python))
        assert p.returncode == code, p.stderr
    assert p.stdout == f"{venv}/bin/python\n"


# All of apt and of the build that install-deps uses, for a machine with an old
# libfuse; the new one is an empty file.
INSTALL_DEPS_STUB = """
case ${0##*/}:$* in
id:*) echo 0 ;;
dpkg-query:*) shift 3; for p; do echo "ii  $p"; done ;;
pkg-config:*--atleast*) exit 1 ;;
pkg-config:*) [ -z "${PKG_CONFIG_LIBDIR:-}" ] && echo 3.14.0 ||
	cat "$PKG_CONFIG_LIBDIR/version" ;;
dpkg:*) [ "$3" = ge ] && [ "$2" != 3.14.0 ] ;;
apt-get:indextargets*)
	. /etc/os-release
	echo "http://mirror.invalid|$VERSION_CODENAME|main" ;;
apt-get:*" source "*) mkdir fuse3 ;;
apt-cache:*) echo "Version: 3.17.2-1" ;;
meson:*) mkdir -p "$2/example"; : >"$2/example/passthrough_hp" ;;
ninja:*install)
	mkdir -p "$DESTDIR$CKPTFS_PREFIX/lib/pkgconfig"
	echo 3.17.2 >"$DESTDIR$CKPTFS_PREFIX/lib/pkgconfig/version"
	command -v fusermount3 >"$DESTDIR$CKPTFS_PREFIX/lib/libfuse3.so.3.17.2" ;;
esac
"""


@pytest.fixture
def install_deps(tmp_path):
    folder = stubs(tmp_path / "stubs", INSTALL_DEPS_STUB, "id", "dpkg-query",
                   "pkg-config", "dpkg", "apt-get", "apt-cache", "meson",
                   "ninja", "fusermount3")

    def install(prefix):
        return run(SCRIPTS / "install-deps", CKPTFS_PREFIX=str(prefix),
                   PATH=f"{folder}:{os.environ['PATH']}")

    return install


def test_install_deps_leaves_a_prefix_alone(install_deps, tmp_path):
    prefix = tmp_path / "local"
    (prefix / "bin").mkdir(parents=True)
    p = install_deps(prefix)
    assert p.returncode == 1, p.stdout
    assert os.listdir(prefix) == ["bin"]
    assert "CKPTFS_PREFIX" in p.stderr


def test_install_deps_replaces_its_own(install_deps, tmp_path):
    prefix = tmp_path / "own"
    for _ in range(2):
        p = install_deps(prefix)
        assert p.returncode == 0, p.stderr
        assert f"3.17.2, in {prefix}" in p.stdout
        # Not all there any more: it is built again.
        (prefix / "libexec" / "passthrough_hp").unlink()
    assert (prefix / "lib" / "pkgconfig" / "version").exists()

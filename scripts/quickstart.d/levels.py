# SPDX-License-Identifier: Apache-2.0
"""levels.py MOUNT

Watches every directory step-N of the mount and prints each level that it
reaches, with the seconds since all of it was in DRAM. Runs until it is killed
or the mount is gone.
"""
import os
import sys
import time

POLL_S = 0.02


def level_of(path):
    try:
        return os.getxattr(path, "user.ckpt.state").decode()
    except FileNotFoundError:
        return None


def finished(root):
    """What `latest` names is complete; so is what it named before."""
    try:
        with open(os.path.join(root, "latest"), encoding="ascii") as f:
            return f.read()
    except FileNotFoundError:
        return None


def watch(root):
    seen, since = {}, {}
    while True:
        for name in filter(None, {finished(root), *seen}):
            level = level_of(os.path.join(root, name))
            if level in (None, "writing", seen.get(name)):
                continue
            now = time.monotonic()
            since.setdefault(name, now)
            print(f"      {name}: {level:6} after {now - since[name]:.2f} s",
                  flush=True)
            seen[name] = level
        time.sleep(POLL_S)


if __name__ == "__main__":
    try:
        watch(sys.argv[1])
    except OSError:
        pass  # the mount is gone

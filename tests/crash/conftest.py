# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

here = pathlib.Path(__file__).parent
sys.path[:0] = [str(here), str(here.parent / "lib")]
from plugin import *  # noqa: E402,F401,F403

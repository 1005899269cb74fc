# SPDX-License-Identifier: Apache-2.0
"""A request that takes long holds up no other one.

One thread answers as long as it is quick (fs/reader.c); here it is made slow
by an open for writing that has to wait for a flush.
"""
import os
import threading
import time
import unittest

from mounted import Mounted, modes

LEN = 8 << 20
SLOW = 1.5  # seconds that NVMe takes for each write


class SlowRequest(unittest.TestCase):
    def test_open_that_waits_for_a_flush(self):
        for mode in modes():
            if mode not in ("passthrough", "served"):
                continue
            with self.subTest(mode=mode), \
                    Mounted(mode, faulty=f"write:delay={int(SLOW * 1000)}ms") \
                    as m:
                self._open_while_others_ask(m)

    def _open_while_others_ask(self, m):
        (m.path / "other").write_bytes(b"x")
        big = m.path / "big"
        big.write_bytes(bytes(LEN))
        took = []

        def reopen():
            began = time.monotonic()
            os.close(os.open(big, os.O_RDWR))
            took.append(time.monotonic() - began)

        # Somebody reads it: it is written in place, once it is on NVMe.
        reader = os.open(big, os.O_RDONLY)
        opener = threading.Thread(target=reopen)
        opener.start()
        longest = n = 0
        while opener.is_alive():
            began = time.monotonic()
            self._ask(m, n)
            longest = max(longest, time.monotonic() - began)
            n += 1
        opener.join()
        os.close(reader)
        self.assertGreater(took[0], SLOW / 2, "the open did not wait")
        self.assertGreater(n, 10)
        self.assertLess(longest, SLOW / 2)

    def _ask(self, m, n):
        name = m.path / f"new-{n}"
        name.write_bytes(b"y")
        os.stat(m.path / "other")
        os.listdir(m.path)
        name.unlink()


if __name__ == "__main__":
    unittest.main()

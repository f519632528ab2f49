#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The site of the documents in Debian's chromium: dark mode, widths of windows, and what a search finds first.

Method: the site is built and served; a browser does what a reader does (cases.mjs). `make test-web` runs it.
"""

import functools
import http.server
import os
import pathlib
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_test import CHROMIUM, Browsing  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import make_site  # noqa: E402


class Quiet(http.server.SimpleHTTPRequestHandler):

    def log_message(self, *_):
        pass


@unittest.skipUnless(os.path.exists(CHROMIUM), "Debian's chromium is not installed")
class SiteTest(Browsing, unittest.TestCase):

    def test_site(self):
        self.programs = []
        with tempfile.TemporaryDirectory() as folder:
            site = pathlib.Path(folder) / "site"
            self.assertEqual(make_site.build(make_site.ROOT, site), 0)
            serve = functools.partial(Quiet, directory=site)
            with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
                threading.Thread(target=server.serve_forever, daemon=True).start()
                self.browse("site", f"http://127.0.0.1:{server.server_port}/index.html")
                server.shutdown()


if __name__ == "__main__":
    unittest.main(verbosity=2)

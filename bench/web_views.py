#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what open pages of `gpumux web` cost: processor time of view and daemon, and waits of programs.

    bench/web_views.py [--build DIR] [--views 20] [--seconds 30] [--rounds 3]

Two programs on a simulated GPU take turns of 5 ms, so the trace has some 1,000 events a second. In each round the same
time is measured without `gpumux web`, with no open page and with all of them. A page is a WebSocket that reads
everything. Waits are the median and the 99th percentile, of the program that has the larger one; submissions are of
both programs. Processor time is the kernel's (/proc/PID/stat), in percent of one core.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=None, help="a build folder; build/dev by default")
    parser.add_argument("--views", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    options = arguments()
    if options.build:
        os.environ["GPUMUX_BUILD"] = options.build
    from framework.case import GpumuxTest
    from framework.web import Browser, wait_for_link

    class Measurement(GpumuxTest):

        def measure(self, web, views):
            """{column: figure}."""
            began = time.monotonic()
            workers = [self.start("worker", name=name, steps=10_000_000, step_us=500, sync_every=4,
                                  variables={"GPUMUX_NAME": name}) for name in ("one", "two")]
            for worker in workers:
                self.daemon.trace.wait_for(event="revoke", pid=worker.pid)
            stop = threading.Event()

            def read(view):
                while not stop.is_set() and view.text() is not None:
                    pass

            readers = [threading.Thread(target=read, args=(view,), daemon=True) for view in views]
            for reader in readers:
                reader.start()
            processes = {"daemon": self.daemon.pid, **({"web": web.pid} if web else {})}
            before = {name: processor_seconds(pid) for name, pid in processes.items()}
            events = self.events()
            started = time.monotonic()
            time.sleep(options.seconds)
            passed = time.monotonic() - started
            used = {name: 100 * (processor_seconds(pid) - before[name]) / passed for name, pid in processes.items()}
            used["events"] = (self.events() - events) / passed
            seats = self.daemon.api.seats()
            used["submissions"] = sum(seat["submissions"] for seat in seats) / (time.monotonic() - began)
            for wait in ("wait_p50_ns", "wait_p99_ns"):
                used[wait] = max(seat[wait] for seat in seats) / 1e6
            for worker in workers:
                worker.end()
            stop.set()
            for view in views:
                view.socket.shutdown(socket.SHUT_RDWR)
            for reader in readers:
                reader.join()
            for view in views:
                view.close()
            return used

        def events(self):
            return json.loads(self.daemon.api.lines("/v1/trace?limit=1").splitlines()[-1])["sequence"]

        def test(self):
            self.daemon = self.start_daemon(quantum="5ms")
            found = {"no web view": [], "no page": [], f"{options.views} pages": []}
            for _ in range(options.rounds):
                found["no web view"].append(self.measure(None, []))
                web = self.gpumux("web")
                port, token = wait_for_link(web)
                browser = Browser(port)
                browser.log_in(token)
                found["no page"].append(self.measure(web, []))
                found[f"{options.views} pages"].append(
                    self.measure(web, [browser.view() for _ in range(options.views)]))
                web.end()
            print("| | web view, % of a core | daemon, % of a core | events a second | submissions a second "
                  "| median wait, ms | p99 of waits, ms |")
            print("|---|---|---|---|---|---|---|")
            for name, rounds in found.items():
                cells = []
                for key in ("web", "daemon", "events", "submissions", "wait_p50_ns", "wait_p99_ns"):
                    values = [one[key] for one in rounds if key in one]
                    cells.append(f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
                                 if values else "-")
                print(f"| {name} | " + " | ".join(cells) + " |")

    result = unittest.TextTestRunner(verbosity=0).run(Measurement("test"))
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())

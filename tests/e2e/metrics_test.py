#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page that a scraper is served, and what becomes of it in a real Prometheus.

Method: programs and jobs on simulated GPUs; the page is read by promtool, by a Prometheus server over TCP and by hand.
Every query of the dashboard and every alert is asked of that server. Held times are compared with the trace.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import unittest
import urllib.error

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.jobs import JobsTest  # noqa: E402
from framework.metrics import PACKAGING, TOKEN, Prometheus, fetch, promtool, samples, token_file  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

class Scraping:
    """Where the metrics of a test's daemon are."""

    def address(self, daemon):
        """Of its door over TCP, as the log says."""
        pattern = re.compile(r"metrics .*address=([\d.]+:\d+)")
        return wait_until(lambda: next((m[1] for line in daemon.process.errors if (m := pattern.search(line))), None),
                          HANG, "the daemon says where its metrics are")

    def page(self, daemon):
        """As an administrator reads it."""
        connection = daemon.api.connect()
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        self.assertEqual(answer.status, 200, text)
        return text


@unittest.skipUnless(shutil.which("promtool") and shutil.which("prometheus"), "Debian's prometheus is not installed")
class PrometheusTest(Scraping, JobsTest):
    """One Prometheus that scrapes one daemon with programs and jobs of all kinds."""

    def setUp(self):
        super().setUp()
        self.restart_with(metrics_address="127.0.0.1:0", metrics_token_file=token_file(self), quantum="5ms")
        self.prometheus = Prometheus(self, self.address(self.daemon))

    def run_programs(self):
        """Two that alternate, until self.enough is there; a job that is done, one that runs, one that waits."""
        programs = [self.start("worker", name=name, gpu=0, steps=100, step_us=500, until=self.enough)
                    for name in ("one", "two")]
        self.wait_done(self.submit("true"), "ok")
        running = self.submit(*self.worker(gpu=0, steps=100, step_us=500, until=self.enough), gpus=1)
        self.wait_state(running, "running")
        held = self.hold_gpus(gpus=1)
        self.wait_state(held, "running")
        self.submit("true", exclusive=True, gpus=2)
        return programs, running, held

    def test_every_panel_and_every_alert_has_data(self):
        self.run_programs()
        self.prometheus.start()
        query = self.prometheus.query
        wait_until(lambda: query("gpumux_program_held_seconds_total"), HANG, "Prometheus has scraped")
        dashboard = json.loads((PACKAGING / "grafana/gpumux.json").read_text())
        variables = {"$__rate_interval": "20s", "$instance": ".*", "$gpu": ".*"}
        panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        self.assertGreater(len(panels), 20)
        # The expression that each alert compares with its bound.
        rules = Prometheus.rules.read_text()
        alerts = re.findall(r"^ +expr: (.+?) (?:==|>) [\d.]+$", rules, re.MULTILINE)
        self.assertEqual(len(alerts), rules.count("- alert:"))
        for expression in panels + alerts:
            for name, value in variables.items():
                expression = expression.replace(name, value)
            wait_until(lambda expression=expression: query(expression), HANG, f"{expression} has data")
        pathlib.Path(self.enough).touch()

    def test_a_page_passes_promtool(self):
        self.run_programs()
        wait_until(lambda: "gpumux_program_held_seconds_total{" in self.page(self.daemon), HANG, "programs are there")
        self.assertEqual(promtool("metrics", self.page(self.daemon)), (0, ""))
        for what, file in (("rules", Prometheus.rules), ("config", self.prometheus.configuration)):
            check = subprocess.run(["promtool", "check", what, file], capture_output=True, text=True, check=False)
            self.assertEqual(check.returncode, 0, check.stdout + check.stderr)
        check = subprocess.run(["promtool", "test", "rules", PACKAGING / "prometheus/alerts.test.yml"],
                               capture_output=True, text=True, check=False)
        self.assertEqual(check.returncode, 0, check.stdout + check.stderr)
        pathlib.Path(self.enough).touch()

    def test_the_document_lists_what_there_is(self):
        self.run_programs()
        wait_until(lambda: "gpumux_program_held_seconds_total{" in self.page(self.daemon), HANG, "programs are there")
        there = set(re.findall(r"^# TYPE (\S+) ", self.page(self.daemon), re.MULTILINE))
        tables = [line for line in (paths.ROOT / "docs/metrics.md").read_text().split("\n") if line.startswith("| `")]
        listed = {name for line in tables for name in re.findall(r"`(gpumux_\w+)`", line.split("|")[1])}
        self.assertEqual(there ^ listed, set())
        pathlib.Path(self.enough).touch()

    def test_jobs_are_named_and_counted(self):
        _, running, held = self.run_programs()
        page = wait_until(lambda: (text := self.page(self.daemon)) and f'job="{running}"' in text and text, HANG,
                          "the job's program has a seat")
        held_by_jobs = {dict(labels)["job"]: value for labels, value in
                        samples(page, "gpumux_program_held_seconds_total").items() if "job" in dict(labels)}
        self.assertEqual(list(held_by_jobs), [str(running)])
        jobs = {dict(labels)["state"]: value for labels, value in samples(page, "gpumux_jobs").items()}
        self.assertEqual((jobs["running"], jobs["queued"]), (2, 1))
        self.assertEqual(samples(page, "gpumux_jobs_ended_total"), {(("outcome", "ok"),): 1})
        self.assertEqual(samples(page, "gpumux_job_wait_seconds_count"), {(): 3})
        self.release(held)
        pathlib.Path(self.enough).touch()


class Page(Scraping, GpumuxTest):

    def test_held_time_is_the_traces(self):
        daemon = self.start_daemon(quantum="5ms", overlap="false")
        programs = [self.start("worker", name=name, steps=200, step_us=500, sync_every=4) for name in ("one", "two")]
        for program in programs:
            program.expect_success()
        killed = self.start("worker", name="killed", steps=100_000, step_us=500, sync_every=4)
        daemon.trace.wait_for(event="grant", pid=killed.pid)
        killed.end()
        for program in (*programs, killed):
            daemon.trace.wait_for(event="gone", pid=program.pid)
        page = self.page(daemon)
        held = sum(samples(page, "gpumux_program_held_seconds_total").values())
        traced = sum(lease.held() for lease in daemon.trace.leases(0)) / 1e9
        self.assertAlmostEqual(held, traced, delta=traced / 1000)
        grants = sum(samples(page, "gpumux_program_grants_total").values())
        self.assertEqual(grants, len(daemon.trace.events(event="grant")))
        self.assertEqual(sum(samples(page, "gpumux_gpu_grants_total").values()), grants)
        self.assertEqual(sum(samples(page, "gpumux_gpu_revocations_total").values()),
                         len(daemon.trace.events(event="revoke")))
        self.assertEqual(sum(samples(page, "gpumux_gpu_wait_seconds_count").values()), grants)
        self.assertEqual(sum(samples(page, "gpumux_tenants_gone_total").values()), 3)

    def test_refused_allocations_are_counted_by_reason(self):
        daemon = self.start_daemon()
        beyond = self.start("large", blocks=8, block_kib=8192, rounds=1, variables={"GPUMUX_MEM_LIMIT": "40M"})
        self.assertEqual(beyond.wait(timeout=HANG), 3, beyond.tail(10))
        daemon.trace.wait_for(event="gone", pid=beyond.pid)
        refused = samples(self.page(daemon), "gpumux_allocations_refused_total")
        traced = daemon.trace.events(event="refused", detail="quota", pid=beyond.pid)
        self.assertGreaterEqual(len(traced), 1)
        self.assertEqual({(dict(labels)["gpu"], dict(labels)["reason"]): count for labels, count in refused.items()},
                         {("0", "quota"): len(traced)})

    def test_without_a_token_nobody_is_named(self):
        daemon = self.start_daemon(metrics_address="127.0.0.1:0")
        program = self.start("worker", steps=100, step_us=500, until=self.enough)
        daemon.trace.wait_for(event="grant", pid=program.pid)
        page = fetch(f"http://{self.address(daemon)}/metrics")
        self.assertIn('gpumux_gpu_seats{gpu="0"', page)
        self.assertNotIn("worker", page)
        self.assertNotIn("user=", page)
        self.assertIn('program="worker"', self.page(daemon))
        page = fetch(f"http://{self.address(daemon)}/metrics", accept="application/openmetrics-text")
        self.assertTrue(page.endswith("# EOF\n"))
        self.work_until(lambda: True, "nothing more", program)

    def test_with_a_token_nobody_else_reads(self):
        daemon = self.start_daemon(metrics_address="127.0.0.1:0", metrics_token_file=token_file(self))
        url = f"http://{self.address(daemon)}/metrics"
        self.assertIn("gpumux_tenants 0\n", fetch(url, TOKEN))
        for wrong in (None, "", "s3cre", TOKEN + "x"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                fetch(url, wrong)
            self.assertEqual(refused.exception.code, 401)
        # A new token counts from the next SIGHUP on.
        pathlib.Path(self.directory, "token").write_text("another\n")
        daemon.process.send(1)

        def counts():
            try:
                return fetch(f"http://{self.address_now(daemon)}/metrics", "another")
            except (urllib.error.URLError, ConnectionError):
                return None
        wait_until(counts, HANG, "the new token counts")

    def address_now(self, daemon):
        return re.findall(r"metrics .*address=([\d.]+:\d+)", "\n".join(daemon.process.errors))[-1]

    @unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
    def test_over_tls(self):
        key, certificate = (os.path.join(self.directory, name) for name in ("key.pem", "certificate.pem"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=gpumux", "-addext",
                        "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        daemon = self.start_daemon(metrics_address="127.0.0.1:0", metrics_token_file=token_file(self),
                                   metrics_certificate_file=certificate, metrics_key_file=key)
        address = self.address(daemon)
        context = ssl.create_default_context(cafile=certificate)
        self.assertIn("gpumux_tenants 0\n", fetch(f"https://{address}/metrics", TOKEN, context=context))
        with self.assertRaises((urllib.error.URLError, ConnectionError)):
            fetch(f"http://{address}/metrics", TOKEN)

    def test_a_taken_address_keeps_nobody_from_gpus(self):
        self.expect_error("metrics are not served over TCP")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            self.start_daemon(metrics_address=f"127.0.0.1:{taken.getsockname()[1]}")
            self.start("worker", steps=10, step_us=500).expect_success()

    def test_a_wrong_address_is_refused(self):
        process = self.start_process([paths.DAEMON, "--private", "--runtime-dir", self.runtime_dir], name="gpumuxd",
                                     environment=self.environment(preload=False, GPUMUX_METRICS_ADDRESS="localhost"))
        self.assertEqual(process.wait(), 3)
        self.expect_error("is no address of metrics")
        self.assertIn("'localhost' is no address of metrics", process.tail(5))

    def expect_refusal(self, task, why, config):
        process = self.start_process([paths.DAEMON, "--private", task, "--config", config, "--runtime-dir",
                                      self.runtime_dir], environment=self.environment(preload=False), name="gpumuxd")
        self.assertEqual(process.wait(), 3, process.tail())
        self.assertIn(why, " ".join(line.strip() for line in process.errors))

    def test_a_token_that_cannot_be_read_is_refused(self):
        config = pathlib.Path(self.directory, "gpumux.toml")
        config.write_text('metrics_address = "127.0.0.1:0"\nmetrics_token_file = "/nowhere"\n')
        self.expect_error("cannot open /nowhere")
        self.expect_refusal("--state-dir=none", "cannot open /nowhere", config)

    def test_wrong_settings_are_found_before_a_start_and_change_nothing_in_a_reload(self):
        config = pathlib.Path(self.directory, "gpumux.toml")
        config.write_text('metrics_address = "127.0.0.1:0"\n')
        daemon = self.start_daemon(arguments=["--config", str(config)])
        address = self.address(daemon)
        self.expect_error("the configuration was not reloaded")
        self.expect_error("is no address of metrics")
        for number, (line, why) in enumerate((
                ('metrics_address = "localhost:9840"', "'localhost:9840' is no address of metrics"),
                ('metrics_address = "127.0.0.1:0"\nmetrics_token_file = "/nowhere"', "cannot open /nowhere"))):
            config.write_text(f'{line}\n[defaults]\nquantum = "7ms"\n')
            self.expect_refusal("--check-config", why, config)
            daemon.process.send(1)
            wait_until(lambda n=number: sum("was not reloaded" in line for line in daemon.process.errors) > n, HANG,
                       "the daemon refuses them")
            self.assertEqual(daemon.api.gpu(0)["settings"]["quantum"], "auto")
            self.assertIn("gpumux_tenants 0\n", fetch(f"http://{address}/metrics"))


if __name__ == "__main__":
    main()

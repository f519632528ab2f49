# SPDX-License-Identifier: Apache-2.0
"""The page for scrapers, read by hand and by a real Prometheus."""

import json
import os
import pathlib
import re
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from . import paths

PACKAGING = paths.ROOT / "packaging"
TOKEN = "s3cret"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(url, token=None, accept=None, context=None):
    headers = {}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if accept is not None:
        headers["Accept"] = accept
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20, context=context) as answer:
        return answer.read().decode()


def samples(page, name):
    """{labels: value} of one metric."""
    found = {}
    for line in page.splitlines():
        match = re.fullmatch(name + r"(?:\{(.*)\})? (\S+)", line)
        if match:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[1] or ""))
            found[tuple(sorted(labels.items()))] = float(match[2])
    return found


def token_file(case):
    path = os.path.join(case.directory, "token")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
        file.write(TOKEN + "\n")
    return path


def promtool(what, text):
    """promtool's exit status and complaints about a page."""
    check = subprocess.run(["promtool", "check", what], input=text, capture_output=True, text=True, check=False)
    return check.returncode, check.stdout + check.stderr


class Prometheus:
    """Debian's prometheus, which scrapes one address by the example for operators."""

    rules = PACKAGING / "prometheus/alerts.yml"

    def __init__(self, case, address):
        self.case = case
        self.configuration = pathlib.Path(case.directory, "prometheus.yml")
        text = (PACKAGING / "prometheus/scrape.yml").read_text()
        text = text.replace("gpu-node-1:9840", address)
        text = text.replace("/etc/prometheus/gpumux.token", token_file(case))
        text = f"global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\nrule_files: [{self.rules}]\n{text}"
        self.configuration.write_text(text)
        self.url = None

    def start(self):
        port = free_port()
        self.case.start_process(["prometheus", "--config.file", self.configuration, "--storage.tsdb.path",
                                 os.path.join(self.case.directory, "tsdb"), "--web.listen-address",
                                 f"127.0.0.1:{port}", "--log.level=warn"], name="prometheus",
                                environment={"PATH": os.environ["PATH"], "HOME": self.case.directory})
        self.url = f"http://127.0.0.1:{port}"

    def query(self, expression):
        url = f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            return json.loads(fetch(url))["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return []  # it starts
            self.case.fail(f"{expression}: {error.read().decode()}")
        except (urllib.error.URLError, ConnectionError):
            return []  # it has not opened its port yet

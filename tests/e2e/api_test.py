#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The API's description is true: every address that it names answers, with what it says and nothing else.

Method: a daemon with two GPUs, a program and jobs in several states. Each operation of GET /v1/openapi.json is asked,
with each of its parameters. Answers are held against the schemas, in which a field that is not listed is an error
here. An operation that this test does not know fails it.
"""

import json
import pathlib
import pwd
import os
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework.case import main  # noqa: E402
from framework.jobs import JobsTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

try:
    import jsonschema
except ImportError:
    jsonschema = None


def strict(schema):
    """The same schema, with the words and fields of today alone."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict(value) for key, value in schema.items() if key != "x-extensible-enum"}
    if "x-extensible-enum" in schema:
        out["enum"] = schema["x-extensible-enum"]
    if isinstance(schema.get("properties"), dict):
        out["additionalProperties"] = False
    return out


class ApiDescription(JobsTest):
    gpus = 2

    def setUp(self):
        super().setUp()
        self.description = self.daemon.api.ask("GET", "/v1/openapi.json")
        self.schemas = strict(self.description["components"]["schemas"])
        # An open object is described as such.
        self.schemas["Nothing"]["additionalProperties"] = False
        self.schemas["OpenApi"] = {"type": "object"}

    def check(self, name, value):
        schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": self.schemas}}
        jsonschema.Draft202012Validator(schema).validate(value)

    def request(self, method, target, body=None):
        connection = self.daemon.api.connect()
        try:
            connection.request(method, target, body=json.dumps(body) if body is not None else None)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def fill(self):
        """Programs and jobs, so that the answers have something to show. Gives what the variables of addresses are."""
        self.start("worker", name="holder", steps=1_000_000, step_us=500, say_every=1).wait_for_line("step")
        done = self.submit("true")
        self.wait_done(done, "ok")
        held = self.submit("true", hold=True, array="0-1")
        seat = self.daemon.api.seats(0)[0]
        return {"gpu": "1", "tenant": str(seat["tenant"]), "job": str(done), "held": held,
                "user": pwd.getpwuid(os.getuid()).pw_name}

    def operations(self):
        for path, methods in self.description["paths"].items():
            for method, operation in methods.items():
                yield method.upper(), path, operation

    def bodies(self, values):
        """For each change: (a body, what the variable is instead)."""
        submission = {"arguments": ["true"], "directory": "/", "environment": ["PATH=/usr/bin:/bin"], "token": "t"}
        return {
            "PATCH /v1/gpus/{gpu}": ({"quantum": "50ms", "overlap": True}, None),
            "PATCH /v1/tenants/{tenant}": ({"priority": -1, "share": "0.5", "max_share": "default"}, None),
            "PATCH /v1/jobs/{job}": ({"held": False}, f"{values['held']},99999"),
            "PATCH /v1/queue": ({"paused": False}, None),
            "PATCH /v1/queue/gpus/{gpu}": ({"drained": False}, None),
            "PATCH /v1/queue/users/{user}": ({"running": 100, "queued": None}, None),
            "POST /v1/jobs": (submission, None),
            "POST /v1/hold": (None, None),
        }

    def test_every_operation(self):
        if jsonschema is None:
            self.skipTest("python3-jsonschema is not installed: no answer is held against its schema")
        values = self.fill()
        bodies = self.bodies(values)
        asked = set()
        for method, path, operation in self.operations():
            asked.add(f"{method} {path}")
            body, variable = bodies.pop(f"{method} {path}", (None, None)) if method != "GET" else (None, None)
            target = path
            for name, value in values.items():
                target = target.replace("{" + name + "}", variable or str(value))
            for query in self.queries(operation):
                with self.subTest(method=method, target=target + query):
                    self.check_answer(method, target + query, body, operation)
            self.check_refusals(method, target, operation)
        self.assertEqual(bodies, {}, "changes that the description does not have")
        self.assertGreater(len(asked), 20)

    def queries(self, operation):
        """One query for each parameter, and none."""
        found = [""]
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "query" and parameter["name"] not in (
                    "follow", "beyond_ended", "outcome", "ended_since_unix_ns"):
                words = [word for word in parameter["schema"].get("enum", ()) if word != "ended"]
                numbers = {"user": pwd.getpwuid(os.getuid()).pw_name, "until_unix_ns": 4_000_000_000_000_000_000}
                for value in words or [numbers.get(parameter["name"], 1)]:
                    found.append(f"?{parameter['name']}={value}")
        return found

    def check_answer(self, method, target, body, operation):
        status, headers, text = self.request(method, target, body)
        self.assertIn(str(status), operation["responses"], text)
        if body is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            self.check(schema.rpartition("/")[2], body)
        for kind, content in operation["responses"][str(status)]["content"].items():
            if kind == "text/plain":
                self.assertIn(kind, headers["Content-Type"])
                continue
            self.assertEqual(headers["Content-Type"], kind)
            name = content["schema"]["$ref"].rpartition("/")[2]
            parts = text.splitlines() if kind == "application/x-ndjson" else [text]
            for part in parts:
                self.check(name, json.loads(part))

    def check_refusals(self, method, target, operation):
        """An unknown parameter, and a method that the address does not have."""
        status, _, text = self.request(method, target + "?colour=red")
        self.assertEqual(status, 400, text)
        self.check("Error", json.loads(text))
        status, headers, text = self.request("DELETE", target)
        self.assertEqual((status, json.loads(text)["error"]["code"]), (405, "unsupported"))
        self.assertIn(method, headers["Allow"].split(", "))
        self.check("Error", json.loads(text))
        if method == "GET" and not target.endswith("/wait"):
            status, headers, text = self.request("HEAD", target)
            self.assertEqual((status, text), (200, ""))
        self.assertTrue(operation["summary"])

    def test_the_root_lists_the_addresses(self):
        root = self.daemon.api.ask("GET", "/v1")
        listed = {(address["path"], method) for address in root["addresses"] for method in address["methods"]}
        self.assertEqual(listed, {(path, method) for method, path, _ in self.operations()})
        self.assertEqual(root["description"], "/v1/openapi.json")

    def test_a_status_may_be_shared(self):
        first = self.daemon.api.lines("/v1/status")
        self.daemon.api.set(quantum="123ms")
        self.assertEqual(self.daemon.api.lines("/v1/status?max_age_ns=60000000000"), first)
        second = self.daemon.api.lines("/v1/status?max_age_ns=0")
        self.assertEqual(json.loads(second)["gpus"][0]["quantum"], "123ms")
        self.assertEqual(self.daemon.api.lines("/v1/status?max_age_ns=60000000000"), second)
        for wrong in ("-1", "soon", "60000000001"):
            self.assertEqual(self.request("GET", f"/v1/status?max_age_ns={wrong}")[0], 400, wrong)

    def test_a_trace_that_ends_leaves_the_connection(self):
        connection = self.daemon.api.connect()
        connection.connect()
        socket = connection.sock
        for target in ("/v1/trace", "/v1/trace?limit=1", "/v1/trace?since=1000000", "/v1/status", "/v1/trace"):
            connection.request("GET", target)
            answer = connection.getresponse()
            lines = answer.read().decode().splitlines()
            self.assertEqual(answer.status, 200, target)
            self.assertFalse(answer.will_close, target)
            self.assertIs(connection.sock, socket, target)
            for line in lines if "trace" in target else []:
                json.loads(line)
        connection.request("GET", "/v1/trace", headers={"Connection": "close"})
        answer = connection.getresponse()
        answer.read()
        self.assertTrue(answer.will_close)
        connection.close()

    def test_a_trace_is_the_same_from_wherever_it_is_read(self):
        # Pieces of 128 events are made into text once and kept.
        worker = self.start("worker", name="worker", gpu=0, steps=100, step_us=500, until=self.enough, preload=True)
        while len(self.daemon.api.lines("/v1/trace").splitlines()) < 400:
            self.daemon.api.set("0", quantum="20ms")
            self.daemon.api.set("0", quantum="21ms")
        pathlib.Path(self.enough).touch()
        worker.expect_success()
        self.daemon.trace.wait_for(event="gone", pid=worker.pid)
        whole = self.daemon.api.lines("/v1/trace?since=1").splitlines()
        self.assertEqual([json.loads(line)["sequence"] for line in whole], list(range(1, len(whole) + 1)))
        for since in (1, 2, 127, 128, 129, 130, 256, 257, 300, 1):
            self.assertEqual(self.daemon.api.lines(f"/v1/trace?since={since}").splitlines(), whole[since - 1:], since)

    def test_lists_have_limits(self):
        self.fill()
        wait_until(lambda: self.daemon.api.ask("GET", "/v1/report?by=job")["rows"], HANG, "the ledger knows something")
        for target, name in (("/v1/jobs?state=all", "jobs"), ("/v1/tenants?", "tenants"), ("/v1/report?", "rows")):
            self.assertEqual(len(self.daemon.api.ask("GET", f"{target}&limit=1".replace("?&", "?"))[name]), 1, target)
        self.assertEqual(len(self.daemon.api.lines("/v1/trace?limit=3").splitlines()), 3)


if __name__ == "__main__":
    main()

"""``hami-plugin partitions``: the daemon's answer as a table, as a plan and as JSON."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner

from hami_plugin.cli.main import main


def one(state, **changes):
    fields = {"resource": "toy.io/card", "card": "GPU-0", "profile": "1g.5gb", "start": 6, "size": 1, "state": state}
    rest = {"owner": "", "uuid": "", "age": 0.0, "reason": "", "plan": ""}
    return {**fields, **rest, **changes}


DOCUMENT = {
    "node": "n1",
    "partitions": [
        one("assigned", owner="ns/a/main[0]", uuid="MIG-1", age=3725.0),
        one("draining", start=5, uuid="MIG-2", age=59.0, reason="in use", plan="destroy"),
        one("reserved", start=4, owner="ns/b/main[0]", plan="make"),
    ],
    "placeable": [{"resource": "toy.io/card", "card": "GPU-0", "profile": "1g.5gb", "left": 4}],
    "problems": {},
}


@contextmanager
def daemon(document, status=200):
    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/debug/partitions"
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ran(*arguments, document=DOCUMENT, status=200):
    with daemon(document, status) as url:
        return CliRunner().invoke(main, ["partitions", "--url", url, *arguments])


def test_each_partition_has_a_line_and_each_card_what_is_left():
    answer = ran()

    assert answer.exit_code == 0
    assert answer.output.splitlines() == [
        "n1: 3 partitions",
        "CARD   PROFILE  PLACE  STATE       AGE  OWNER         UUID",
        "GPU-0  1g.5gb   6+1    assigned  1h02m  ns/a/main[0]  MIG-1",
        "GPU-0  1g.5gb   5+1    draining    59s  -             MIG-2  in use",
        "GPU-0  1g.5gb   4+1    reserved      -  ns/b/main[0]  -",
        "",
        "CARD   PROFILE  PLACES LEFT",
        "GPU-0  1g.5gb             4",
    ]


def test_the_plan_is_what_will_be_made_and_destroyed():
    lines = ran("--plan").output.splitlines()

    assert [line.split() for line in lines[1:]] == [
        ["destroy", "GPU-0", "1g.5gb", "5+1", "-", "in", "use"],
        ["make", "GPU-0", "1g.5gb", "4+1", "ns/b/main[0]", "reserved"],
    ]
    assert ran("--plan", document={**DOCUMENT, "partitions": []}).output == "nothing to make or to destroy\n"


@pytest.mark.parametrize(("options", "count"), [((), 3), (("--plan",), 2)])
def test_json_is_the_daemons_answer(options, count):
    answer = json.loads(ran("--json", *options).output)

    assert (len(answer["partitions"]), answer["placeable"]) == (count, DOCUMENT["placeable"])


def test_a_driver_that_does_not_answer_is_told():
    answer = ran(document={**DOCUMENT, "problems": {"toy.io/card": "it does not answer"}})

    assert "toy.io/card: it does not answer" in answer.output
    assert answer.exit_code == 0


def test_a_daemon_that_is_none_is_an_error():
    assert "no list of partitions" in ran(document={"devices": []}).output
    assert "kubectl exec" in ran(status=403).output

"""Clusters of thousands of nodes, and leases that end with their holder."""
import concurrent.futures
import http.server
import json
import random
import signal
import subprocess
import sys
import threading
import unittest
import urllib.error
import urllib.request

from cluster import EndToEnd, FARPAGE, MIB, RANDOM_ACCESS, child_of, wait_until
from verifier import scaled

MAX_NODES = 4096
REAL_NODES = 80  # with one slab each: every slab of a program is on a node of its own
SLAB = 2 * MIB


class Agents(http.server.ThreadingHTTPServer):
    """Agents of nodes without memory. All of them grant, or none. Remembers what is lent."""

    def __init__(self, grants):
        super().__init__(("127.0.0.1", 0), AgentHandler)
        self.lock = threading.Lock()
        self.grants = grants
        self.granted = 0
        self.lent = set()
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self):
        self.shutdown()
        self.thread.join()
        self.server_close()


class AgentHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        agents = self.server
        with agents.lock:
            if self.path.endswith("/revoke"):
                agents.lent.discard(int(self.path.split("/")[3]))
                return self.answer(204)
            slabs = [entry["node_slab"] for entry in body["slabs"]]
            if agents.grants:
                agents.granted += len(slabs)
                agents.lent.update(slabs)
        one = {"address": 4096, "bytes": SLAB, "rkeys": {"tcp": f"{7:040x}"}, "generation": 1}
        refusal = {"code": "unavailable", "detail": "not now"}
        return self.answer(200, {"slabs": [one if agents.grants else refusal] * len(slabs)})

    def answer(self, status, body=None):
        text = json.dumps(body).encode() if body else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class ManyNodes(EndToEnd):
    def start_agents(self, grants):
        agents = Agents(grants)
        self.addCleanup(agents.stop)
        return agents

    def join(self, name, agent_url, slab_bytes):
        """A node that exists only in the coordinator's list."""
        body = {"id": name, "incarnation": 1, "agent_url": agent_url, "slab_bytes": slab_bytes,
                "capacity_bytes": 64 * slab_bytes, "version": "none",
                "transports": [{"kind": "tcp", "address": "127.0.0.1:1"}]}
        request = urllib.request.Request(self.url + "/v1/nodes", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status

    def cluster(self):
        return json.loads(self.get("/v1/cluster"))

    def expect_nothing_held(self):
        cluster = self.cluster()
        self.assertEqual(cluster["leases"]["held"], 0, cluster)
        self.assertEqual(cluster["regions"], 0, cluster)
        self.assertEqual(cluster["slabs"]["leased"], 0, cluster)
        wait_until(lambda: self.cluster()["pending_revocations"] == 0, "the nodes have all back")

    def start_full_cluster(self):
        """Real nodes, and as many others as a cluster can have, which lend no slab of our size."""
        self.start_coordinator("--node-ttl", "1h")
        for i in range(MAX_NODES - REAL_NODES):
            self.join(f"listed-{i}", "http://127.0.0.1:1", 2 * SLAB)
        for i in range(REAL_NODES):
            self.start_node(f"real-{i}", "--slab", "2M", lend="2M")

    def sort_far(self, source, place):
        return subprocess.run(
            [FARPAGE, "run", "--local", "2M", "--slab", "2M", "--coordinator", self.url, "--",
             "sort", "-S", "5M", "-o", place, source],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)

    def test_short_programs_and_a_wide_one_in_a_full_cluster(self):
        self.start_full_cluster()
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.join("one-too-many", "http://127.0.0.1:1", SLAB)
        self.assertEqual(refused.exception.code, 507)
        status = subprocess.run([FARPAGE, "status", "--coordinator", self.url], timeout=60,
                                capture_output=True, text=True, check=False)
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertIn("4096 of 4096 nodes alive", status.stdout)
        self.assertGreater(status.stdout.count("\n"), MAX_NODES)

        chance = random.Random(4)
        source = self.path("lines")
        with open(source, "w", encoding="ascii") as file:
            file.writelines(f"{chance.getrandbits(64):016x}\n" for _ in range(30_000))
        with open(source, encoding="ascii") as file:
            expected = sorted(file)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            ends = list(pool.map(lambda i: self.sort_far(source, self.path(f"sorted-{i}")),
                                 range(scaled(16, 40))))
        for i, end in enumerate(ends):
            self.assertEqual((end.returncode, end.stderr), (0, ""))
            with open(self.path(f"sorted-{i}"), encoding="ascii") as file:
                self.assertEqual(file.readlines(), expected)
        self.expect_nothing_held()

        wide = self.start_run([RANDOM_ACCESS, str(136 * MIB), "2", "3", "11"], local="24M",
                              options=["--slab", "2M", "--transport", "tcp"])
        wide.popen.stdout.readline()
        self.assertEqual(wide.popen.stdout.readline(), b"filled\n", wide.log())
        regions = json.loads(self.get("/v1/regions"))["regions"]
        lenders = {lease["node"] for lease in regions[0]["leases"]}
        self.assertGreater(len(lenders), 64)
        self.expect_right_end(wide)
        self.expect_real_paging("tcp")
        self.expect_nothing_held()

    def test_programs_that_are_ended_hold_no_lease(self):
        self.start_coordinator("--region-ttl", "3s")
        self.start_node("real")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            run = self.start_access(3600, "tcp", size=16 * MIB, local="4M")
            self.assertGreater(self.cluster()["slabs"]["leased"], 0)
            run.kill(number)
            self.assertEqual(run.finish()[0], 128 + number, run.log())
            self.expect_nothing_held()
        run = self.start_access(3600, "tcp", size=16 * MIB, local="4M")
        subprocess.run(["kill", "-KILL", str(child_of(run.pid))], check=True)
        self.assertEqual(run.finish()[0], 128 + signal.SIGKILL, run.log())
        self.expect_nothing_held()
        run = self.start_access(3600, "tcp", size=16 * MIB, local="4M")
        run.end()  # kills the pager: the region ends with its time to live
        wait_until(lambda: self.cluster()["regions"] == 0, "the region is over")
        self.expect_nothing_held()

    def test_a_program_that_fails_at_its_start_holds_no_lease(self):
        """Of two replicas one is granted and the other refused, repeatedly."""
        agents = self.start_agents(grants=True)
        self.start_coordinator("--node-ttl", "1h")
        self.join("grants", agents.url(), SLAB)
        self.join("refuses", self.start_agents(grants=False).url(), SLAB)
        status, _, log = self.run_far(["true"], local="2M",
                                      options=["--slab", "2M", "--replicas", "2"])
        self.assertEqual(status, 126, log)
        self.assertIn("borrowing memory", log)
        self.assertGreater(agents.granted, 0)
        self.expect_nothing_held()
        self.assertEqual(agents.lent, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv)

"""A cluster, one pager, and programs that it serves."""
import json
import os
import subprocess
import unittest

from cluster import EndToEnd, FARPAGE, RANDOM_ACCESS, Service


def command(*words):
    """Exit status, standard output, standard error."""
    done = subprocess.run([FARPAGE, *words], timeout=60, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    return done.returncode, done.stdout, done.stderr


@unittest.skipIf(os.geteuid() != 0, "control groups and other users need root")
class HostPagerTest(EndToEnd):
    def start_pager(self, local="96M", *more, lend="512M"):
        self.start_cluster(lend=lend)
        self.serve(local, *more)

    def serve(self, local, *more):
        """Starts a pager in the cluster."""
        self.socket = self.path("pager.sock")
        self.pager = self._owned(Service(["pager", "--socket", self.socket, "--local", local, "--coordinator", self.url,
                                          *more], self._log("pager")))
        self.url_of_cluster, self.url = self.url, None  # the runs do not know it

    def start_program(self, size, seconds, seed, local="16M", options=()):
        return self.start_run([RANDOM_ACCESS, str(size), "2", str(seconds), str(seed)], local=local,
                              options=["--pager", self.socket, *options])

    def await_filled(self, process):
        self.read_baseline(process)
        self.assertEqual(process.popen.stdout.readline(), b"filled\n", process.log())

    def status(self):
        status, output, problem = command("status", "--pager", self.socket, "--output", "json")
        self.assertEqual((status, problem), (0, ""))
        return json.loads(output)

    def regions(self):
        return json.loads(self.get("/v1/regions", self.url_of_cluster))["regions"]

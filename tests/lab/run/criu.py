"""In a lab VM: programs that the distribution's criu dumps, and restores from a page server.

The kernel of the VM is the distribution's, too: criu 3.17 does not start on all newer ones.
"""
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../e2e"))
from cluster import BUILD, Process, Service, wait_until  # noqa: E402
from snapshot_base import SnapshotTest  # noqa: E402

PROGRAM = os.path.join(BUILD, "tests", "checkpointed_memory")


class Criu(SnapshotTest):
    def setUp(self):
        super().setUp()
        self.find("criu")

    def criu(self, what, folder, *options):
        return subprocess.run(["criu", what, "-D", folder, "-v4", "-o", f"{what}.log", *options],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)

    def expect_done(self, done, folder, what):
        if done.returncode != 0:
            with open(f"{folder}/{what}.log", encoding="utf-8", errors="replace") as log:
                self.fail("".join(log.readlines()[-40:]) + done.stderr)

    def dump(self):
        """The folder of the checkpoint of a program that has filled its memory; the program is gone."""
        os.mkdir(self.path("files"))
        self.program = subprocess.Popen([PROGRAM, self.path("files")], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(self.kill_program)
        wait_until(lambda: os.path.exists(self.path("files/ready")), "the program has filled its memory")
        os.mkdir(self.path("dump"))
        self.expect_done(self.criu("dump", self.path("dump"), "-t", str(self.program.pid)), self.path("dump"), "dump")
        self.assertEqual(self.program.wait(60), -signal.SIGKILL)
        return self.path("dump")

    def kill_program(self):
        """As it was started, or restored: with the same pid, and one child."""
        try:
            os.killpg(self.program.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def push_dump(self):
        self.coordinator, self.nodes = self.start_cluster(transport="shm,tcp")
        folder = self.dump()
        size = sum(entry.stat().st_size for entry in os.scandir(folder))
        self.pushed = self.push(folder, "dump", "--without-pages", self.path("rest"))
        shutil.rmtree(folder)
        rest = sum(entry.stat().st_size for entry in os.scandir(self.path("rest")))
        print(f"checkpoint: {size >> 10} KiB, without its pages {rest >> 10} KiB", flush=True)
        self.assertLess(rest, size / 8)

    def start_server(self):
        return self._owned(Service(["page-server", "--image", "dump", "--port", "0", "--once", "--coordinator", self.url],
                                   self._log("page-server")))

    def start_lazy_pages(self, port):
        rest = self.path("rest")
        lazy = self._owned(Process(["criu", "lazy-pages", "--page-server", "--address", "127.0.0.1", "--port", str(port),
                                    "-D", rest, "-v4", "-o", "lazy.log"], self._log("lazy-pages")))
        wait_until(lambda: os.path.exists(f"{rest}/lazy-pages.socket"), "criu lazy-pages listens")
        return lazy

    def restore(self):
        begin = time.monotonic()
        self.expect_done(self.criu("restore", self.path("rest"), "--lazy-pages", "--restore-detached"), self.path("rest"),
                         "restore")
        print(f"restored after {time.monotonic() - begin:.2f} s", flush=True)

    def result(self):
        """What the program says of its memory."""
        with open(self.path("files/go"), "wb"):
            pass
        wait_until(lambda: os.path.exists(self.path("files/result")), "the program has checked its memory")
        with open(self.path("files/result"), encoding="utf-8") as file:
            text = file.read()
        print(text, end="", flush=True)
        words = text.split()
        return dict(zip(words[::2], map(int, words[1::2])))

    def test_program_is_restored_from_far_memory(self):
        self.push_dump()
        self.server = self.start_server()
        lazy = self.start_lazy_pages(self.server.ready["port"])
        self.restore()
        result = self.result()
        self.assertGreater(result["pages"], 9000)
        self.assertEqual((result["wrong"], result["child"]), (0, 0))
        self.assertEqual(lazy.finish()[0], 0, lazy.log())
        self.assertEqual(self.server.finish()[0], 0, self.server.log())
        self.assertIn("client_served", self.server.log())
        print(self.server.log(), flush=True)

    def test_rest_alone_is_not_restored(self):
        self.push_dump()
        done = self.criu("restore", self.path("rest"), "--restore-detached")
        self.assertNotEqual(done.returncode, 0, "without --lazy-pages it would have other bytes")
        self.assertFalse(os.path.exists(self.path("files/result")))


if __name__ == "__main__":
    unittest.main(verbosity=2)

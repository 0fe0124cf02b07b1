"""In a lab VM: programs that the distribution's criu dumps, and restores from a page server.

  criu.py OneMachine               all in one
  criu.py Dumped, criu.py Restored   dumped in A, which keeps the memory; restored in B

The kernel of the VM is the distribution's, too: criu 3.17 does not start on all newer ones.
"""
import json
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
FILES = "/tmp/checkpointed-memory"  # of the program; at the same place where it is restored
FIRST_PID = 20000  # of the program and its threads: free in both VMs
SECONDS = 200  # for all of the program's pages, while others use the CPUs of the host


class Criu(SnapshotTest):
    def setUp(self):
        super().setUp()
        self.find("criu")
        os.mkdir(FILES)
        self.addCleanup(shutil.rmtree, FILES)

    def criu(self, what, folder, *options):
        done = subprocess.run(["criu", what, "-D", folder, "-v4", "-o", f"{what}.log", *options],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode != 0:
            with open(f"{folder}/{what}.log", encoding="utf-8", errors="replace") as log:
                self.fail("".join(log.readlines()[-40:]) + done.stderr)

    def dump(self):
        """The folder of the checkpoint of a program that has filled its memory; the program is gone."""
        with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
            file.write(str(FIRST_PID))
        # Without randomness: see checkpointed_memory.c on stack pointers.
        program = subprocess.Popen(["setarch", "-R", PROGRAM, FILES], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(self.kill_group, program.pid)
        wait_until(lambda: os.path.exists(f"{FILES}/ready"), "the program has filled its memory")
        os.mkdir(self.path("dump"))
        self.criu("dump", self.path("dump"), "-t", str(program.pid))
        self.assertEqual(program.wait(60), -signal.SIGKILL)
        return self.path("dump")

    def kill_group(self, pid):
        """The program as it was started, or restored."""
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def push_dump(self):
        """What is left of the checkpoint is in self.rest."""
        folder = self.dump()
        size = sum(entry.stat().st_size for entry in os.scandir(folder))
        self.rest = self.path("rest")
        self.pushed = self.push(folder, "dump", "--without-pages", self.rest)
        shutil.rmtree(folder)
        rest = sum(entry.stat().st_size for entry in os.scandir(self.rest))
        print(f"checkpoint: {size >> 10} KiB, without its pages {rest >> 10} KiB", flush=True)
        self.assertLess(rest, size / 8)

    def restore_and_check(self, *options):
        """Restores the program from a page server, and has it check its memory."""
        server = self._owned(Service(["page-server", "--image", "dump", "--port", "0", "--once", "--coordinator", self.url,
                                      *options], self._log("page-server")))
        lazy = self._owned(Process(["criu", "lazy-pages", "--page-server", "--address", "127.0.0.1", "--port",
                                    str(server.ready["port"]), "-D", self.rest, "-v4", "-o", "lazy.log"],
                                   self._log("lazy-pages")))
        wait_until(lambda: os.path.exists(f"{self.rest}/lazy-pages.socket"), "criu lazy-pages listens")
        begin = time.monotonic()
        self.criu("restore", self.rest, "--lazy-pages", "--restore-detached", "--pidfile", self.path("pid"))
        with open(self.path("pid"), encoding="ascii") as file:
            self.addCleanup(self.kill_group, int(file.read()))
        print(f"restored after {time.monotonic() - begin:.2f} s", flush=True)
        with open(f"{FILES}/go", "wb"):
            pass
        wait_until(lambda: os.path.exists(f"{FILES}/result"), "the program has checked its memory", SECONDS)
        with open(f"{FILES}/result", encoding="utf-8") as file:
            text = file.read()
        print(f"after {time.monotonic() - begin:.2f} s: {text}", end="", flush=True)
        words = text.split()
        result = dict(zip(words[::2], map(int, words[1::2])))
        self.assertGreater(result["pages"], 3500)
        self.assertEqual((result["wrong"], result["child"]), (0, 0))
        self.assertEqual(lazy.finish()[0], 0, lazy.log())
        self.assertEqual(server.finish()[0], 0, server.log())
        print(server.log(), flush=True)
        self.assertIn("client_served", server.log())
        stats = json.loads(server.log().rsplit("stats=", 1)[1].splitlines()[0])
        self.assertGreater(stats["pages"], server.ready["pages"] * 0.9, "those of the program came from the image")


class OneMachine(Criu):
    def test_program_is_restored_from_far_memory(self):
        self.start_cluster(transport="shm,tcp")
        self.push_dump()
        self.restore_and_check("--transport", "shm")


def lab(*arguments):
    subprocess.run(["lab", *arguments], check=True, timeout=2 * SECONDS)


class Dumped(Criu):
    def test_program_goes_on_in_another_machine(self):
        self.start_coordinator("--insecure", listen=f"{os.environ['LAB_IP']}:7070")
        self.start_node("node", "--insecure", "--listen-agent", f"{os.environ['LAB_IP']}:0", "--tcp-listen",
                        f"{os.environ['LAB_IP']}:0", transports="tcp")
        self.push_dump()
        shutil.copytree(self.rest, f"{os.environ['LAB_OUT']}/rest")
        lab("signal", "dumped")
        lab("wait", "restored", str(SECONDS))


class Restored(Criu):
    def test_program_goes_on_in_another_machine(self):
        self.url = f"http://{os.environ['LAB_PEER']}:7070"
        self.rest = self.path("rest")
        lab("wait", "dumped", str(SECONDS))
        shutil.copytree(f"{os.environ['LAB_OUT']}/rest", self.rest)
        self.restore_and_check("--transport", "tcp")
        lab("signal", "restored")


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""One engine pages for all processes of a `farpage run`."""
import json
import os
import signal
import subprocess
import sys
import unittest

from cluster import (EndToEnd, MIB, Sampler, child_of, children_of, engine_of, far_memory_at_one_moment, resident_bytes,
                     state_of, wait_until)
from verifier import scaled

# Forks workers that fill memory of their own, wait until all have, check it, and check what they
# share with their parent.
WORKERS = """
import os, signal, sys
workers, own = int(sys.argv[1]), int(sys.argv[2])
shared = bytearray(os.urandom(4096)) * 1024
total = sum(shared[::4096])
full, empty = os.pipe(), os.pipe()
children = []
signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, os.WNOHANG)[0] and os._exit(3))  # one has died
for worker in range(workers):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(empty[1])
        memory = bytearray(own)
        for at in range(0, own, 4096):
            memory[at:at + 8] = (at * 2654435761 + worker).to_bytes(8, "little")
        os.write(full[1], b".")
        os.read(empty[0], 1)  # until the parent has closed its end
        wrong = sum(memory[at:at + 8] != (at * 2654435761 + worker).to_bytes(8, "little")
                    for at in range(0, own, 4096))
        os._exit(1 if wrong or sum(shared[::4096]) != total else 0)
    children.append(child)
got = 0
while got < workers:
    got += len(os.read(full[0], workers))
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
print("filled", flush=True)
sys.stdin.readline()
os.close(empty[1])
failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
print("failed", failed, flush=True)
"""


def connections_to(port):
    """Established TCP connections whose server has this port."""
    count = 0
    with open("/proc/net/tcp", encoding="utf-8") as file:
        next(file)
        for line in file:
            local, _, state = line.split()[1:4]
            count += state == "01" and int(local.split(":")[1], 16) == port
    return count


class Engine(EndToEnd):
    def run_workers(self, count, own, local, options):
        process = self.start_run([sys.executable, "-c", WORKERS, str(count), str(own)], local=local,
                                 options=["--slab", "2M", *options], stdin=subprocess.PIPE)
        self.addCleanup(self.end_group, process.pid)
        return process

    def await_filled(self, process):
        self.assertEqual(process.popen.stdout.readline(), b"filled\n", process.log())

    @staticmethod
    def end_group(leader):
        """Workers whose pager has been killed would wait for ever."""
        try:
            os.killpg(leader, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def expect_right_workers(self, process):
        status, output = process.finish_with(b"\n", patience=300)
        self.assertEqual((status, output), (0, b"failed 0\n"), process.log())
        for stats in self.all_stats():
            self.assertEqual(stats["faults"]["failed"], 0, stats)

    def test_many_forked_workers(self):
        self.start_coordinator()
        self.start_node("node", "--slab", "2M", lend="4G", transports="tcp")
        node = json.loads(self.get("/v1/nodes"))["nodes"][0]
        [tcp] = [each["address"] for each in node["transports"] if each["kind"] == "tcp"]
        port = int(tcp.rpartition(":")[2])
        count = scaled(70, 200)
        local = count * 640 << 10
        run = self.run_workers(count, 2 * MIB, str(local), ["--workers", "16", "--transport", "tcp"])
        with Sampler(lambda: resident_bytes(engine_of(run.pid) or 0)) as engine, \
             Sampler(lambda: far_memory_at_one_moment(run.pid), pause=0.5) as far:
            self.await_filled(run)
            channels = connections_to(port)
            threads = len(os.listdir(f"/proc/{engine_of(run.pid)}/task"))
            self.expect_right_workers(run)
        print("channels", channels, "threads", threads, "engine", engine.most >> 20,
              "MiB, far memory", far.most >> 20, "MiB,", far.samples, "samples")
        self.assertGreater(far.most, local // 2)
        self.assertLessEqual(far.most, local * 105 // 100)
        self.assertGreater(channels, 1)
        self.assertLessEqual(channels, 2 * 16 + 1)
        self.assertLess(engine.most, 120 * MIB)
        evicted = [stats for stats in self.all_stats() if stats["evictions"]["written"] > 0]
        self.assertGreater(len(evicted), count * 3 // 4, "memory of most workers was away")

    def test_a_stopped_process_delays_no_other(self):
        self.start_coordinator()
        self.start_node("node", "--slab", "2M", lend="1G", transports="shm")
        process = self.run_workers(4, 16 * MIB, "24M", ["--transport", "shm"])
        self.await_filled(process)
        program = child_of(process.pid)
        stopped = children_of(program)[0]
        os.kill(stopped, signal.SIGSTOP)
        self.addCleanup(lambda: os.path.exists(f"/proc/{stopped}") and os.kill(stopped, signal.SIGCONT))
        # The parent closes the pipe and waits: the other three check their memory, and end.
        process.send(b"\n")
        wait_until(lambda: children_of(program) == [stopped] or
                   all(state_of(child) in "ZT" for child in children_of(program)),
                   "the others have ended")
        os.kill(stopped, signal.SIGCONT)
        status, output = process.finish(patience=120)
        self.assertEqual((status, output), (0, b"failed 0\n"), process.log())


if __name__ == "__main__":
    unittest.main()

"""The engine of a pager is killed while it serves programs: a successor goes on."""
import datetime
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from cluster import BUILD, EndToEnd, FARPAGE, MIB, RANDOM_ACCESS, Process, child_of, engine_of, state_of, wait_until
from host_pager_base import HostPagerTest, command
from redis_test import Client
from verifier import Verifier, scaled

PROGRAMS = os.path.join(os.path.dirname(__file__), "programs")
STATE_VERSION = 5  # pager::kStateVersion
KILLS = int(os.environ.get("FARPAGE_KILLS", "3"))  # of each test, at least
REDIS_KEYS = scaled(20_000, 60_000)


def kill_engine_of(pid):
    engine = engine_of(pid)
    if engine is not None:
        os.kill(engine, signal.SIGKILL)


def stalls_in(log):
    """Seconds from each death of an engine until a successor served all: the log's own times. One that
    had no program is taken over without a word: whoever begins afterwards has not waited for it."""
    stalls, killed = [], None
    for when, what in re.findall(r"^(\S+) \w+ (?:pager|serve): (engine_killed|taken_over|run_began)", log, re.M):
        moment = datetime.datetime.fromisoformat(when).timestamp()
        if what == "taken_over" and killed is not None:
            stalls.append(moment - killed)
        if what != "engine_killed":
            killed = None
        elif killed is None:
            killed = moment
    return stalls


def expect_takeovers(test, log, least):
    stalls = stalls_in(log)
    killed = log.count("engine_killed")
    test.assertGreaterEqual(killed, least, log)
    print(f"{killed} engines were killed and replaced, the longest stall was {max(stalls) * 1000:.0f} ms, "
          f"the median {sorted(stalls)[len(stalls) // 2] * 1000:.0f} ms")
    for wrong in ("not_taken_over", "engine_given_up"):
        test.assertNotIn(wrong, log)


def upgrade(test, service, name, option, socket_path):
    """Another build: the same one at another path."""
    binary = test.path(name)
    shutil.copy(FARPAGE, binary)
    begin = time.monotonic()
    done = subprocess.run([binary, "upgrade", option, socket_path], timeout=60, capture_output=True, text=True,
                          check=False)
    print(f"{done.stdout.strip()} ({(time.monotonic() - begin) * 1000:.0f} ms)")
    test.assertEqual((done.returncode, done.stderr), (0, ""), service.log())
    test.assertEqual(os.readlink(f"/proc/{service.pid}/exe"), binary)
    test.assertEqual(os.readlink(f"/proc/{engine_of(service.pid)}/exe"), binary)


class EngineDeath(HostPagerTest):
    def engine(self):
        return engine_of(self.pager.pid)

    def kill_engine(self):
        kill_engine_of(self.pager.pid)

    def killing(self, seed, most=0.6):
        """Kills engines at random moments until the end of the block."""
        return Killer(self.pager.pid, random.Random(seed), most)

    def kills_so_far(self):
        return self.pager.log().count("engine_killed")

    def expect_takeovers(self, least):
        expect_takeovers(self, self.pager.log(), least)

    def test_words_that_threads_check_themselves(self):
        self.start_pager(local="96M")
        first = self.start_program(64 * MIB, 3600, 1)
        second = self.start_program(64 * MIB, 3600, 2)
        for process in (first, second):
            self.await_filled(process)
        with self.killing(1):
            wait_until(lambda: self.pager.log().count("taken_over") >= 2 * KILLS, "engines were killed", 300)
        self.assertEqual(len(self.status()["runs"]), 2)
        for process in (first, second):
            process.kill(signal.SIGUSR1)
            self.expect_right_end(process)
        self.expect_takeovers(2 * KILLS)
        wait_until(lambda: not self.regions(), "the regions are given back")

    def test_a_sort(self):
        self.start_pager(local="256M")
        lines = self.path("lines")
        source = random.Random(3)
        with open(lines, "w", encoding="ascii") as file:
            file.writelines(f"{source.getrandbits(400):0120x}\n" for _ in range(scaled(60_000, 400_000)))
        command = ["env", "LC_ALL=C", "sort", "--parallel=2", "-S", "200M", lines]
        plain = subprocess.run(command, check=True, capture_output=True, timeout=300)
        with self.killing(2):
            while self.kills_so_far() < KILLS:
                status, output, log = self.run_far(command, local=scaled("4M", "24M"),
                                                   options=["--pager", self.socket])
                self.assertEqual(status, 0, log)
                self.assertEqual(output, plain.stdout)
        self.expect_takeovers(KILLS)

    def test_a_program_that_forks(self):
        self.start_pager(local="256M", lend="3G")
        while self.kills_so_far() < KILLS:
            program = self.start_run([sys.executable, os.path.join(PROGRAMS, "fork_and_check.py"), str(scaled(800, 1500)), str(scaled(5, 10))],
                                     local=scaled("12M", "24M"), options=["--pager", self.socket])
            self.assertEqual(program.popen.stdout.readline(), b"filled\n", program.log())
            with self.killing(3 + self.kills_so_far(), most=0.9):
                status, output = program.finish(patience=240)
            print(output.decode().strip())
            self.assertEqual(status, 0, program.log())
            self.assertRegex(output, rb"^wrong_blocks 0 wrong_children 0 forks [1-9]")
        self.expect_takeovers(KILLS)

    def test_redis_saves_while_engines_are_killed(self):
        self.start_pager(local="256M", lend="2G")
        redis, client, _, folder = self.start_redis()
        source = random.Random(4)
        values = {}
        with self.killing(4):
            turn = 0
            while turn < 2 or self.kills_so_far() < KILLS:
                turn += 1
                for begin in range(0, REDIS_KEYS, 500):
                    batch = {b"key-%d" % i: b"%d-" % turn + source.randbytes(800) for i in range(begin, begin + 500)}
                    values.update(batch)
                    client.all([("SET", *item) for item in batch.items()])
                client("BGSAVE")
                wait_until(lambda: b"rdb_bgsave_in_progress:0" in client("INFO", "persistence"), "it has saved", 120)
                self.assertIn(b"rdb_last_bgsave_status:ok", client("INFO", "persistence"))
            keys = sorted(values)
            for begin in range(0, len(keys), 500):
                some = keys[begin:begin + 500]
                self.assertEqual(client("MGET", *some), [values[key] for key in some])
        redis.kill(signal.SIGTERM)
        self.assertEqual(redis.finish()[0], 0, redis.log())
        self.expect_takeovers(KILLS)
        checked = subprocess.run([Verifier.program(self, "redis-check-rdb"), os.path.join(folder, "dump.rdb")], timeout=120,
                                 capture_output=True, text=True, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout)
        self.assertIn(f"{REDIS_KEYS} keys read", checked.stdout)

    def start_redis(self):
        listen, folder = self.path("redis.socket"), self.path("redis")
        os.makedirs(folder)
        server = self.path("redis-server")
        os.symlink(Verifier.program(self, "redis-check-rdb"), server)  # one binary with several names
        redis = self.start_run([server, "--port", "0", "--unixsocket", listen, "--dir", folder, "--save", ""],
                               local=scaled("8M", "24M"),
                               options=["--pager", self.socket])
        wait_until(lambda: os.path.exists(listen), "redis listens")
        client = Client(listen)
        self.addCleanup(client.close)
        return redis, client, listen, folder

    def test_a_program_of_the_library(self):
        self.start_pager(local="96M", lend="1G")
        with self.killing(7):
            while self.kills_so_far() < KILLS:
                process = self._owned(Process([os.path.join(BUILD, "kv"), "bench", "--pager", self.socket, "--local", "8M",
                                               "--values", "8000", "--reads", "40000", "--output", "json"], self._log("kv")))
                status, output = process.finish(patience=240)
                self.assertEqual(status, 0, process.log())
                result = json.loads(output)
                self.assertEqual([phase["wrong"] for phase in result["phases"]], [0] * 5)
                self.assertEqual(result["phases"][3]["verified"], 8000)
        self.expect_takeovers(KILLS)
        wait_until(lambda: not self.regions(), "the region is given back")

    def test_upgrades_under_load(self):
        self.start_pager(local="256M", lend="2G")
        redis, client, listen, _ = self.start_redis()
        values = {b"key-%d" % i: os.urandom(1000) for i in range(REDIS_KEYS)}
        keys = sorted(values)
        for begin in range(0, len(keys), 500):
            client.all([("SET", key, values[key]) for key in keys[begin:begin + 500]])
        benchmark = subprocess.Popen(
            [Verifier.program(self, "redis-benchmark"), "-s", listen, "--csv", "-n", str(scaled(50_000, 150_000)), "-r", str(REDIS_KEYS), "-d", "1000",
             "-c", "8", "-t", "set,get"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for turn in range(4):
            time.sleep(0.5)
            upgrade(self, self.pager, f"farpage-{turn}", "--pager", self.socket)
        output, _ = benchmark.communicate(timeout=240)
        self.assertEqual(benchmark.returncode, 0, output)
        self.assertNotIn("rror", output)
        print(output)  # the last column: the longest request, in ms
        for begin in range(0, len(keys), 500):
            some = keys[begin:begin + 500]
            self.assertEqual(client("MGET", *some), [values[key] for key in some])
        self.kill_engine()  # the new build's holder replaces it, too
        self.assertEqual(client("MGET", *keys[:500]), [values[key] for key in keys[:500]])
        redis.kill(signal.SIGTERM)
        self.assertEqual(redis.finish()[0], 0, redis.log())
        self.pager.kill(signal.SIGTERM)
        self.assertEqual(self.pager.finish()[0], 0, self.pager.log())

    def test_upgrades_that_cannot_be(self):
        self.start_pager()
        process = self.start_program(48 * MIB, 3600, 1)
        self.await_filled(process)
        status, output, problem = command("upgrade", "--pager", self.path("none"))
        self.assertEqual((status, output), (1, ""))
        self.assertIn("no farpage pager listens on", problem)
        before = self.engine()
        for words, text in ((["/nowhere", STATE_VERSION], "/nowhere"), ([FARPAGE, 2**40], "unknown to that build")):
            with socket.socket(socket.AF_UNIX) as asked:
                asked.connect(self.socket)
                upgrade = {"version": 10, "upgrade": dict(zip(("binary", "state_version"), words))}
                asked.sendall(json.dumps(upgrade).encode() + b"\n")
                self.assertIn(text, asked.recv(4096).decode())
        self.assertEqual(self.engine(), before)
        # What cannot be executed leaves the old build in place, with another engine.
        broken = self.path("broken")
        with open(broken, "w", encoding="ascii") as file:
            file.write("no program\n")
        os.chmod(broken, 0o755)
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(self.socket)
            asked.sendall(json.dumps({"version": 10, "upgrade": {"binary": broken, "state_version": STATE_VERSION}}).encode() + b"\n")
            self.assertIn("accepted", asked.recv(4096).decode())
        wait_until(lambda: self.engine() not in (None, before), "another engine goes on")
        self.assertIn("upgrade_failed", self.pager.log())
        process.kill(signal.SIGUSR1)
        self.expect_right_end(process)

    def test_a_stopped_program_is_taken_over_when_it_continues(self):
        self.start_pager()
        process = self.start_program(48 * MIB, 3600, 1)
        self.await_filled(process)
        program = child_of(process.pid)
        os.kill(program, signal.SIGSTOP)
        wait_until(lambda: state_of(program) == "T", "it has stopped")
        before = self.engine()
        self.kill_engine()
        wait_until(lambda: self.engine() not in (None, before), "there is another engine")
        os.kill(program, signal.SIGCONT)
        wait_until(lambda: self.status()["runs"][0]["targets"], "it is served")
        process.kill(signal.SIGUSR1)
        self.expect_right_end(process)

    def test_holder_and_engine_die_together(self):
        self.start_coordinator("--region-ttl", "5s")
        self.start_node(lend="2G", transports="shm")
        self.serve("96M")
        process = self.start_run([sys.executable, os.path.join(PROGRAMS, "fork_and_check.py"), "800", "3600"], local="24M",
                                 options=["--pager", self.socket])
        self.assertEqual(process.popen.stdout.readline(), b"filled\n", process.log())
        program, engine = child_of(process.pid), self.engine()
        begin = time.monotonic()
        self.pager.kill()
        wait_until(lambda: state_of(program) in "XZ" and state_of(engine) in "XZ", "all are dead")
        print(f"program and engine were dead after {(time.monotonic() - begin) * 1000:.0f} ms")
        self.assertEqual(process.finish()[0], 128 + signal.SIGKILL, process.log())
        wait_until(lambda: not self.regions(), "the regions have expired", 120)


class EngineDeathOfRun(EndToEnd):
    """The pager is that of one `farpage run`."""

    def test_words_that_a_program_checks_itself(self):
        self.start_cluster(lend="512M")
        process = self.start_run([RANDOM_ACCESS, str(64 * MIB), "2", "3600", "5"], local="24M", options=["--stats"])
        self.read_baseline(process)
        self.assertEqual(process.popen.stdout.readline(), b"filled\n", process.log())
        with Killer(process.pid, random.Random(5), 0.6):
            wait_until(lambda: process.log().count("taken_over") >= KILLS, "engines were killed", 300)
        os.kill(child_of(process.pid), signal.SIGUSR1)
        self.expect_right_end(process)
        expect_takeovers(self, process.log(), KILLS)
        self.assertIn("counted since its last successor", process.log())
        wait_until(lambda: not json.loads(self.get("/v1/regions"))["regions"], "the regions are given back")

    def test_a_program_that_forks_in_an_embedded_cluster(self):
        process = self.start_run([sys.executable, os.path.join(PROGRAMS, "fork_and_check.py"), "1200", str(scaled(5, 10))], local="24M",
                                 options=["--lend", "2G"])
        self.assertEqual(process.popen.stdout.readline(), b"filled\n", process.log())
        with Killer(process.pid, random.Random(6), 0.9):
            status, output = process.finish(patience=240)
        print(output.decode().strip())
        self.assertEqual(status, 0, process.log())
        self.assertRegex(output, rb"^wrong_blocks 0 wrong_children 0 forks [1-9]")
        expect_takeovers(self, process.log(), 3)

    def test_the_program_ends_with_the_holder(self):
        self.start_cluster(lend="512M")
        process = self.start_run([sys.executable, os.path.join(PROGRAMS, "fork_and_check.py"), "800", "3600"], local="24M")
        self.assertEqual(process.popen.stdout.readline(), b"filled\n", process.log())
        engine = engine_of(process.pid)
        with open(f"/proc/{engine}/stat", encoding="ascii") as file:
            holder = int(file.read().rpartition(")")[2].split()[1])
        os.kill(holder, signal.SIGKILL)
        status, _ = process.finish()
        self.assertEqual(status, 128 + signal.SIGKILL, process.log())
        self.assertIn("no_report", process.log())
        wait_until(lambda: state_of(engine) in "XZ", "the engine is dead")


class Killer:
    def __init__(self, pid, chance, most):
        self.pid, self.chance, self.most = pid, chance, most
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.wait(0.25 + self.chance.random() * self.most):
            kill_engine_of(self.pid)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


if __name__ == "__main__":
    unittest.main()

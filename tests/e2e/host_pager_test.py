"""`farpage pager`: one engine for the programs of several `farpage run --pager`."""
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import unittest

from cluster import (FARPAGE, MIB, RANDOM_ACCESS, Sampler, Service, child_of, far_memory_at_one_moment,
                     far_memory_of_run, state_of, wait_until)
from engine_test import WORKERS, Engine
from host_pager_base import HostPagerTest, command
from verifier import scaled

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "..", "bench", "compare"))
from memory_group import memory_group


class HostPager(HostPagerTest):
    def channels(self):
        """Connections to the node's shared memory."""
        with open("/proc/net/unix", encoding="ascii") as file:
            return sum(1 for line in file if line.rstrip().endswith(self.path("node-1.sock"))) - 1

    def test_programs_share_an_engine(self):
        self.start_pager()
        first = self.start_program(48 * MIB, 3600, 1)
        self.await_filled(first)
        wait_until(lambda: self.status()["runs"][0]["targets"][0]["faults"] > 1000, "each thread has its channels")
        channels = self.channels()
        self.assertGreater(channels, 0)
        others = [self.start_program(48 * MIB, 3600, seed) for seed in (2, 3)]
        for process in others:
            self.await_filled(process)
        self.assertEqual(self.channels(), channels, "one set of connections for all")
        wait_until(lambda: all(run["targets"][0]["faults"] > 1000 for run in self.status()["runs"]), "all fault")
        runs = {run["pid"]: run for run in self.status()["runs"]}
        self.assertEqual(set(runs), {process.pid for process in (first, *others)})
        for process in (first, *others):
            run = runs[process.pid]
            self.assertEqual((run["program"], run["local_bytes"], run["user"]), (RANDOM_ACCESS, 16 * MIB, os.getuid()))
            target, = run["targets"]
            self.assertEqual((target["program"], target["pid"]), ("random_access", child_of(process.pid)))
            self.assertEqual(target["transports"], "shm")
            self.assertLessEqual(target["resident_bytes"], 16 * MIB * 105 // 100)
            self.assertGreater(target["remote_bytes"], 24 * MIB)
            self.assertLessEqual(far_memory_of_run(process.pid), 16 * MIB * 105 // 100)
        self.assertEqual(len(self.regions()), 3)
        for process in (first, *others):
            process.kill(signal.SIGUSR1)
            self.expect_right_end(process)
        self.assertEqual(self.status()["runs"], [])
        wait_until(lambda: not self.regions(), "the regions are given back")

    def test_the_report_is_that_of_the_program(self):
        self.start_pager()
        status, output, log = self.run_far(
            ["/bin/sh", "-c", f"{RANDOM_ACCESS} {48 * MIB} 1 1 7; exit 3"], local="16M",
            options=["--pager", self.socket, "--stats"])
        self.assertEqual(status, 3, log)
        self.assertIn(b"wrong_bytes 0\n", output)
        stats = self.all_stats()[-1]
        self.assertEqual((stats["program"], stats["transports"]), ("random_access", "shm"))
        self.assertGreater(stats["faults"]["remote"], 1000, stats)
        self.assertIn("farpage: random_access (pid ", log)
        self.assertIn("remote faults", log)

    def test_all_budgets_together_are_the_pagers(self):
        self.start_pager(local="40M")
        first = self.start_program(8 * MIB, 3600, 1, local="16M")
        second = self.start_program(8 * MIB, 3600, 2, local="16M")
        for process in (first, second):
            self.await_filled(process)
        status, _, log = self.run_far(["true"], local="9M", options=["--pager", self.socket])
        self.assertEqual(status, 126, log)
        self.assertIn("--local 9M: the programs of this pager may have 40M together, and 8M of it is left", log)
        # A larger budget is room of the others, too.
        status, _, problem = command("resize", str(first.pid), "--local", "25M")
        self.assertEqual(status, 1, problem)
        self.assertIn("and 24M of it is left", problem)
        self.assertEqual(command("resize", str(first.pid), "--local", "24M")[0], 0)
        status, _, log = self.run_far(["true"], local="1M", options=["--pager", self.socket])
        self.assertEqual(status, 126, log)
        second.kill(signal.SIGUSR1)
        self.expect_right_end(second)
        status, _, log = self.run_far(["true"], local="16M", options=["--pager", self.socket])
        self.assertEqual(status, 0, log)

    def test_a_program_that_is_killed_takes_nothing_from_the_others(self):
        self.start_pager()
        processes = [self.start_program(32 * MIB, 3600, seed) for seed in (1, 2)]
        for process in processes:
            self.await_filled(process)
        os.kill(child_of(processes[0].pid), signal.SIGKILL)
        self.assertEqual(processes[0].finish()[0], 128 + signal.SIGKILL)
        wait_until(lambda: len(self.regions()) == 1, "its region is given back")
        # The other's `farpage run` is killed, and its program with it.
        program = child_of(processes[1].pid)
        processes[1].kill()
        wait_until(lambda: state_of(program) == "X", "the program is dead")
        wait_until(lambda: not self.status()["runs"], "the pager knows")
        wait_until(lambda: not self.regions(), "its region is given back")

    def test_programs_end_with_their_pager(self):
        self.start_pager()
        process = self.start_program(32 * MIB, 3600, 1)
        self.await_filled(process)
        program = child_of(process.pid)
        self.pager.kill()
        status, _ = process.finish()
        self.assertEqual(status, 128 + signal.SIGKILL, process.log())
        self.assertEqual(state_of(program), "X")
        self.assertIn("has ended", process.log())
        # Another one takes the place of the socket that was left behind.
        self.pager.end()
        self.assertTrue(os.path.exists(self.socket))
        self._owned(Service(["pager", "--socket", self.socket, "--local", "32M", "--coordinator", self.url_of_cluster],
                            self._log("pager")))
        self.assertEqual(self.run_far(["true"], local="16M", options=["--pager", self.socket])[0], 0)

    def test_a_pager_that_shall_stop_waits_for_its_programs(self):
        self.start_pager()
        process = self.start_program(32 * MIB, 3600, 1)
        self.await_filled(process)
        self.pager.kill(signal.SIGTERM)
        wait_until(lambda: not os.path.exists(self.socket), "no other program is served")
        status, _, log = self.run_far(["true"], options=["--pager", self.socket])
        self.assertEqual(status, 126, log)
        self.assertIn(f"no farpage pager listens on {self.socket}", log)
        process.kill(signal.SIGUSR1)
        self.expect_right_end(process)
        self.assertEqual(self.pager.finish()[0], 0, self.pager.log())
        self.assertIn("waits_for_processes=1", self.pager.log())

    def start_workers(self, count, local):
        process = self.start_run([sys.executable, "-c", WORKERS, str(count), str(2 * MIB)], local=local,
                                 options=["--pager", self.socket], stdin=subprocess.PIPE)
        self.addCleanup(Engine.end_group, process.pid)
        return process

    def test_many_processes_in_three_budgets(self):
        self.start_coordinator()
        self.start_node("node", "--slab", "2M", lend="4G", transports="shm")
        self.serve("256M", "--slab", "2M", "--transport", "shm")
        counts, budgets = scaled(((20, 24, 24), (16, 20, 24)), ((60, 70, 70), (32, 48, 64)))
        runs = [self.start_workers(count, f"{local}M") for count, local in zip(counts, budgets)]
        # A fourth program is killed by its own limit, again and again, while the others work.
        with memory_group() as group:
            group.limit(16 * MIB)
            with contextlib.ExitStack() as samplers:
                samplers.callback(group.kill)
                samples = [samplers.enter_context(Sampler(
                    lambda pid=run.pid: far_memory_at_one_moment(pid), pause=1)) for run in runs]
                for run in runs:
                    self.assertEqual(run.popen.stdout.readline(), b"filled\n", run.log())
                for seed in range(3):
                    greedy = self.start_process(group.command(
                        [FARPAGE, "run", "--pager", self.socket, "--local", "64M", "--",
                         RANDOM_ACCESS, str(48 * MIB), "1", "60", str(seed)]))
                    self.assertEqual(greedy.finish()[0], 128 + signal.SIGKILL, greedy.log())
                for run in runs:
                    status, output = run.finish_with(b"\n", patience=300)
                    self.assertEqual((status, output), (0, b"failed 0\n"), run.log())
            self.assertGreaterEqual(group.kills(), 3)
        for local, sample in zip(budgets, samples):
            print("budget", local, "MiB, far memory", sample.most >> 20, "MiB,", sample.samples, "samples")
            self.assertGreater(sample.most, local * MIB // 2)
            self.assertLessEqual(sample.most, local * MIB * 105 // 100)
        self.assertNotIn("error", self.pager.log())

    def test_a_full_control_group_stops_its_program_alone(self):
        """Its out-of-memory killer is off: nothing can be placed there until there is room."""
        self.start_pager("96M")
        other = self.start_program(32 * MIB, 3600, 1)
        self.await_filled(other)
        with memory_group() as group, contextlib.ExitStack() as ends:
            if group.is_v2:
                self.skipTest("version 2 of control groups always kills")
            ends.callback(group.kill)
            group.limit(16 * MIB)
            (group.folder / "memory.oom_control").write_text("1")
            full = self.start_process(group.command(
                [FARPAGE, "run", "--pager", self.socket, "--local", "64M", "--", RANDOM_ACCESS, str(48 * MIB), "1", "1",
                 "2"]))
            wait_until(lambda: "under_oom 1" in (group.folder / "memory.oom_control").read_text(), "the group is full")
            served = {run["pid"]: run["targets"][0]["faults"] for run in self.status()["runs"]}
            wait_until(lambda: all(run["targets"][0]["faults"] > served[run["pid"]] + 1000
                                   for run in self.status()["runs"] if run["pid"] == other.pid), "the other goes on")
            group.limit(256 * MIB)
            self.expect_right_end(full)
        other.kill(signal.SIGUSR1)
        self.expect_right_end(other)

    def test_forks_share_pages(self):
        self.start_pager(lend="4G")  # each process takes a slab
        forks = os.path.join(os.path.dirname(RANDOM_ACCESS), "forks")
        status, output, log = self.run_far([forks, "nested", "1024", "10", "7"], local="2M",
                                           options=["--pager", self.socket])
        self.assertEqual((status, output), (0, b"wrong_pages 0\n"), log)

    def test_another_user_is_refused(self):
        self.start_pager()
        self.assertEqual(stat.S_IMODE(os.stat(self.socket).st_mode), 0o600)
        os.chmod(self.folder, 0o755)
        for open_to_all in (False, True):
            if open_to_all:
                os.chmod(self.socket, 0o666)
            done = subprocess.run(
                ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", FARPAGE, "run", "--pager", self.socket,
                 "--fork=refuse", "--", "true"],
                timeout=60, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 126, done.stderr)
            self.assertIn("another user" if open_to_all else "ermission denied", done.stderr)

    def test_what_cannot_be_is_refused(self):
        self.start_pager()
        run = ["run", "--pager", self.socket]
        for words, text in (
                (["pager", "--socket", self.socket], f"--socket: {self.socket} is in use"),
                (["pager", "--socket", "x" * 200], "--socket: a path of 1 to"),
                (["pager"], "--socket"),
                ([*run, "--local", "1000", "--", "true"], "local: at least 1M"),
                ([*run, "--replicas", "2", "--", "true"], "--replicas"),
                ([*run, "--record-trace", self.path("t"), "--", "true"], "--record-trace"),
                (["run", "--pager", self.path("none"), "--", "true"], "no farpage pager listens on"),
                (["run", "--pager", self.folder, "--", "true"], "--pager: "),
                (["status", "--pager", self.path("none")], "no farpage pager listens on"),
                (["status"], "--coordinator URL or --pager PATH")):
            status, output, problem = command(*words)
            self.assertIn(status, (1, 2, 126), problem)
            self.assertEqual((output, problem.count("\n")), ("", 1), problem)
            self.assertIn(text, problem)
        self.assertEqual(self.status()["runs"], [])


if __name__ == "__main__":
    unittest.main()

"""`farpage run` is transparent where possible, and reports where it is not."""
import json
import os
import pty
import re
import shutil
import signal
import stat
import subprocess
import sys
import unittest

from cluster import BUILD, FARPAGE, EndToEnd, MIB, child_of, children_of, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))

FORK_WITH_MEMORY_AWAY = """
import os, sys
memory = bytearray(b"x" * (32 << 20))
try:
    child = os.fork()
except OSError as error:
    print("refused", error.errno, memory.count(b"x"))
    sys.exit(4)
if child == 0:
    os._exit(0 if memory.count(b"x") == len(memory) else 9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

SURVIVE_SIGINT = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: None)
memory = bytearray(b"x" * (32 << 20))
print("ready", flush=True)
sys.stdin.readline()
print(memory.count(b"x"))
"""

WAIT_FOR_THE_AGENTS_NICENESS = """
import os, sys, time
memory = bytearray(b"x" * (32 << 20))
def agents():
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as name:
            if name.read() == "farpage-agent\\n":
                yield os.getpriority(os.PRIO_PROCESS, int(task))
end = time.monotonic() + 30
while list(agents()) != [19] and time.monotonic() < end:
    time.sleep(0.01)
print(*agents(), os.getpriority(os.PRIO_PROCESS, 0), memory.count(b"x"))
"""


def blocks_sigint(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        blocked = re.search(r"^SigBlk:\s*(\w+)", file.read(), re.M)
    return int(blocked[1], 16) >> (signal.SIGINT - 1) & 1 == 1


class Behaviour(EndToEnd):
    """With the embedded coordinator and node, as on a first try."""

    def run_shell(self, line, **more):
        return self.run_far(["sh", "-c", line], options=["--lend", "1G"], **more)

    def test_exit_status_is_passed_on(self):
        for line, wanted in (("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143),
                             ("kill -SEGV $$", 139)):
            with self.subTest(line):
                self.assertEqual(self.run_shell(line)[0], wanted)

    def test_standard_streams_are_the_programs_own(self):
        process = self.start_run(["sh", "-c", "cat; echo told >&2"],
                                 options=["--lend", "1G"], stdin=subprocess.PIPE)
        text = b"through the pipe\n" * 10000
        output, _ = process.popen.communicate(text, timeout=60)
        self.assertEqual(output, text)
        self.assertIn("told", process.log())

    def test_two_at_once_do_not_disturb_each_other(self):
        waiting = self.start_run(["sh", "-c", "echo ready; read line; exit 6"],
                                 options=["--lend", "128M"], stdin=subprocess.PIPE)
        self.assertEqual(waiting.popen.stdout.readline(), b"ready\n", waiting.log())
        status, _, log = self.run_shell("exit 5")
        self.assertEqual(status, 5, log)
        output, _ = waiting.popen.communicate(b"\n", timeout=60)
        self.assertEqual((waiting.popen.returncode, output), (6, b""), waiting.log())

    def test_dropping_pages_yields_to_the_program_while_there_is_room(self):
        status, output, log = self.run_far([sys.executable, "-c", WAIT_FOR_THE_AGENTS_NICENESS],
                                           local="8M", options=["--lend", "256M"])
        self.assertEqual((status, output), (0, f"19 0 {32 << 20}\n".encode()), log)

    def test_sigterm_reaches_the_program(self):
        process = self.start_run(
            [sys.executable, "-c",
             "import signal, sys\n"
             "signal.signal(signal.SIGTERM, lambda *_: sys.exit(41))\n"
             "print('ready', flush=True)\n"
             "while True: signal.pause()"], options=["--lend", "1G"])
        self.assertEqual(process.popen.stdout.readline(), b"ready\n")
        process.kill(signal.SIGTERM)
        self.assertEqual(process.finish()[0], 41)

    def test_ctrl_c_before_the_program_starts_ends_the_run(self):
        # As a terminal sends it (SI_KERNEL): the line discipline of a pseudo-terminal does.
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(FARPAGE, [FARPAGE, "run", "--local", "8M", "--lend", "1G", "--", "sleep", "60"])
        self.addCleanup(os.close, terminal)
        wait_until(lambda: blocks_sigint(pid), "it takes signals itself")
        os.write(terminal, b"\x03")
        _, status = os.waitpid(pid, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 128 + signal.SIGINT)

    def test_files_that_cannot_be_written_are_refused_at_the_start(self):
        for option in ("--stats-file", "--record-trace"):
            for path in ("/nonexistent/x", "/dev/null/x", "/"):
                done = subprocess.run([FARPAGE, "run", "--local", "8M", option, path, "--", "echo", "ran"],
                                      capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stdout, done.stderr),
                                 (2, "", f"farpage: {option}: cannot write {path}\n"))

    def test_ctrl_c_takes_no_memory_from_a_program_that_survives_it(self):
        process = self.start_run([sys.executable, "-c", SURVIVE_SIGINT], local="8M",
                                 options=["--lend", "256M"], stdin=subprocess.PIPE)
        self.assertEqual(process.popen.stdout.readline(), b"ready\n", process.log())
        groups = [os.getpgid(child) for child in children_of(process.pid)]
        # Coordinator, node, pager, program: a terminal sends its signals to the program's group.
        self.assertEqual([group == process.pid for group in groups], [False, False, True, True])
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.popen.communicate(b"\n", timeout=60)
        self.assertEqual((process.popen.returncode, output), (0, b"%d\n" % (32 * MIB)),
                         process.log())

    def test_ends_are_seen_where_sigchld_is_ignored(self):
        """As after `trap '' CHLD` in a shell: it is inherited."""
        done = subprocess.run(["sh", "-c", f"trap '' CHLD; exec {FARPAGE} run --local 8M --lend 64M -- sh -c 'exit 3'"],
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 3)

    def test_a_shell_may_start_other_programs(self):
        status, output, log = self.run_shell(
            "for i in 1 2 3; do echo $i | tr 123 abc; done; x=$(seq 3 | tail -n 1); (exit $x)")
        self.assertEqual((status, output), (3, b"a\nb\nc\n"), log)

    def test_a_module_opened_with_deepbind_has_the_programs_malloc(self):
        program = os.path.join(BUILD, "tests", "deep_bind")
        status, output, log = self.run_far([program], options=["--lend", "256M"])
        self.assertEqual((status, output), (0, b"blocks exchanged\n"), log)

    def test_a_jvm_with_zgc_gets_the_addresses_that_its_heap_needs(self):
        java = shutil.which("java")
        if java is None or shutil.which("javac") is None:
            self.skipTest("no JDK: ./dev setup programs")
        source = os.path.join(HERE, "programs", "HeapCheck.java")
        status, output, log = self.run_far([java, "-XX:+UseZGC", "-Xmx256m", source, "40000"],
                                           local="64M", options=["--lend", "2G"])
        self.assertEqual((status, output), (0, b"40000 blocks are right\n"), log)

    def test_the_program_does_not_outlive_farpage(self):
        self.start_cluster()
        process = self.start_run(["sleep", "600"])
        wait_until(lambda: child_of(process.pid), "the program starts")
        program = child_of(process.pid)
        process.end()
        wait_until(lambda: not os.path.exists(f"/proc/{program}"), "the program ends")

    def assert_refused(self, status, word, command, **more):
        found, output, log = self.run_far(command, **more)
        self.assertEqual((found, output), (status, b""), log)
        self.assertIn(word, log)
        self.assertEqual(log.count("\n"), 1, log)

    def test_a_missing_program_is_named_with_status_127(self):
        self.assert_refused(127, "no-such-program-at-all is not in PATH", ["no-such-program-at-all"])
        self.assert_refused(127, "/no/such/program does not exist", ["/no/such/program"])
        with open(self.path("script"), "w", encoding="ascii") as file:
            file.write("#!/no/such/interpreter\n")
        os.chmod(self.path("script"), 0o755)
        self.assert_refused(127, "/no/such/interpreter", [self.path("script")])

    def test_a_file_that_cannot_be_executed_is_named_with_status_126(self):
        for path in ("/etc/passwd", self.folder):
            self.assert_refused(126, f"{path} is not a file that can be executed", [path])

    def test_a_failure_of_farpage_is_no_status_of_the_program(self):
        self.assert_refused(1, "token-file /no/such", ["true"], options=["--token-file", "/no/such"])
        self.assert_refused(2, "--no-such-option", ["true"], options=["--no-such-option"])

    def test_a_script_without_an_interpreter_line_is_run_by_the_shell(self):
        with open(self.path("script"), "w", encoding="ascii") as file:
            file.write("echo $1\nexit 7\n")
        os.chmod(self.path("script"), 0o755)
        status, output, log = self.run_far([self.path("script"), "word"], options=["--lend", "256M"])
        self.assertEqual((status, output), (7, b"word\n"), log)

    def test_memory_that_stays_local_is_told_of_at_the_end(self):
        program = os.path.join(BUILD, "tests", "own_calls")
        for line, warnings in ((f"{program} own {160 * MIB}", 1), (f"{program} libc {160 * MIB}", 0),
                               (f"{program} own {16 * MIB}", 0)):
            with self.subTest(line):
                status, _, log = self.run_shell(line, local="16M")
                self.assertEqual((status, log.count("of its memory became far")), (0, warnings), log)

    def test_touches_are_recorded_and_replayed(self):
        trace = self.path("touches")
        walk = "a = bytearray(16 << 20)\nfor _ in range(3):\n for i in range(0, len(a), 4096): a[i] = 1"
        # The trace is that of the process with the most touches, not of the shell.
        status, _, log = self.run_far(["sh", "-c", f"{sys.executable} -c '{walk}'; true"], local="2M",
                                      options=["--lend", "1G", "--record-trace", trace])
        self.assertEqual(status, 0, log)
        self.assertRegex(log, r"farpage: \d+ touches of python3\S* \(pid \d+\) are in ")
        replay = subprocess.run([os.path.join(BUILD, "bench", "replay"), trace, "--local", "25", "--output", "json"],
                                capture_output=True, text=True, check=True)
        found = json.loads(replay.stdout)[0]
        self.assertGreater(found["accesses"], 3 * (16 << 20) // 4096)
        policies = {each["policy"]: each["reads"] for each in found["policies"]}
        self.assertGreater(policies["fifo"], 2 * (16 << 20) // 4096 * 9 // 10, "a loop defeats it")

    def test_a_setuid_program_is_refused(self):
        program = self.path("setuid-program")
        shutil.copy("/bin/true", program)
        if os.geteuid() == 0:
            os.chown(program, 1, 1)
            os.chmod(program, 0o755 | stat.S_ISUID)
        else:
            program = shutil.which("su")
        self.assert_refused(126, "setuid", [program])

    def test_a_fork_with_memory_away_is_refused_when_asked(self):
        status, output, log = self.run_far([sys.executable, "-c", FORK_WITH_MEMORY_AWAY],
                                           local="8M",
                                           options=["--lend", "256M", "--fork", "refuse"])
        self.assertEqual((status, output), (4, b"refused 12 %d\n" % (32 * MIB)), log)
        self.assertIn("fork refused", log)

    def test_a_fork_with_memory_away_shares_it(self):
        status, _, log = self.run_far([sys.executable, "-c", FORK_WITH_MEMORY_AWAY],
                                      local="8M", options=["--lend", "256M"])
        self.assertEqual(status, 0, log)

    def test_a_fork_with_everything_here_works(self):
        status, _, log = self.run_far([sys.executable, "-c", FORK_WITH_MEMORY_AWAY],
                                      local="256M", options=["--lend", "256M"])
        self.assertEqual(status, 0, log)


if __name__ == "__main__":
    unittest.main()

"""A forked child has a correct copy, whichever pages were remote, and returns its leases."""
import json
import os
import subprocess
import sys
import unittest

from cluster import BUILD, PATIENCE, EndToEnd, wait_until
from verifier import scaled

FORKS = os.path.join(BUILD, "tests", "forks")
SEED = 7

PYTHON = """
import multiprocessing, os
numbers = [i * 2654435761 % 4294967291 for i in range(120000)]
words = {f"key-{n}": n for n in numbers[:30000]}
for child in range(3):
    if os.fork() == 0:
        numbers[::3] = reversed(numbers[::3])
        numbers.sort()
        print(child, sum(numbers[::7]), sum(words.values()), flush=True)
        os._exit(0)
    os.wait()
def part(i):
    numbers[i::5] = [n + i for n in numbers[i::5]]
    total = sum(numbers[i::5])
    numbers[i::5] = [n - i for n in numbers[i::5]]  # whichever worker gets the next part
    return total + words[f"key-{i * 2654435761 % 4294967291}"]
with multiprocessing.get_context("fork").Pool(3) as pool:
    print(pool.map(part, range(15), chunksize=5))
print(sum(numbers), len(words))
"""

SHELL = """
a=$(seq 1 $1)
for i in 1 2 3; do
  echo "$a" | sort -rn | head -n $i
done
(b=$a$a; echo ${#b}) | cat
c=$(a=${a#1}; echo "$a" | wc -c)
echo ${#a} $c
"""


class Fork(EndToEnd):
    def start_cluster(self, *_, **__):
        # Small slabs: each process borrows its own.
        self.start_coordinator()
        self.start_node("node-1", "--slab", "2M", transports="shm")

    def start_run(self, command, options=(), **more):
        return super().start_run(command, options=["--slab", "2M", *options], **more)

    def forks(self, scenario, pages, rounds, local="1M", options=(), stdin=subprocess.DEVNULL):
        print("seed", SEED)
        return self.start_run([FORKS, scenario, str(pages), str(rounds), str(SEED)], local=local,
                              options=options, stdin=stdin)

    def check(self, scenario, pages, rounds, **more):
        self.start_cluster()
        process = self.forks(scenario, pages, rounds, **more)
        status, output = process.finish()
        self.assertEqual((status, output), (0, b"wrong_pages 0\n"), process.log())
        self.expect_all_given_back()

    def expect_all_given_back(self):
        wait_until(lambda: not json.loads(self.get("/v1/regions"))["regions"],
                   "every region is given back")

    def regions(self):
        return [region["name"] for region in json.loads(self.get("/v1/regions"))["regions"]]

    def test_rounds_of_fork_and_change_leave_no_wrong_byte_and_no_lease(self):
        self.start_cluster()
        rounds = scaled(100, 1000)
        process = self.forks("rounds", 512, rounds, stdin=subprocess.PIPE)
        self.assertEqual(process.popen.stdout.readline(), b"wrong_pages 0\n", process.log())
        wait_until(lambda: not [name for name in self.regions() if "-fork-" in name],
                   "the children's regions are given back")
        status, _ = process.finish()
        self.assertEqual(status, 0, process.log())
        self.expect_all_given_back()
        with open(self.stats_path, encoding="utf-8") as file:
            targets = json.load(file)["targets"]
        self.assertGreater(len(targets), rounds * 9 // 10)  # most children needed a pager
        self.assertGreater(sum(target["evictions"]["written"] for target in targets[1:]), rounds)

    def test_children_of_children(self):
        self.check("nested", 1024, 6)

    def test_parents_that_end_before_their_children(self):
        self.check("orphans", 1024, 8)

    def test_children_that_exec(self):
        self.check("exec", 1024, 24)

    # A thread that has no CPU at the wrong moment is what it needs: without the order in
    # Agent::end_with_the_pager, one in some 200 children was killed in its exec.
    def test_children_that_exec_beside_busy_cpus_are_not_killed(self):
        for _ in os.sched_getaffinity(0):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            self.addCleanup(busy.wait)
            self.addCleanup(busy.kill)
        self.check("exec", 64, scaled(40, 400), local="8M")

    def test_spawned_programs(self):
        self.check("spawn", 1024, 10)

    def test_other_threads_fault_and_unmap_meanwhile(self):
        self.check("threads", 1024, scaled(10, 25), local="2M")

    def test_children_that_are_killed(self):
        self.check("killed", 1024, 30)

    def test_all_is_brought_back_first_when_asked(self):
        self.check("rounds", 1024, 5, options=["--fork", "pull-in"])

    def test_fork_fails_when_asked_to(self):
        self.start_cluster()
        process = self.forks("rounds", 1024, 5, options=["--fork", "refuse"])
        status, _ = process.finish()
        self.assertEqual(status, 2, process.log())
        self.assertIn("farpage: fork refused", process.log())

    def test_without_the_privilege_it_says_so_and_refuses(self):
        self.start_cluster()
        log = self.path("unprivileged.log")
        with open(log, "wb") as errors:
            status = subprocess.run(
                ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace",
                 os.path.join(BUILD, "farpage"), "run", "--local", "1M", "--slab", "2M",
                 "--coordinator", self.url, "--", FORKS, "rounds", "1024", "5", str(SEED)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                timeout=PATIENCE).returncode
        with open(log, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(status, 2, text)
        self.assertIn("no_fork_events", text)
        self.assertIn("farpage: fork refused", text)

    def same_as_plain(self, command, local):
        expected = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                                  check=True, timeout=PATIENCE).stdout
        self.assertTrue(expected)
        self.start_cluster()
        status, output, log = self.run_far(command, local=local)
        self.assertEqual((status, output), (0, expected), log)
        self.expect_real_paging()
        self.expect_all_given_back()

    def test_python_forks_and_uses_a_pool(self):
        self.same_as_plain([sys.executable, "-c", PYTHON], "8M")

    def test_children_that_do_little_need_no_pager(self):
        self.start_cluster()
        script = "for i in 1 2 3 4 5 6 7 8 9 10; do y=$y$(z=$i$i; echo $z); done; echo $y"
        status, output, log = self.run_far(["bash", "-c", script], local="8M")
        self.assertEqual((status, output), (0, b"1122334455667788991010\n"), log)
        with open(self.stats_path, encoding="utf-8") as file:
            self.assertEqual(len(json.load(file)["targets"]), 1)
        self.expect_all_given_back()

    def test_a_shell_with_pipelines_and_subshells(self):
        self.same_as_plain(["sh", "-c", SHELL, "sh", str(scaled(300_000, 900_000))], scaled("1M", "2M"))


if __name__ == "__main__":
    unittest.main()

"""A seeded mix of failures in rounds; every byte is checked.

    ./dev soak MINUTES [--seed N] [--round K]

One cluster lives through all rounds: a coordinator that keeps its state in SQLite, and three nodes.
In a round some programs run with far memory, over what the seed has chosen: what they do (random
access, sort, children of fork in all scenarios, stress-ng's verifiers), sizes, budgets, transports,
replicas, prefetch. Around them nodes are killed, restarted and stopped, and so is the
coordinator, and the budgets of the programs change. --round K runs round K of a seed alone.

Never more than a program can bear. Lost replicas are not made again, so in the life of a program at
most `replicas` - 1 nodes are disturbed for longer than it waits for them, though each as often as
the seed says. Of a program with one replica, nodes are stopped for less than its deadline.
"""
import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

from cluster import BUILD, EndToEnd, FARPAGE, MIB, RANDOM_ACCESS, Process, child_of, engine_of, wait_until

FORKS = os.path.join(BUILD, "tests", "forks")
STRESS_NG = shutil.which("stress-ng")
NODES = 3
NODE_BYTES = "1G"
NODE_TTL = "2s"
REGION_TTL = "10s"
DEADLINE = 20  # seconds
HANG = 120  # seconds by which a program may exceed its run time


def where_threads_are(pager):
    """Of a `farpage run` and its program: each thread, its time on CPUs (in ticks, user and system)
    and what it waits for in the kernel. Twice, to tell a slow program from a hung one."""
    first = sample_of_threads(pager)
    time.sleep(2)
    return f"{first}\n2 s later:\n{sample_of_threads(pager)}"


def sample_of_threads(pager):
    lines = []
    for pid in (engine_of(pager), child_of(pager)):
        for task in os.listdir(f"/proc/{pid}/task") if pid else ():
            try:
                with open(f"/proc/{pid}/task/{task}/stat", encoding="utf-8") as stat, \
                        open(f"/proc/{pid}/task/{task}/wchan", encoding="utf-8") as wchan:
                    name, numbers = stat.read().rsplit(")", 1)
                    lines.append(f"{name}): {numbers.split()[11:13]} {wchan.read()}")
            except OSError:
                pass  # it has ended
    return "\n".join(lines)


class Program:
    """One program under `farpage run`, with its own settings."""

    def __init__(self, soak, name, chance, replicas, seconds):
        self.name = name
        self.problem = None
        self.targets = []  # statistics of the program and of its children
        self.wrong_bytes = 0
        self._stats_path = soak.path(f"{name}.json")
        size = chance.choice((16, 48, 96, 160)) * MIB
        local = max(2 * MIB, int(size * chance.choice((0.1, 0.25, 0.5, 0.8))))
        self.budget_problem = None
        kind = chance.choices(("access", "sort", "forks", "stress-ng"), (5, 2, 2, 2))[0]
        if kind == "sort":
            command = ["sort", "-S", "200M", "--parallel=2", soak.lines]
            local = 4 * MIB
        elif kind == "forks":
            scenario = chance.choice(("rounds", "nested", "orphans", "exec", "threads", "killed"))
            command = [FORKS, scenario, "2048", str({"rounds": 200, "nested": 6}.get(scenario, 25)),
                       str(chance.getrandbits(32))]
            local = 2 * MIB
        elif kind == "stress-ng":
            command = [STRESS_NG, "--verify", "--timeout", str(seconds), "--temp-path", soak.folder,
                       "--vm", "1", "--vm-bytes", "48M", "--vm-method", "all",
                       "--mremap", "1", "--malloc", "1"]
            local = 12 * MIB
        else:
            command = [RANDOM_ACCESS, str(size), str(chance.randint(1, 4)), str(seconds),
                       str(chance.getrandbits(32))]
        self.local = local
        self.options = {
            "--local": str(local), "--replicas": str(replicas),
            "--transport": chance.choice(("auto", "shm", "tcp", "tcp")),
            "--prefetch": chance.choice(("0", "32", "120")), "--workers": chance.choice(("1", "2", "4")),
            "--slab": "16M", "--fault-deadline": f"{DEADLINE}s"}
        self.words = " ".join(os.path.basename(word) for word in command)
        self._good = {"access": lambda output: b"wrong_bytes 0\n" in output,
                      "sort": lambda output: output == soak.sorted_lines,
                      "forks": lambda output: output.endswith(b"wrong_pages 0\n"),
                      "stress-ng": lambda _: "fail:" not in self.process.log()}[kind]
        self.process = Process(
            [FARPAGE, "run", "--coordinator", soak.url, "--stats-file", self._stats_path,
             *(word for option in self.options.items() for word in option), "--", *command],
            soak.path(f"{name}.log"))
        self._end = time.monotonic() + seconds + HANG
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def __str__(self):
        return f"{self.name} [{self.words}] {self.options}"

    def running(self):
        return self._thread.is_alive()

    def change_budget(self, local):
        """True: its budget is `local` bytes now. False: it had ended, or has more locked."""
        done = subprocess.run([FARPAGE, "resize", str(self.process.pid), "--local", str(local)],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG, text=True,
                              check=False)
        if done.returncode == 0:
            return True
        self._thread.join(5)
        if self.running() and "are pinned" not in done.stderr:
            self.budget_problem = f"no other budget: {done.stderr}"
        return False

    def _watch(self):
        try:
            output, _ = self.process.popen.communicate(timeout=self._end - time.monotonic())
        except subprocess.TimeoutExpired:
            self.problem = "it hangs\n" + where_threads_are(self.process.pid)
            return
        status = self.process.popen.returncode
        wrong = [int(words[1]) for words in map(bytes.split, output.splitlines()[-1:])
                 if words[:1] in ([b"wrong_bytes"], [b"wrong_pages"])]
        # A program that reports an error without a count: at least one byte.
        self.wrong_bytes = sum(wrong) or int(status == 0 and not self._good(output))
        if status != 0 or self.wrong_bytes != 0:
            self.problem = f"status {status}, {self.wrong_bytes} wrong bytes"
        try:
            with open(self._stats_path, encoding="utf-8") as file:
                self.targets = json.load(file)["targets"]
            if not self.targets:
                self.problem = self.problem or "it had no far memory"
        except (OSError, ValueError) as error:
            self.problem = self.problem or f"no statistics: {error}"

    def end(self):
        self._thread.join()
        self.problem = self.problem or self.budget_problem
        self.process.end()


class Soak(EndToEnd):
    """The cluster and its rounds. soak_test.py has the test case."""

    def runTest(self):
        """unittest needs one."""

    def begin(self, seed):
        self.setUp()
        self.seed = seed
        self.url = None
        self._address = "127.0.0.1:0"
        self._nodes = [None] * NODES
        self.totals = dict.fromkeys(
            ("rounds", "programs", "processes", "faults", "evictions", "replicas_lost", "node_kills",
             "node_stops", "coordinator_kills", "budgets_changed", "wrong_bytes", "failures"), 0)
        chance = random.Random(seed)
        self.lines = self.path("lines")
        lines = sorted(b"%0126x\n" % chance.getrandbits(500) for _ in range(100_000))
        self.sorted_lines = b"".join(lines)
        chance.shuffle(lines)
        with open(self.lines, "wb") as file:
            file.write(b"".join(lines))
        self._start_coordinator()
        for index in range(NODES):
            self._start_node(index)

    # ---- the cluster ----

    def _start_coordinator(self):
        self._coordinator = self.start_coordinator(
            "--store", "sqlite:" + self.path("coordinator.db"), "--node-ttl", NODE_TTL,
            "--region-ttl", REGION_TTL, listen=self._address)
        self._address = self.url.removeprefix("http://")

    def _start_node(self, index):
        self._nodes[index] = self.start_node(f"node-{index + 1}", "--slab", "16M", lend=NODE_BYTES)

    def kill_coordinator(self, seconds):
        self._coordinator.end()
        time.sleep(seconds)
        self._start_coordinator()
        self.totals["coordinator_kills"] += 1

    def kill_node(self, index, seconds):
        self._nodes[index].end()
        time.sleep(seconds)
        self._start_node(index)
        self.totals["node_kills"] += 1

    def stop_node(self, index, seconds):
        self._nodes[index].kill(signal.SIGSTOP)
        time.sleep(seconds)
        self._nodes[index].kill(signal.SIGCONT)
        self.totals["node_stops"] += 1

    def free_slabs(self):
        nodes = json.loads(self.get("/v1/nodes"))["nodes"]
        return sum(node["free_slabs"] for node in nodes), sum(node["total_slabs"] for node in nodes)

    def _borrowers(self):
        regions = json.loads(self.get("/v1/regions"))["regions"]
        return sum(1 for region in regions if region["leases"])

    # ---- one round ----

    def run_round(self, number, seconds):
        """True: all programs succeeded."""
        chance = random.Random(f"{self.seed}/{number}")
        replicas = chance.choice((1, 2, 2, 2, 3))
        programs = [Program(self, f"round-{number}-{i + 1}", chance, replicas, seconds)
                    for i in range(chance.randint(1, 3))]
        victims = chance.sample(range(NODES), replicas - 1)
        wait_until(lambda: self._borrowers() >= len(programs) or any(p.problem for p in programs),
                   "the programs have memory")
        end = time.monotonic() + seconds
        events = []
        while time.monotonic() < end and any(p.running() for p in programs):
            time.sleep(chance.uniform(0.1, 2))
            self._disturb(chance, replicas, victims, events)
            self._change_a_budget(chance, programs, events)
        for program in programs:
            program.end()
            self._count(program)
        wrong = [p for p in programs if p.problem]
        self.totals["rounds"] += 1
        self._say_round(number, replicas, programs, events)
        for program in wrong:
            self.totals["failures"] += 1
            print(f"soak: FAILED {program}: {program.problem}\n"
                  f"soak: again with --seed {self.seed} --round {number}\n{program.process.log()}",
                  flush=True)
        return not wrong

    def _disturb(self, chance, replicas, victims, events):
        what = chance.choice(("coordinator", "stop", "node", "node") if victims
                             else ("coordinator", "stop"))
        if what == "coordinator":
            pause = chance.choice((0, 1, 3))
            events.append(f"coordinator away for {pause} s")
            self.kill_coordinator(pause)
        elif what == "node":
            node, pause = chance.choice(victims), chance.choice((0, 0.5, 3))
            events.append(f"node-{node + 1} killed, away for {pause} s")
            self.kill_node(node, pause)
        else:
            # A replica that misses writes is marked lost, so with several only a victim is stopped.
            node = chance.choice(victims if victims else range(NODES))
            pause = chance.choice((0.05, 0.5, 1.5, 3))
            events.append(f"node-{node + 1} stopped for {pause} s")
            self.stop_node(node, pause)

    def _change_a_budget(self, chance, programs, events):
        program, factor = chance.choice(programs), chance.uniform(0.5, 2)
        local = max(MIB, int(program.local * factor))
        if program.running() and program.change_budget(local):
            self.totals["budgets_changed"] += 1
            events.append(f"{program.name} has {local >> 10}K")

    def _count(self, program):
        self.totals["programs"] += 1
        self.totals["wrong_bytes"] += program.wrong_bytes
        self.totals["processes"] += len(program.targets)
        for stats in program.targets:
            self.totals["faults"] += stats["faults"]["remote"] + stats["faults"]["zero"]
            self.totals["evictions"] += stats["evictions"]["written"] + stats["evictions"]["clean"]
            self.totals["replicas_lost"] += stats["replicas_lost"]

    def _say_round(self, number, replicas, programs, events):
        print(f"soak: round {number}: {replicas} replica(s); {', '.join(events) or 'nothing'}",
              flush=True)
        for program in programs:
            faults = sum(stats["faults"]["remote"] for stats in program.targets)
            print(f"soak:   {program}: {len(program.targets)} process(es), {faults} remote faults, "
                  f"{program.problem or 'ok'}", flush=True)

    # ---- all rounds ----

    def run_rounds(self, rounds, seconds=10):
        """Runs the numbered rounds, of `seconds` each, until one fails. True: none failed."""
        for number in rounds:
            if not self.run_round(number, seconds):
                break
        try:
            # The region of a program that ends without a coordinator ends with its time to live.
            wait_until(lambda: len(set(self.free_slabs())) == 1, "every slab is given back", 60)
        except AssertionError as error:
            print(f"soak: FAILED {error}: {self.get('/v1/nodes')}", flush=True)
            self.totals["failures"] += 1
        totals = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.totals.items())
        print(f"soak: seed {self.seed}: {totals}", flush=True)
        return self.totals["failures"] == 0


def main():
    parser = argparse.ArgumentParser(prog="dev soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--round", type=int, default=None, help="this round of the seed alone")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"soak: seed {seed}", flush=True)
    end = time.monotonic() + options.minutes * 60
    until_end = itertools.takewhile(lambda _: time.monotonic() < end, itertools.count())
    soak = Soak()
    try:
        soak.begin(seed)
        good = soak.run_rounds(until_end if options.round is None else [options.round])
    finally:
        soak.doCleanups()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

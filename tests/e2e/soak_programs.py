"""The programs of soak.py: what they do, their settings, and how each is checked; and its guests."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time

import histories
from cluster import BUILD, FARPAGE, MIB, RANDOM_ACCESS, Process, child_of, engine_of

FORKS = os.path.join(BUILD, "tests", "forks")
RECORDED_WORDS = os.path.join(BUILD, "tests", "recorded_words")
RESTORED_GUEST = os.path.join(BUILD, "tests", "restored_guest")
STRESS_NG = shutil.which("stress-ng")
DEADLINE = 30  # seconds
HANG = 120  # seconds by which a program may exceed its run time, and without progress
LONGEST = 1800  # and with it: a machine that others use is slow, but what runs in a circle hangs, too
SLAB = "8M"
# What a program or its pager must never say.
BAD_LINES = re.compile(r".*(page_lost|no_room|engine_given_up|not_taken_over|wrong_page|stray_fault|drop_refused).*")


def bad_lines(log):
    return [match[0] for match in BAD_LINES.finditer(log)]


def where_threads_are(pager):
    """Of a `farpage run` and its program: each thread, its time on CPUs (in ticks, user and system)
    and what it waits for in the kernel. Twice, to tell a slow program from a hung one."""
    first = sample_of_threads(pager)
    time.sleep(2)
    return f"{first}\n2 s later:\n{sample_of_threads(pager)}"


def progress_of(pager):
    """Of the program of a `farpage run`: the time on CPUs that it and its ended children had, in ticks."""
    try:
        with open(f"/proc/{child_of(pager)}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[11:15]
    except OSError:
        return None


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


def engine_options(replicas, transport, cluster):
    return {"--coordinator": cluster.url, "--replicas": str(replicas), "--transport": transport, "--slab": SLAB,
            "--fault-deadline": f"{DEADLINE}s"}


class Program:
    """One program under `farpage run`, with its own settings."""

    def __init__(self, cluster, name, kind, chance, replicas, seconds):
        self.name = name
        self.kind = kind
        self.problem = None
        self.targets = []  # statistics of the program and of its children
        self.wrong_bytes = 0
        self.checked_bytes = 0
        self.slow = []  # (begin, end) of each recorded operation of more than 1 ms, in ns
        self.records = 0
        self._stats_path = cluster.path(f"{name}.json")
        self._history = cluster.path(f"{name}-history")
        self._size = chance.choice((16, 32, 64)) * MIB
        self.local = max(2 * MIB, int(self._size * chance.choice((0.1, 0.25, 0.5, 0.8))))
        seed = str(chance.getrandbits(32))
        self._told_to_end = kind in ("words", "access")
        if kind == "words":
            os.mkdir(self._history)
            command = [RECORDED_WORDS, str(self._size // MIB), str(chance.randint(2, 4)), str(seconds + HANG), seed,
                       self._history]
        elif kind == "access":
            command = [RANDOM_ACCESS, str(self._size), str(chance.randint(1, 4)), "3600", seed]
        elif kind == "sort":
            command = ["sort", "-S", "200M", "--parallel=2", cluster.lines]
            self.local = 4 * MIB
        elif kind == "forks":
            scenario = chance.choice(("rounds", "nested", "orphans", "exec", "threads", "killed"))
            command = [FORKS, scenario, "2048", str({"rounds": 200, "nested": 6}.get(scenario, 25)), seed]
            self.local = 2 * MIB
        else:
            command = [STRESS_NG, "--verify", "--timeout", str(seconds), "--temp-path", cluster.folder,
                       "--vm", "1", "--vm-bytes", "48M", "--vm-method", "all", "--mremap", "1", "--malloc", "1"]
            self.local = 12 * MIB
        options = {
            **engine_options(replicas, chance.choice(("auto", "shm", "tcp", "tcp", "tcp")), cluster),
            "--prefetch": chance.choice(("0", "32", "120")), "--workers": chance.choice(("1", "2", "4")),
            "--scrub": chance.choice(("off", "4M", "64M")), "--compressed": chance.choice(("off", "off", "30%", "auto")),
            "--repair-rate": chance.choice(("auto", "max", "max"))}
        self.spills = chance.random() < 0.3 and self._told_to_end and cluster.spill_folder is not None
        self.of_the_pager = chance.random() < 0.3 and replicas == cluster.replicas_of_the_pager and not self.spills
        if self.spills:
            options.update({"--spill": f"{cluster.spill_folder},size=192M", "--borrower": cluster.small_borrower})
        if self.of_the_pager:
            options = {"--pager": cluster.pager_socket}
        self.options = {"--local": str(self.local), **options}
        self.words = " ".join(os.path.basename(word) for word in command)
        self._good = {"words": lambda output: b" wrong_words 0\n" in output,
                      "access": lambda output: b" wrong_bytes 0\n" in output,
                      "sort": lambda output: output == cluster.sorted_lines,
                      "forks": lambda output: output.endswith(b"wrong_pages 0\n"),
                      "stress-ng": lambda _: "fail:" not in self.process.log()}[kind]
        self.process = Process(
            [*cluster.enter_of("borrower"), FARPAGE, "run", "--stats-file", self._stats_path,
             *(word for option in self.options.items() for word in option), "--", *command],
            cluster.path(f"{name}.log"))
        self.output = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def __str__(self):
        options = " ".join(f"{name}={value}" for name, value in self.options.items() if name != "--coordinator")
        return f"{self.name} [{self.words}] {options}"

    def _read(self):
        while part := self.process.popen.stdout.read1(1 << 16):
            self.output += part

    def running(self):
        return self._thread.is_alive()

    def is_filled(self):
        """Of a program that says so."""
        return b"filled\n" in self.output or not self.running()

    def change_budget(self, factor):
        """Returns what became of it."""
        local = max(MIB, int(self.local * factor))
        done = subprocess.run([FARPAGE, "resize", str(self.process.pid), "--local", str(local)],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG, text=True, check=False)
        if done.returncode == 0:
            return f"{self.name} has {local >> 10} KiB"
        self._thread.join(5)
        if self.running() and "are pinned" not in done.stderr and "may have" not in done.stderr:
            self.problem = self.problem or f"no other budget: {done.stderr}"
        return done.stderr.strip()

    def end(self):
        """Waits for it, and checks what it says."""
        if self._told_to_end and self.process.popen.poll() is None:
            self.process.kill(signal.SIGUSR1)
        if self._hangs():
            self.problem = "it hangs\n" + where_threads_are(self.process.pid)
            self.process.end()
            self._thread.join()
            return
        status = self.process.popen.wait()
        count = re.search(rb"operations (\d+) wrong_(?:bytes|words) (\d+)", self.output)
        wrong = re.search(rb"wrong_(?:bytes|words|pages) (\d+)", self.output)
        # A program that reports an error without a count: at least one byte.
        self.wrong_bytes = int(wrong[1]) if wrong else int(status == 0 and not self._good(self.output))
        if status != 0 or self.wrong_bytes != 0 or not self._good(self.output):
            self.problem = self.problem or f"status {status}, {self.wrong_bytes} wrong bytes"
        if count:
            # Each operation of recorded_words checks two words. At the end both programs check all.
            self.checked_bytes = int(count[1]) * (16 if self.kind == "words" else 4096) + self._size
        elif self.kind == "sort":
            self.checked_bytes = len(self.output)
        self._check_statistics()
        self._check_log()
        self._check_history()
        self.process.end()

    def _hangs(self):
        late = time.monotonic() + LONGEST
        progress = ()
        while self.running() and time.monotonic() < late and progress != (progress := progress_of(self.process.pid)):
            self._thread.join(HANG)
        return self.running()

    def _check_statistics(self):
        try:
            with open(self._stats_path, encoding="utf-8") as file:
                self.targets = json.load(file)["targets"]
            if not self.targets:
                self.problem = self.problem or "it had no far memory"
        except (OSError, ValueError) as error:
            self.problem = self.problem or f"no statistics: {error}"

    def _check_log(self):
        lines = bad_lines(self.process.log())
        if lines:
            self.problem = self.problem or "it says\n" + "\n".join(lines[:20])

    def _check_history(self):
        if self.kind != "words":
            return
        records = histories.read_folder(self._history)
        self.records = len(records)
        self.slow = [(begin, end) for begin, end, *_ in records if end - begin > 1_000_000]
        wrong = histories.findings(records)
        if wrong:
            self.wrong_bytes += 8 * len(wrong)
            self.problem = self.problem or "its words did not behave like memory:\n" + "\n".join(wrong[:20])
        if not records:
            self.problem = self.problem or "it has recorded nothing"
        if not self.problem:
            shutil.rmtree(self._history)

    def longest_ms(self, begin, end):
        """The longest recorded operation that overlaps with this time (time.monotonic())."""
        begin, end = begin * 1e9, end * 1e9
        return max((last - first for first, last in self.slow if first < end and last > begin), default=0) / 1e6


class Guests:
    """Guests of one image, restored and checked one after the other until end(), at least one."""

    def __init__(self, cluster, name, chance):
        self.findings = []
        self.restored = 0
        self.pages = 0
        self._cluster = cluster
        self._name = name
        self._seeds = random.Random(chance.getrandbits(32))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while self.restored == 0 or not self._ending.is_set():
            log = self._cluster.path(f"{self._name}.log")
            options = ["--threads", str(self._seeds.randint(1, 3)), "--percent", str(self._seeds.choice((20, 100))),
                       "--regions", str(self._seeds.randint(1, 3)), "--seed", str(self._seeds.randint(1, 1 << 30))]
            if not self._cluster.guests_have_budget:
                options += ["--rounds", "1"]
            guest = Process([*self._cluster.enter_of("borrower"), RESTORED_GUEST, self._cluster.guest_socket,
                             self._cluster.guest_memory, "--close", *options], log)
            try:
                status, output = guest.finish(LONGEST)
                figures = json.loads(output) if status == 0 else {}
                if status != 0 or figures["wrong"] or figures["sigbus"]:
                    self.findings.append(f"guest {' '.join(options)}: status {status}, {figures} {guest.log()[-500:]}")
                self.pages += figures.get("pages", 0)
            except AssertionError as error:
                self.findings.append(f"guest {' '.join(options)}: {error}")
            finally:
                guest.end()
            self.restored += 1
            if self.findings:
                return

    def end(self):
        """Waits for the last one."""
        self._ending.set()
        self._thread.join()

"""Programs with far memory among disturbances from a seed; every byte is checked, and what is left behind.

    ./dev soak MINUTES [--seed N] [--round K] [--output json]

One cluster lives through all rounds: a coordinator that keeps its state in SQLite, four nodes, a pager
that serves some of the programs, and an image, of which guests are restored all the time; each on a host
of its own (a network namespace), pager and guests on that of the programs. In a round some
programs run over what the seed has chosen: what they do (soak_programs.py), sizes, budgets, transports,
replicas, prefetch, scrubbing, compressed copies, spilling. One of them always records each operation on
the words of its memory, and histories.py decides afterwards whether these have been memory. Around them
thrasher.py disturbs the cluster, one loss at a time. --round K runs round K of a seed alone.

A round ends when every slab has its replicas again. After the last one the coordinator must have no
region, every slab must be free, and services, hosts and folders must be as before (leaks.py).
"""
import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time

import leaks
import network
from cluster import (BUILD, EndToEnd, FARPAGE, MIB, PATIENCE, RANDOM_ACCESS, Process, Service, engine_of,
                     settled, wait_until)
from soak_programs import DEADLINE, SLAB, Guests, Program, bad_lines, engine_options
from thrasher import NODES, Thrasher

NODE_TTL = "2s"
REGION_TTL = "10s"
LEAST_STEPS = 4  # of a round, however slow the machine is
SMALL_QUOTA = "48M"  # of the programs that spill
JUMPING_CLOCK = os.path.join(BUILD, "tests", "libjumping_clock.so")
# Connections that HTTP keeps open, and the threads that serve them, come and go with requests. A leak of
# one for each program or disturbance is more.
MORE_DESCRIPTORS, MORE_THREADS = 8, 2


class Soak(EndToEnd):
    """The cluster and its rounds. soak_test.py has the test case."""

    lend_of_a_node = "2G"
    small_borrower = "small"
    replicas_of_the_pager = 2

    def runTest(self):
        """unittest needs one."""

    def begin(self, seed, say=print):
        self.setUp()
        self.seed = seed
        self.say = say
        self.programs = []
        self._runs = set()  # process ids of each `farpage run`
        self.findings = []
        self.kinds = {}  # of disturbances: count, longest access in ms
        self.left_out = {}
        self.steps = []
        self.totals = dict.fromkeys(
            ("rounds", "programs", "processes", "guests", "disturbances", "recorded_operations", "checked_bytes",
             "remote_faults", "evictions", "replicas_lost", "wrong_bytes"), 0)
        self._before = leaks.Before()
        self._make_hosts()
        # A process that is started by a thread dies with that thread (cluster.py), so these start all.
        self._starters = concurrent.futures.ThreadPoolExecutor(max_workers=4)
        self.addCleanup(self._starters.shutdown)
        self._marker = f"SOAK_FOLDER={self.folder}"  # of all processes but the hosts
        os.environ["SOAK_FOLDER"] = self.folder
        self.addCleanup(os.environ.pop, "SOAK_FOLDER", None)
        self._make_lines()
        self._start_services()

    # ---- the cluster ----

    def _make_hosts(self):
        self.no_network = network.why_impossible()
        self.hosts = {}
        self.store_folder = self.path("store")
        os.mkdir(self.store_folder)
        self.spill_folder = None
        if self.no_network:
            return
        self.network = network.Network(self)
        self.hosts = {name: self.network.add_host(name, own_kernel=False) for name in ("control", "borrower", *NODES)}
        self.hosts["control"].run("mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", self.store_folder)
        self.spill_folder = self.path("spill")
        os.mkdir(self.spill_folder)
        image = self.path("spill.ext4")
        with open(image, "wb") as file:
            file.truncate(1 << 30)
        subprocess.run(["/sbin/mkfs.ext4", "-q", image], check=True, timeout=PATIENCE)
        disk = subprocess.run(["/sbin/losetup", "--find", "--show", image], check=True, capture_output=True, text=True,
                              timeout=PATIENCE).stdout.strip()
        # If it can be: through the page cache, what others write to this host's disk holds this one up.
        subprocess.run(["/sbin/losetup", "--direct-io=on", disk], check=False, capture_output=True, timeout=PATIENCE)
        self.hosts["borrower"].run("mount", disk, self.spill_folder)
        subprocess.run(["/sbin/losetup", "--detach", disk], check=True, timeout=PATIENCE)  # when it is unmounted
        network.enter_network(self, self.hosts["borrower"])

    def enter_of(self, host):
        """The prefix of commands on this host."""
        return self.hosts[host].enter if self.hosts else []

    def address_of(self, host):
        return self.hosts[host].address if self.hosts else "127.0.0.1"

    def _make_lines(self):
        """What the programs sort."""
        chance = random.Random(self.seed)
        self.lines = self.path("lines")
        lines = sorted(b"%0126x\n" % chance.getrandbits(500) for _ in range(100_000))
        self.sorted_lines = b"".join(lines)
        chance.shuffle(lines)
        with open(self.lines, "wb") as file:
            file.write(b"".join(lines))

    def _start_services(self):
        self._logs = itertools.count(1)
        self.nodes = {}
        self._listen = f"{self.address_of('control')}:0"
        self.start_the_coordinator()
        for name in NODES:
            self.start_node_named(name)
        self.pager_socket = self.path("pager.sock")
        options = engine_options(self.replicas_of_the_pager, "auto", self)
        self.pager = self._start_service(
            "borrower", None, ["pager", "--socket", self.pager_socket, "--local", "256M",
                               *(word for option in options.items() for word in option)])
        self._serve_guests()
        # Once, so that both pagers have their connections to the nodes.
        self._run_to_its_end(["--pager", self.pager_socket], str(64 * MIB))
        Guests(self, "first-guest", random.Random(self.seed)).end()
        pids = self._pids()
        settled(lambda: [str(leaks.Held(pid)) for pid in pids.values()])
        self._held = {name: leaks.Held(pid) for name, pid in pids.items()}

    def _serve_guests(self):
        """From an image that is larger than what stays here of it: of each guest, or for all of them."""
        chance = random.Random(self.seed)
        self.guests_have_budget = chance.random() < 0.5
        self.guest_memory = self.path("guest.mem")
        with open(self.guest_memory, "wb") as file:
            for _ in range(48):
                file.write(chance.randbytes(MIB - 4096) + bytes(4096))
        self.operate_surely("image", "push", self.guest_memory, "--name", "guest", "--replicas", "2", "--slab", SLAB)
        self.guest_socket = self.path("guest.sock")
        budget = ["--local", "8M", "--replicas", "2", "--slab", SLAB] if self.guests_have_budget else ["--cache", "12M"]
        self.server = self._start_service(
            "borrower", None, ["serve", "--image", "guest", "--socket", self.guest_socket, "--coordinator", self.url,
                               "--fault-deadline", f"{DEADLINE}s", *budget])

    def _run_to_its_end(self, options, size):
        process = self._owned(Process(
            [*self.enter_of("borrower"), FARPAGE, "run", *options, "--local", "8M", "--", RANDOM_ACCESS, size, "1", "1", "1"],
            self.path(f"{next(self._logs)}-run.log")))
        self._runs.add(process.pid)
        status, _ = process.finish()
        self.assertEqual(status, 0, process.log())

    def _pids(self):
        """Of all that lives as long as the cluster."""
        wait_until(lambda: engine_of(self.pager.pid), "the pager has an engine")
        return {**{name: service.pid for name, service in self._services().items()},
                "engine of the pager": engine_of(self.pager.pid)}

    def _services(self):
        return {"coordinator": self.coordinator, **self.nodes, "pager": self.pager, "serve": self.server}

    def _start_service(self, host, clock, arguments):
        """With the wall clock of that name, if it has one."""
        enter = list(self.enter_of(host))
        if clock:
            if not os.path.exists(self._clock(clock)):
                self.set_clock(clock, 0)
            enter += ["env", f"LD_PRELOAD={JUMPING_CLOCK}", f"JUMPING_CLOCK={self._clock(clock)}"]
        log = self.path(f"{next(self._logs)}-{clock or arguments[0]}.log")
        return self._owned(self._starters.submit(Service, arguments, log, enter).result())

    def start_the_coordinator(self):
        self.coordinator = self._start_service(
            "control", "coordinator",
            ["coordinator", "--listen", self._listen, "--insecure", "--store", f"sqlite:{self.store_folder}/coordinator.db",
             "--node-ttl", NODE_TTL, "--region-ttl", REGION_TTL, "--quota", f"{self.small_borrower}={SMALL_QUOTA}"])
        self.url = self.coordinator.ready["url"]
        self._listen = self.url.removeprefix("http://")

    def start_node_named(self, name):
        address = self.address_of(name)
        self.nodes[name] = self._start_service(
            name, name,
            ["node", "--coordinator", self.url, "--name", name, "--insecure", "--lend", self.lend_of_a_node, "--slab", SLAB,
             "--lazy", "--transports", "shm,tcp", "--heartbeat", "200ms", "--shm-socket", self.path(name + ".sock"),
             "--listen-agent", f"{address}:0", "--tcp-listen", f"{address}:0", "--session-grace", "5s",
             "--leave-timeout", "5s"])

    def _clock(self, service):
        return self.path(f"clock-of-{service}")

    def set_clock(self, service, seconds):
        """How far the wall clock of a service is ahead."""
        file = os.open(self._clock(service), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(file, struct.pack("=q", seconds), 0)
        os.close(file)

    def operate(self, *command, seconds=PATIENCE):
        """One of the operator's commands: whether it succeeded, and its last line."""
        try:
            done = subprocess.run([*self.enter_of("borrower"), FARPAGE, *command, "--coordinator", self.url], check=False,
                                  capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return False, f"not done after {seconds} s"
        lines = (done.stderr + done.stdout).strip().splitlines()
        return done.returncode == 0, lines[-1] if lines else ""

    def operate_surely(self, *command):
        """The same, until the coordinator has accepted it."""
        wait_until(lambda: self.operate(*command, seconds=20)[0], f"{command}", 2 * PATIENCE)

    # ---- what the disturbances need ----

    def not_whole(self):
        """Why another loss might be one too many; empty: every slab has its replicas."""
        ended = [name for name, service in self._services().items() if service.popen.poll() is not None]
        if ended:
            return f"{', '.join(ended)} ended"
        try:
            nodes = {node["id"]: node["state"] for node in json.loads(self.get("/v1/nodes"))["nodes"]}
            slabs = json.loads(self.get("/v1/cluster"))["slabs"]
            regions = json.loads(self.get("/v1/regions"))["regions"]
        except (OSError, ValueError) as error:
            return f"the coordinator does not answer: {error}"
        absent = [name for name in NODES if nodes.get(name) not in ("alive", "cordoned")]
        if absent:
            return f"{', '.join(absent)} not there: {nodes}"
        lacking = [region["name"] for region in regions if region["counters"].get("farpage_repair_degraded_slabs")]
        if lacking or slabs["degraded"]:
            unfit = [f"{region['name']}/{lease['slab']} on {lease['node']}" for region in regions
                     for lease in region["leases"] if lease.get("lost") or lease.get("stale")]
            return f"{slabs['degraded']} degraded slabs; programs {lacking} lack replicas; lost or stale: {unfit}"
        return ""

    def pagers(self):
        """The processes that have engines."""
        return [*(program.process for program in self.programs if program.running() and not program.of_the_pager),
                self.pager, self.server]

    def kill_engine(self, pager):
        engine = engine_of(pager.pid)
        if engine is None:
            return "it has no engine at the moment"
        try:
            os.kill(engine, signal.SIGKILL)
        except ProcessLookupError:
            return "it has ended"
        wait_until(lambda: engine_of(pager.pid) not in (None, engine) or pager.popen.poll() is not None, "its successor")
        return ""

    def change_budget(self, program, factor):
        return program.change_budget(factor) if program.running() else "it has ended"

    def start_and_kill_a_program(self, transport):
        process = self._owned(self._starters.submit(
            Process, [*self.enter_of("borrower"), FARPAGE, "run", "--coordinator", self.url, "--local", "6M", "--slab",
                      SLAB, "--transport", transport, "--", RANDOM_ACCESS, str(16 * MIB), "1", "3600", "1"],
            self.path(f"{next(self._logs)}-killed.log")).result())
        self._runs.add(process.pid)
        filled = threading.Timer(20, process.kill)  # the coordinator may be away
        filled.start()
        words = process.popen.stdout.readline(), process.popen.stdout.readline()
        filled.cancel()
        filled.join()
        process.end()
        return "filled" if words[1] == b"filled\n" else "before it had memory"

    # ---- one round ----

    def run_round(self, number, seconds):
        """True: nothing was wrong."""
        seed = f"{self.seed}/{number}"
        chance = random.Random(seed)
        replicas = chance.choice((1, 2, 2, 2, 2, 3))
        kinds = ["words", *chance.choices(("words", "access", "sort", "forks", "stress-ng"), (2, 4, 2, 2, 2),
                                          k=chance.randint(1, 2))]
        self.say(f"soak: round {number}: {replicas} replica(s)")
        self.programs = []
        for i, kind in enumerate(kinds):
            self.programs.append(Program(self, f"round-{number}-{i + 1}", kind, chance, replicas, seconds))
            self._runs.add(self.programs[-1].process.pid)
            self.say(f"  {self.programs[-1]}")
        findings = []
        guests = Guests(self, f"round-{number}-guest", chance)
        try:
            wait_until(self.programs[0].is_filled, "the first program has its memory")
        except AssertionError as error:
            findings.append(str(error))
        thrasher = Thrasher(self, seed, replicas, self.say)
        with thrasher:
            end = time.monotonic() + seconds
            while ((time.monotonic() < end or len(thrasher.steps) < LEAST_STEPS) and time.monotonic() < end + PATIENCE
                   and not thrasher.findings and self._all_well()):
                time.sleep(0.1)
        if self._all_well():
            thrasher.await_whole(even_if_over=True)
        findings += thrasher.findings
        guests.end()
        findings += guests.findings
        self.totals["guests"] += guests.restored
        self.totals["checked_bytes"] += guests.pages * 4096
        for program in self.programs:
            program.end()
            self._count(program)
            if program.problem:
                findings.append(f"{program}: {program.problem}")
        findings += [f"{name} has ended" for name, service in self._services().items() if service.popen.poll() is not None]
        for name, service in (("pager", self.pager), ("serve", self.server)):
            findings += [f"{name}: {line}" for line in bad_lines(service.log())]
        self._count_steps(number, thrasher)
        self._say_round(number, thrasher, findings)
        return not findings

    def _all_well(self):
        return not any(program.process.popen.poll() not in (None, 0) or program.problem for program in self.programs)

    def _count(self, program):
        totals = self.totals
        totals["programs"] += 1
        totals["wrong_bytes"] += program.wrong_bytes
        totals["checked_bytes"] += program.checked_bytes
        totals["recorded_operations"] += program.records
        totals["processes"] += len(program.targets)
        for stats in program.targets:
            totals["remote_faults"] += stats["faults"]["remote"]
            totals["evictions"] += stats["evictions"]["written"] + stats["evictions"]["clean"]
            totals["replicas_lost"] += stats["replicas_lost"]

    def _count_steps(self, number, thrasher):
        """What an access has waited for shows shortly after its cause, too."""
        self.left_out.update(thrasher.left_out)
        for step in thrasher.steps:
            longest = max(program.longest_ms(step.begin, step.end + 0.5) for program in self.programs)
            kind = self.kinds.setdefault(step.kind, {"count": 0, "longest_access_ms": 0})
            kind["count"] += 1
            kind["longest_access_ms"] = max(kind["longest_access_ms"], round(longest, 1))
            self.totals["disturbances"] += 1
            self.steps.append({"round": number, "begin": round(step.begin - thrasher.started, 1),
                               "end": round(step.end - thrasher.started, 1), "what": str(step.disturbance),
                               "outcome": step.outcome, "longest_access_ms": round(longest, 1)})

    def _say_round(self, number, thrasher, findings):
        self.totals["rounds"] += 1
        self.say(f"soak: round {number}: {len(thrasher.steps)} disturbances, {len(findings)} findings")
        for program in self.programs:
            self.say(f"  {program.name} {program.kind}: {len(program.targets)} process(es), {program.records} recorded "
                     f"operations, {program.checked_bytes >> 20} MiB checked, {'FAILED' if program.problem else 'right'}")
        for finding in findings:
            self._found(f"round {number}: {finding}")
        if findings:
            self.say(f"soak: again with --seed {self.seed} --round {number}; logs: {self.keep_logs()}")

    def _found(self, finding):
        self.findings.append(finding)
        self.say(f"soak: FINDING {finding}")

    def keep_logs(self):
        """Copies logs, statistics and histories out of the folder that the test removes."""
        folder = os.path.join(BUILD, "soak", str(self.seed))
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        for name in os.listdir(self.folder):
            if name.endswith((".log", ".json")):
                shutil.copy(self.path(name), folder)
            if name.endswith("-history"):
                shutil.copytree(self.path(name), os.path.join(folder, name))
        return folder

    # ---- all rounds ----

    def run_rounds(self, rounds, seconds=40):
        """Runs the numbered rounds, of `seconds` each, until one fails. True: nothing was found."""
        good = True
        for number in rounds:
            good = self.run_round(number, seconds)
            if not good:
                break
        if good:
            self.find_leaks()
        return not self.findings

    def find_leaks(self):
        """Of the coordinator, of the services, then of what is left when these have ended."""
        self.programs = []
        self._expect_nothing(self.held_by_services)
        self._expect_success("serve", self.server)
        self.operate_surely("image", "remove", "guest")
        self._expect_nothing(self.lent_memory)
        for name, pid in self._pids().items():
            if name != "serve":
                self.say(f"  {name}: {leaks.Held(pid)}; before all programs {self._held[name]}")
        # A `farpage run` removes what those that were killed have left in /tmp (cli/run_directory.h).
        self._run_to_its_end(["--coordinator", self.url, "--slab", SLAB], str(MIB))
        for name, service in [("pager", self.pager), *self.nodes.items(), ("coordinator", self.coordinator)]:
            self._expect_success(name, service)
        self._expect_nothing(lambda: self._before.findings(self._marker, self._runs))

    def _expect_success(self, name, service):
        """Of its end."""
        service.kill(signal.SIGTERM)
        status, _ = service.finish(PATIENCE)
        if status != 0:
            self._found(f"{name} ended with status {status} after SIGTERM\n{service.log()[-2000:]}")

    def lent_memory(self):
        """Regions but for the image's, and other slabs that are not free, though no program runs."""
        try:
            regions = json.loads(self.get("/v1/regions"))["regions"]
            nodes = json.loads(self.get("/v1/nodes"))["nodes"]
        except (OSError, ValueError) as error:
            return [f"the coordinator does not answer: {error}"]
        found = [f"region {region['name']} is there with {len(region['leases'])} leases" for region in regions
                 if not region.get("image")]
        of_images = collections.Counter(lease["node"] for region in regions if region.get("image")
                                        for lease in region["leases"])
        found += [f"{node['id']}: {node['free_slabs']} of {node['total_slabs']} slabs are free" for node in nodes
                  if node["free_slabs"] + of_images[node["id"]] != node["total_slabs"]]
        return found + [f"{name} is not there" for name in NODES if name not in {node["id"] for node in nodes}]

    def held_by_services(self):
        found = []
        for name, pid in self._pids().items():
            more = leaks.Held(pid).more_than(self._held[name], MORE_DESCRIPTORS, MORE_THREADS)
            found += [f"{name}: {more}"] if more else []
        return found

    def _expect_nothing(self, find, patience=PATIENCE):
        """Each line that find() still returns then is a finding."""
        last = []
        def nothing():
            last[:] = find()
            return not last
        try:
            wait_until(nothing, "nothing is left behind", patience)
        except AssertionError:
            for line in last:
                self._found(f"leak: {line}")

    def report(self):
        return {"seed": self.seed, "totals": self.totals, "disturbances": dict(sorted(self.kinds.items())),
                "left_out": self.left_out, "steps": self.steps, "findings": self.findings}


def table(report):
    lines = [f"{'disturbance':20} {'count':>6} {'longest access meanwhile':>26}"]
    lines += [f"{name:20} {kind['count']:6} {kind['longest_access_ms']:23.1f} ms"
              for name, kind in report["disturbances"].items()]
    lines += [f"left out: {name}: {reason}" for name, reason in report["left_out"].items()]
    lines += ["", *(f"{name.replace('_', ' '):20} {value:14,}" for name, value in report["totals"].items()), ""]
    return "\n".join(lines + [f"FINDING {finding}" for finding in report["findings"]]
                     + [f"soak: seed {report['seed']}: {len(report['findings'])} findings"])


def main():
    parser = argparse.ArgumentParser(prog="dev soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--round", type=int, default=None, help="this round of the seed alone")
    parser.add_argument("--output", choices=("text", "json"), default="text",
                        help="json: the report as one object on standard output; what happens on standard error")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    def say(text):
        print(text, flush=True, file=sys.stderr if options.output == "json" else sys.stdout)
    say(f"soak: seed {seed}")
    end = time.monotonic() + options.minutes * 60
    until_end = itertools.takewhile(lambda _: time.monotonic() < end, itertools.count())
    soak = Soak()
    try:
        soak.begin(seed, say)
        good = soak.run_rounds(until_end if options.round is None else [options.round])
    finally:
        soak.doCleanups()
    report = soak.report()
    print(json.dumps(report) if options.output == "json" else table(report), flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

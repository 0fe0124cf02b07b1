"""What the end-to-end tests share: a cluster of real processes, and programs under `farpage run`.

Every process that is started here ends with its test, whatever happens: by its process id when the
test is over, and by the kernel when the test itself is killed.
"""
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

BUILD = os.environ["FARPAGE_BUILD"]
FARPAGE = os.path.join(BUILD, "farpage")
RANDOM_ACCESS = os.path.join(BUILD, "tests", "random_access")
PATIENCE = 60  # seconds after which a quick step counts as hung
MIB = 1 << 20

_libc = ctypes.CDLL(None)


def _own_group():
    """A process group to signal, which dies with us. Not a session: the kernel would put each into a
    scheduling group of its own (docs/operations.md, "When threads wait for seconds")."""
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.setpgid(0, 0)


def settled(read, seconds=2):
    """What read() returns when it has been the same for so long: of what comes in bursts."""
    value, since = read(), time.monotonic()
    end = since + PATIENCE
    while time.monotonic() < min(since + seconds, end):
        time.sleep(0.05)
        now = read()
        if now != value:
            value, since = now, time.monotonic()
    return value


def wait_until(condition, what, patience=PATIENCE):
    """Waits for a condition that other processes fulfil; fails with `what` when they do not."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience} s in vain: {what}")
        time.sleep(0.02)


class Process:
    """One process; its standard error goes to a file."""

    def __init__(self, arguments, log, environment=None, stdin=subprocess.DEVNULL):
        self.log_path = log
        with open(log, "wb") as errors:
            self.popen = subprocess.Popen(
                arguments, stdin=stdin, stdout=subprocess.PIPE, stderr=errors,
                env={**os.environ, **(environment or {})}, preexec_fn=_own_group)
        self.pid = self.popen.pid

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def kill(self, number=signal.SIGKILL):
        self.popen.send_signal(number)

    def end(self):
        """SIGKILL; returns when the process has ended."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(PATIENCE)
        self.popen.stdout.close()

    def send(self, text):
        """Writes to its standard input, which must be a pipe."""
        self.popen.stdin.write(text)
        self.popen.stdin.flush()

    def finish(self, patience=240):
        """The exit status as a shell reports it, and standard output."""
        return self.finish_with(None, patience)

    def finish_with(self, text, patience=240):
        """The same, after writing `text` to its standard input, which must be a pipe."""
        try:
            output, _ = self.popen.communicate(text, timeout=patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it hangs\n{self.log()}") from None
        status = self.popen.returncode
        return (128 - status if status < 0 else status), output


class Service(Process):
    """A coordinator or a node that has printed that it is ready."""

    def __init__(self, arguments, log, enter=()):
        super().__init__([*enter, FARPAGE, *arguments, "--output", "json"], log)
        line = self.popen.stdout.readline()
        if not line:
            raise AssertionError(f"{arguments[0]} did not start\n{self.log()}")
        self.ready = json.loads(line)


class EndToEnd(unittest.TestCase):
    """A test with its own directory, which can start a cluster."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="farpage-e2e-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.token = None
        self.url = None
        self.enter = []  # before each command: enters the host that it runs on
        self._started = 0

    def path(self, name):
        return os.path.join(self.folder, name)

    def _log(self, name):
        self._started += 1
        return self.path(f"{self._started}-{name}.log")

    def _owned(self, process):
        self.addCleanup(process.end)
        return process

    def start_process(self, command):
        """Without far memory."""
        return self._owned(Process(command, self._log(os.path.basename(command[0]))))

    def start_with_input(self, command):
        """The same; its standard input is a pipe."""
        return self._owned(Process(command, self._log(os.path.basename(command[0])), stdin=subprocess.PIPE))

    def find(self, program):
        """The path of an installed program; without it the test is skipped."""
        path = shutil.which(program)
        if path is None:
            raise unittest.SkipTest(f"{program} is not installed: ./dev setup")
        return path

    def token_arguments(self):
        return ["--token-file", self.token] if self.token else []

    def start_coordinator(self, *more, listen="127.0.0.1:0"):
        service = self._owned(Service(
            ["coordinator", "--listen", listen, *self.token_arguments(), *more],
            self._log("coordinator"), self.enter))
        self.url = service.ready["url"]
        return service

    def start_node(self, name="node", *more, lend="512M", transports="shm,tcp", leave="1s"):
        return self.start_service(
            ["node", "--coordinator", self.url, *self.token_arguments(), "--name", name,
             "--lend", lend, "--lazy", "--transports", transports, "--heartbeat", "200ms",
             "--shm-socket", self.path(name + ".sock"), "--leave-timeout", leave, *more], name)

    def start_service(self, arguments, name):
        return self._owned(Service(arguments, self._log(name), self.enter))

    def start_cluster(self, nodes=1, transport="shm", lend="512M"):
        """Starts and returns a coordinator and nodes."""
        coordinator = self.start_coordinator()
        return coordinator, [self.start_node(f"node-{i + 1}", lend=lend, transports=transport)
                             for i in range(nodes)]

    def start_run(self, command, local="32M", options=(), stdin=subprocess.DEVNULL,
                  environment=None):
        """Starts `farpage run` in the cluster, or with an embedded one if there is none."""
        where = ["--coordinator", self.url, *self.token_arguments()] if self.url else []
        self.stats_path = self.path("stats.json")
        return self._owned(Process(
            [*self.enter, FARPAGE, "run", *(["--local", local] if local else []), "--stats-file", self.stats_path, *where,
             *options, "--", *command], self._log("run"), environment, stdin))

    def run_far(self, command, **more):
        """Runs it to its end: status, standard output, standard error."""
        process = self.start_run(command, **more)
        status, output = process.finish()
        return status, output, process.log()

    def start_access(self, seconds, transport, replicas=1, deadline=2, size=48 * MIB, local="12M"):
        """Starts a program that touches far memory continuously; returns when it has filled it."""
        return self.start_filled(["--transport", transport, "--replicas", str(replicas), "--fault-deadline",
                                  f"{deadline}s"], seconds=seconds, size=size, local=local)

    def start_filling(self, options, size=48 * MIB, seconds=3600, seed=11, local="12M"):
        """A RANDOM_ACCESS, which fills its memory first."""
        process = self.start_run([RANDOM_ACCESS, str(size), "2", str(seconds), str(seed)], local=local,
                                 options=options)
        self.read_baseline(process)
        return process

    def expect_filled(self, process):
        self.assertEqual(process.popen.stdout.readline(), b"filled\n", process.log())

    def start_filled(self, options, **more):
        process = self.start_filling(options, **more)
        self.expect_filled(process)
        return process

    def read_baseline(self, process):
        """Of a RANDOM_ACCESS that was just started: its resident memory without far memory."""
        name, kilobytes = process.popen.stdout.readline().split()
        self.assertEqual(name, b"baseline_kilobytes")
        return int(kilobytes) * 1024

    def expect_right_end(self, process):
        status, output = process.finish()
        self.assertEqual(status, 0, process.log())
        self.assertIn(b"wrong_bytes 0\n", output)

    def end_access(self, process):
        """Tells a RANDOM_ACCESS to end; returns how long its longest access took, in ms."""
        process.kill(signal.SIGUSR1)
        status, output = process.finish()
        self.assertEqual(status, 0, process.log())
        self.assertIn(b"wrong_bytes 0\n", output)
        return int(output.split(b"longest_ms ")[1])

    def end_without_failure(self, process):
        """The same, of which no fault failed, and no replica was lost."""
        print(f"the longest access took {self.end_access(process)} ms")
        self.assertEqual(self.stats()["faults"]["failed"], 0)
        self.assertEqual(self.stats()["replicas_lost"], 0)

    def node_info(self, name):
        """As the coordinator knows it; None: it does not."""
        nodes = json.loads(self.get("/v1/nodes"))["nodes"]
        return next((node for node in nodes if node["id"] == name), None)

    def slabs_in_use(self, name):
        node = self.node_info(name)
        return node["total_slabs"] - node["free_slabs"]

    def all_stats(self):
        with open(self.stats_path, encoding="utf-8") as file:
            return json.load(file)["targets"]

    def stats(self):
        """Of the first process of the last run that used far memory."""
        return self.all_stats()[0]

    def get(self, path, base=None):
        request = urllib.request.Request((base or self.url) + path)
        if self.token:
            with open(self.token, encoding="utf-8") as file:
                request.add_header("Authorization", "Bearer " + file.read().strip())
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.read().decode()

    def counter(self, name):
        """Of the only region, as of its last heartbeat; 0 before its first."""
        (region,) = json.loads(self.get("/v1/regions"))["regions"]
        return region["counters"].get(name, 0)

    def expect_real_paging(self, transport=None):
        """Fails if the run used too little far memory to prove anything."""
        stats = self.stats()
        fetched = stats["faults"]["remote"] + stats["prefetched_pages"]
        print("fetched", fetched, "written", stats["evictions"]["written"])
        self.assertGreater(fetched, 1000, stats)
        self.assertGreater(stats["evictions"]["written"], 1000, stats)
        self.assertEqual(stats["faults"]["failed"], 0, stats)
        if transport:
            self.assertEqual(stats["transports"], transport)


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            return [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def name_of(pid):
    """The kernel's name of a process; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def child_of(pid):
    """The program that a `farpage run` has started; None: not yet."""
    return next((child for child in children_of(pid) if not name_of(child).startswith("farpage")), None)


def engine_of(pid):
    """The engine below a `farpage run` or `farpage pager`; None: there is none at the moment."""
    for child in children_of(pid):
        if name_of(child) == "farpage-engine":
            return child
        if name_of(child) == "farpage-holder":
            return engine_of(child)
    return None


def replace_engine(pid):
    """Kills the engine below this process; returns when there is another one."""
    engine = engine_of(pid)
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: engine_of(pid) not in (None, engine), "its successor")


def state_of(pid):
    """Its letter in /proc/PID/stat; X when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def connect_as_nobody(path):
    """Connects to a socket as another user does, which takes root: what is said there until it is closed."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        os.seteuid(65534)
        try:
            connection.connect(path)
        finally:
            os.seteuid(0)
        return connection.makefile("rb").read()


def resident_bytes(pid, field="VmRSS"):
    """Of /proc/PID/status; 0 when the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) << 10
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def processes_below(pid):
    children = children_of(pid)
    return children + [below for child in children for below in processes_below(child)]


def far_resident_bytes(pids):
    """Far memory that is resident; a page that several processes share counts once."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps", encoding="utf-8") as file:
                pss = 0
                for line in file:
                    if line.startswith("Pss:"):
                        pss = int(line.split()[1]) << 10
                    elif line.startswith("VmFlags:") and " um" in line:
                        total += pss
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass
    return total


def far_memory_of_run(pid):
    """Of all processes of the `farpage run`."""
    return far_resident_bytes(processes_below(pid))


def _stop(pid, stopped):
    """Parents first: who is stopped does not fork."""
    os.kill(pid, signal.SIGSTOP)
    stopped.append(pid)
    for child in children_of(pid):
        _stop(child, stopped)


def far_memory_at_one_moment(pid):
    """As far_memory_of_run(), with all processes of the program stopped meanwhile: while hundreds of them are
    looked at one by one, pages would move from those that are still to be seen to those that were."""
    return far_memory_while_stopped(*(child for child in children_of(pid) if not name_of(child).startswith("farpage")))


def far_memory_while_stopped(*programs):
    """Of these processes and all below them."""
    stopped = []
    try:
        for program in programs:
            _stop(program, stopped)
        return far_resident_bytes(stopped)
    except (FileNotFoundError, ProcessLookupError):
        return 0  # they are ending
    finally:
        for process in reversed(stopped):
            try:
                os.kill(process, signal.SIGCONT)
            except ProcessLookupError:
                pass


class Sampler:
    """The largest result of `measure`, called each `pause` seconds while the block runs."""

    def __init__(self, measure, pause=0.02):
        self._pause = pause
        self.most = 0
        self.samples = 0
        self._value = measure
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._measure)

    def _measure(self):
        while not self._ended.wait(self._pause):
            self.most = max(self.most, self._value())
            self.samples += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

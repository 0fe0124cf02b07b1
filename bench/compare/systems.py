"""The far memories that are compared: farpage over each transport, and kernel swap on each device.

Each is running() while it is measured, and confine() gives a Place for one run of a program. A program runs in a
memory control group of its own in each of them.
"""
import contextlib
import ctypes.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

import swap_devices

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FARPAGE_BUILD", ROOT / "build/release"))
ENVIRONMENT = dict(os.environ, FARPAGE_LOG_LEVEL="error")


class Place:
    """Where one run of a program takes place, plainly unless a subclass says more."""

    def __init__(self, group, before=(), environment=None):
        self.group, self.before, self.environment = group, before, environment or ENVIRONMENT

    def command(self, words):
        return [*map(str, self.before), *self.group.command(words)]

    def watch(self, process):
        """Called once the command has started, with its Popen."""

    def moved(self):
        """After the run: pages that came back and went away, details of them, and the most memory of this machine
        that the system took beside the group, for its own purposes."""
        return {}


class FarpagePlace(Place):
    def __init__(self, group, before, stats):
        super().__init__(group, [*before[:2], "--stats-file", stats, *before[2:]])
        self.stats, self.beside_bytes = stats, 0

    def watch(self, process):
        """The node and the coordinator are other processes: only the pager is of this machine. It is a child of a child
        of the command."""
        def look():
            while not ended.wait(0.2):
                used = memory_of(process.pid) + sum(map(memory_of, pagers_below(process.pid)))
                self.beside_bytes = max(self.beside_bytes, used)
        ended = self.ended = threading.Event()
        threading.Thread(target=look, daemon=True).start()

    def moved(self):
        self.ended.set()
        with open(self.stats, encoding="ascii") as file:
            targets = json.load(file)["targets"]
        evictions = {kind: sum(target["evictions"][kind] for target in targets)
                     for kind in ("written", "unchanged", "clean", "zero")}
        faults = {kind: sum(target["faults"][kind] for target in targets)
                  for kind in ("remote", "write", "spurious", "rescued")}
        prefetched = sum(target["prefetched_pages"] for target in targets)
        protected = faults["write"] + faults["spurious"] + faults["rescued"]
        return {"pages_in": faults["remote"] + prefetched, "pages_out": evictions["written"],
                "faults_remote": faults["remote"], "faults_write_protect": protected, "faults": faults,
                "prefetched": prefetched, "evictions": evictions, "beside_bytes": self.beside_bytes}


class SwapPlace(Place):
    def __init__(self, group, device, environment=None):
        super().__init__(group, environment=environment)
        self.device, self.before_run = device, swap_devices.pages_moved()
        swap_devices.compressed_bytes(device)

    def moved(self):
        came, went = (now - then for now, then in zip(swap_devices.pages_moved(), self.before_run))
        return {"pages_in": came, "pages_out": went, "beside_bytes": swap_devices.compressed_bytes(self.device)}


def pagers_below(pid):
    """The processes that hold and serve a pager among the descendants."""
    found = []
    with contextlib.suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                for child in map(int, file.read().split()):
                    if name_of(child).startswith("farpage-"):
                        found.append(child)
                    found += pagers_below(child)
    return found


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def memory_of(pid):
    """Anonymous memory and page tables of a process, in bytes; 0: it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return sum(int(lines[name].split()[0]) << 10 for name in ("RssAnon", "VmPTE"))
    except (OSError, KeyError):
        return 0


class Farpage:
    def __init__(self, transport):
        self.name, self.transport = f"farpage {transport}", transport

    @contextlib.contextmanager
    def running(self, size):
        # Scattered memory of a program takes one slab per place.
        self.lend = 2 * size + (512 << 20)
        yield

    @contextlib.contextmanager
    def confine(self, local, group):
        # Idle CPUs poll in the lab, so the fault workers may poll, too.
        polling = ["--poll-mode", "busy"] if "LAB_VM" in os.environ else []
        with tempfile.TemporaryDirectory(prefix="farpage-stats-") as folder:
            yield FarpagePlace(group, [BUILD / "farpage", "run", "--local", local, "--lend", self.lend,
                                       "--transport", self.transport, *polling, "--"], f"{folder}/stats")


class FarpageLibrary:
    """random_touch in a region of the library, whose faults the touching thread resolves itself."""

    def __init__(self, transport):
        self.name, self.transport = f"library, {transport}", transport

    @contextlib.contextmanager
    def running(self, size):
        with service("coordinator", "--listen", "127.0.0.1:0") as ready:
            self.coordinator = ready["url"]
            with service("node", "--coordinator", self.coordinator, "--lend", str(2 * size), "--transports",
                         self.transport, "--leave-timeout", "1s"):
                yield

    @contextlib.contextmanager
    def confine(self, local, group):
        region = f"{self.coordinator} {self.transport} {local}"
        yield Place(group, environment=dict(ENVIRONMENT, RANDOM_TOUCH_REGION=region))


class KernelSwap:
    def __init__(self, name, device, *words, page_cluster=0, environment=None):
        self.name, self.device, self.words, self.page_cluster = f"swap {name}", device, words, page_cluster
        self.environment = environment  # of the programs

    @contextlib.contextmanager
    def running(self, size):
        with self.device(2 * size, *self.words) as path, swap_devices.swap_on(path, self.page_cluster):
            self.path = path
            yield

    @contextlib.contextmanager
    def confine(self, limit, group):
        group.limit(limit)
        yield SwapPlace(group, self.path, self.environment)


@contextlib.contextmanager
def service(*words):
    """A coordinator or a node, with the line that it prints when it is ready."""
    process = subprocess.Popen([BUILD / "farpage", *words, "--output", "json"], stdout=subprocess.PIPE,
                               env=ENVIRONMENT)
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"farpage {words[0]} did not start: status {process.wait()}")
        yield json.loads(line)
    finally:
        process.terminate()
        process.wait()


class Killed(Exception):
    """The kernel found no memory for the program under its limit."""


def unless_killed(system, run, tries=3):
    """What run() returns. Under kernel swap it is retried, and None after the last attempt: reclaim sometimes fails
    although there is swap. Anywhere else a killed program is an error."""
    for _ in range(tries):
        try:
            return run()
        except Killed:
            if not isinstance(system, KernelSwap):
                raise
            print(f"{system.name}: killed, out of memory", file=sys.stderr)
    return None


def chosen(systems, names):
    """Those whose name contains one of `names`; all if `names` is empty. Each name must be in one."""
    called = {name: [system for system in systems if name in system.name] for name in names or [""]}
    unknown = [name for name, found in called.items() if not found]
    if unknown:
        sys.exit(f"no system is called {' or '.join(unknown)} ({', '.join(system.name for system in systems)})")
    return [system for system in systems if any(system in found for found in called.values())]


def libraries_here():
    """For programs that use the library: random_touch."""
    return [] if "LAB_VM" in os.environ else [FarpageLibrary("shm"), FarpageLibrary("tcp")]


def with_read_ahead(name, device, *words, environment=None):
    """Swap on the device twice: one page at a time, and 8 (the kernel's default)."""
    return [KernelSwap(f"{name}, cluster {cluster}", device, *words, page_cluster=cluster, environment=environment)
            for cluster in (0, 3)]


def with_farpages_allocator():
    """An environment in which malloc is that of programs under farpage: mimalloc."""
    library = ctypes.util.find_library("mimalloc") or sys.exit("mimalloc is not installed: ./dev setup programs")
    return dict(ENVIRONMENT, LD_PRELOAD=library)


def systems_here(swaps=lambda *device: [KernelSwap(*device)]):
    """For any program. swaps(name, device, words...): the systems of a device."""
    if "LAB_VM" not in os.environ:
        return [Farpage("shm"), Farpage("tcp"), *swaps("zram", swap_devices.zram),
                *swaps("loop on ramfs", swap_devices.loop)]
    address = os.environ["LAB_IP"]
    return [Farpage("verbs"), *swaps("NVMe-oF/RDMA", swap_devices.nvme_rdma, address),
            *swaps("NBD/TCP", swap_devices.nbd, address), *swaps("zram", swap_devices.zram)]

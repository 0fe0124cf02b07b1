"""Disturbances at random, from a seed: what they are, in which order they come, and when.

Two lanes go on at the same time. The lane `risk` has what may cost a replica: nodes and the links to
them. Before each of its steps it waits until every slab has all its replicas, since the promise is one
loss at a time. The lane `control` has what must cost none, at any moment: the coordinator, engines,
clocks, disks, budgets, orders of the operator. Which steps there are, with all their parameters, follows
from the seed alone; when each begins depends on how long the others take.
"""
import errno
import itertools
import os
import random
import signal
import threading
import time

from cluster import wait_until
from network import rules_of_cut, rules_of_cut_between, rules_of_loss

RISK, CONTROL = "risk", "control"
NODES = ("node-1", "node-2", "node-3", "node-4")
QUIET = 3.0  # seconds for which every slab must be whole: engines tell what they lack each second
WHOLE = 90  # seconds after which replicas that are not made again count as a finding
RUNNING = 0.25  # seconds between looks at the cluster


class Disturbance:
    """One step. `cluster` is that of soak.py."""

    lane = CONTROL
    weight = 1
    blind = False  # the coordinator does not hear of lost replicas meanwhile
    needs_network = False
    least_replicas = 1  # of the programs around it

    def __init__(self, chance, replicas):
        self.seconds = chance.choice((1, 2, 4))  # from do() to undo()

    def __str__(self):
        return f"{self.text()} for {self.seconds} s"

    def text(self):
        return type(self).__name__

    def impossible(self, cluster):
        """Why it cannot be done here; empty: it can."""
        return cluster.no_network if self.needs_network else ""

    def do(self, cluster):
        """Returns what became of it, if that is worth a word."""

    def undo(self, cluster):
        """The same. What do() has begun is over when it returns."""


class OfANode(Disturbance):
    lane = RISK

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.node = chance.choice(NODES)

    def text(self):
        return f"{super().text()} {self.node}"


class NodeKilled(OfANode):
    """SIGKILL; it comes back without its memory."""

    weight = 4
    least_replicas = 2

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.seconds = chance.choice((0, 0.5, 3, 6))

    def do(self, cluster):
        cluster.nodes[self.node].end()

    def undo(self, cluster):
        cluster.start_node_named(self.node)


def pause_of_a_node(chance, replicas):
    """Shorter and longer than a READ may take (1 s) and a node may be silent (2 s). With one replica
    shorter than the deadline of a fault."""
    return chance.choice((0.05, 0.5, 1.5, 3) if replicas == 1 else (0.05, 0.5, 1.5, 4, 8))


class NodeStopped(OfANode):
    """SIGSTOP, SIGCONT."""

    weight = 2

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.seconds = pause_of_a_node(chance, replicas)

    def do(self, cluster):
        cluster.nodes[self.node].kill(signal.SIGSTOP)

    def undo(self, cluster):
        cluster.nodes[self.node].kill(signal.SIGCONT)


class NetworkFault(Disturbance):
    """Rules of the switch."""

    needs_network = True

    def rules(self, cluster):
        raise NotImplementedError

    def do(self, cluster):
        cluster.network.begin_fault(id(self), self.rules(cluster))

    def undo(self, cluster):
        return f"{cluster.network.end_fault(id(self))} frames dropped"


class NodeCut(NetworkFault):
    """From everybody, from the programs, or from the coordinator."""

    lane = RISK
    weight = 3

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.node = chance.choice(NODES)
        self.other = chance.choice((None, "borrower", "control"))
        self.seconds = pause_of_a_node(chance, replicas)

    def text(self):
        return f"NodeCut {self.node} from {self.other or 'all'}"

    def rules(self, cluster):
        host = cluster.hosts[self.node]
        return rules_of_cut_between(host, cluster.hosts[self.other]) if self.other else rules_of_cut(host)


class NodeLossy(NetworkFault):
    """A share of the frames is lost."""

    lane = RISK

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.node = chance.choice(NODES)
        self.percent = chance.choice((1, 5, 20))

    def text(self):
        return f"NodeLossy {self.node} {self.percent} %"

    def rules(self, cluster):
        return rules_of_loss(cluster.hosts[self.node], self.percent)


class NodeSlow(OfANode):
    """Its link has a rate of a few Mbit/s."""

    needs_network = True

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.megabits = chance.choice((5, 20, 100))

    def text(self):
        return f"{super().text()} {self.megabits} Mbit/s"

    def do(self, cluster):
        cluster.network.slow(cluster.hosts[self.node], self.megabits * 1_000_000)

    def undo(self, cluster):
        cluster.network.end_slow(cluster.hosts[self.node])


class BorrowerCut(NetworkFault):
    """The programs from everybody, for less than the deadline of a fault."""

    lane = RISK
    blind = True

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.seconds = chance.choice((0.3, 1.5, 4))

    def rules(self, cluster):
        return rules_of_cut(cluster.hosts["borrower"])


class NodeDrained(OfANode):
    """It leaves when it is empty, and comes back."""

    weight = 2

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.seconds = 0

    def do(self, cluster):
        node = cluster.nodes[self.node]
        empty, line = cluster.operate("drain", self.node, "--timeout", "30s")
        def is_back():
            if node.popen.poll() is None and not empty:
                return cluster.operate("uncordon", self.node, seconds=20)[0]
            node.popen.wait(60)
            cluster.start_node_named(self.node)
            return True
        wait_until(is_back, f"{self.node} is back", 120)
        return line


class NodeLendsLess(OfANode):
    """What it has in use has to move; then it lends as before."""

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.megabytes = chance.choice((16, 32, 64))
        self.seconds = 1

    def text(self):
        return f"{super().text()} {self.megabytes} M"

    def do(self, cluster):
        return cluster.operate("lend", self.node, f"{self.megabytes}M", "--timeout", "20s")[1]

    def undo(self, cluster):
        cluster.operate_surely("lend", self.node, cluster.lend_of_a_node)


class CoordinatorKilled(Disturbance):
    weight = 3
    blind = True

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.seconds = chance.choice((0, 1, 4))

    def do(self, cluster):
        cluster.coordinator.end()

    def undo(self, cluster):
        cluster.start_the_coordinator()


class CoordinatorStopped(Disturbance):
    """Also for longer than a region lives without a heartbeat (10 s)."""

    blind = True

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.seconds = chance.choice((0.2, 1.5, 4, 12))

    def do(self, cluster):
        cluster.coordinator.kill(signal.SIGSTOP)

    def undo(self, cluster):
        cluster.coordinator.kill(signal.SIGCONT)


class CoordinatorCut(NetworkFault):
    """From everybody, or from the programs alone."""

    blind = True

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.from_all = chance.random() < 0.5
        self.seconds = chance.choice((0.5, 3, 12))

    def text(self):
        return f"CoordinatorCut from {'all' if self.from_all else 'borrower'}"

    def rules(self, cluster):
        control = cluster.hosts["control"]
        return rules_of_cut(control) if self.from_all else rules_of_cut_between(control, cluster.hosts["borrower"])


class StoreFull(Disturbance):
    """The disk of the coordinator's store."""

    needs_network = True  # it is in the mount namespace of that host
    blind = True

    def do(self, cluster):
        return f"{fill(cluster.hosts['control'], cluster.store_folder) >> 10} KiB were free"

    def undo(self, cluster):
        os.unlink(filling(cluster.hosts["control"], cluster.store_folder))


class SpillDiskFull(Disturbance):
    """The disk with the files of --spill, whose room is taken already."""

    needs_network = True

    def do(self, cluster):
        return f"{fill(cluster.hosts['borrower'], cluster.spill_folder) >> 20} MiB were free"

    def undo(self, cluster):
        os.unlink(filling(cluster.hosts["borrower"], cluster.spill_folder))


def filling(host, folder):
    """The file that takes all room of a disk of that host."""
    return f"/proc/{host.pid}/root{folder}/filling"


def fill(host, folder):
    """Returns the bytes that were free."""
    taken = 0
    with open(filling(host, folder), "wb") as file:
        for block in (64 << 20, 1 << 20, 4096):
            try:
                while True:
                    os.posix_fallocate(file.fileno(), taken, block)
                    taken += block
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return taken


class ClockJumps(Disturbance):
    """The wall clock of one service, there and back."""

    weight = 2

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.service = chance.choice(("coordinator", *NODES))
        self.jump = chance.choice((1, -1, 60, -60, 86_400, -86_400, 400 * 86_400, -400 * 86_400))

    def text(self):
        return f"ClockJumps {self.service} {self.jump:+} s"

    def do(self, cluster):
        cluster.set_clock(self.service, self.jump)

    def undo(self, cluster):
        cluster.set_clock(self.service, 0)


class OfAProgram(Disturbance):
    """Of one that runs, or of the pager of several."""

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.which = chance.random()

    def text(self):
        return f"{super().text()} #{self.which:.2f}"

    def one(self, pagers):
        return pagers[int(self.which * len(pagers))]


class EngineKilled(OfAProgram):
    """Its holder goes on with another one."""

    weight = 4

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.seconds = 0.3  # engines that die at once are given up

    def do(self, cluster):
        return cluster.kill_engine(self.one(cluster.pagers()))


class ProgramStopped(OfAProgram):
    """With its pager; or the pager of the host alone."""

    blind = True

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.seconds = chance.choice((0.2, 1.5, 4, 12))

    def do(self, cluster):
        self.pid = self.one(cluster.pagers()).pid
        return signal_group(self.pid, signal.SIGSTOP)

    def undo(self, cluster):
        signal_group(self.pid, signal.SIGCONT)


def signal_group(group, number):
    try:
        os.killpg(group, number)
        return ""
    except ProcessLookupError:
        return "it has ended"


class BudgetChanged(OfAProgram):
    weight = 3

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.factor = chance.uniform(0.5, 2)
        self.seconds = 0

    def do(self, cluster):
        return cluster.change_budget(self.one(cluster.programs), self.factor)


class BorrowerKilled(Disturbance):
    """A program of its own, with its pager: SIGKILL. The coordinator takes back what it had."""

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.transport = chance.choice(("tcp", "shm"))
        self.seconds = 0

    def do(self, cluster):
        return cluster.start_and_kill_a_program(self.transport)


class NodeCordoned(Disturbance):
    """Nothing new is placed on it."""

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.node = chance.choice(NODES)

    def text(self):
        return f"NodeCordoned {self.node}"

    def do(self, cluster):
        return cluster.operate("cordon", self.node)[1]

    def undo(self, cluster):
        cluster.operate_surely("uncordon", self.node)


class Rebalanced(Disturbance):
    weight = 2

    def __init__(self, chance, replicas):
        super().__init__(chance, replicas)
        self.seconds = 0

    def do(self, cluster):
        return cluster.operate("rebalance", "--within", "1", seconds=10)[1]


def all_kinds(base=Disturbance):
    """Those that can be made."""
    kinds = base.__subclasses__()
    if not kinds:
        return [base]
    return list(itertools.chain.from_iterable(map(all_kinds, kinds)))


def plan(seed, lane, replicas):
    """The steps of a lane, without end: the pause before each, and what it is."""
    chance = random.Random(f"{seed}/{lane}")
    kinds = [kind for kind in all_kinds() if kind.lane == lane and kind.least_replicas <= replicas]
    weights = [kind.weight for kind in kinds]
    while True:
        pause = chance.uniform(0.2, 2)
        yield pause, chance.choices(kinds, weights)[0](chance, replicas)


class Step:
    """What was done, and when (time.monotonic())."""

    def __init__(self, disturbance, begin):
        self.disturbance = disturbance
        self.begin = begin
        self.end = None
        self.outcome = ""

    @property
    def kind(self):
        return type(self.disturbance).__name__


class Thrasher:
    """Both lanes, in a block. `steps` are those that were done, `left_out` the kinds that could not be,
    with the reason, `findings` what was wrong, and `started` is when (time.monotonic())."""

    def __init__(self, cluster, seed, replicas, say):
        self._cluster = cluster
        self._say = say
        self.started = time.monotonic()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._blind = 0  # disturbances that hide losses
        self._waits_for_whole = False
        self._threads = [threading.Thread(target=self._run, args=(lane, plan(seed, lane, replicas)))
                         for lane in (RISK, CONTROL)]
        self.steps = []
        self.left_out = {}
        self.findings = []

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        """Everything is undone then."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, lane, steps):
        try:
            for pause, disturbance in steps:
                if self._over.wait(pause):
                    return
                reason = disturbance.impossible(self._cluster)
                if reason:
                    self.left_out[type(disturbance).__name__] = reason
                elif not self._await_turn(disturbance):
                    return
                else:
                    self._disturb(disturbance)
        except Exception as error:  # of a thread nobody else would hear
            self.findings.append(f"lane {lane}: {type(error).__name__}: {error}")
            self._say(f"lane {lane} ends: {self.findings[-1]}")

    def _await_turn(self, disturbance):
        """False: it is over."""
        if disturbance.lane == RISK:
            return self.await_whole()
        while disturbance.blind and self._waits_for_whole:
            if self._over.wait(RUNNING):
                return False
        return not self._over.is_set()

    def await_whole(self, even_if_over=False):
        """True: for QUIET seconds every slab has had its replicas, and nothing has hidden a loss."""
        self._waits_for_whole = True
        begin, whole_since = time.monotonic(), None
        try:
            while True:
                if self._over.is_set() and not even_if_over:
                    return False
                why = "something hides losses" if self._blind else self._cluster.not_whole()
                now = time.monotonic()
                if why:
                    whole_since = None
                elif whole_since is None:
                    whole_since = now
                elif now >= whole_since + QUIET:
                    return True
                if why and now > begin + WHOLE:
                    self.findings.append(f"after {WHOLE} s not every slab has its replicas: {why}")
                    return False
                time.sleep(RUNNING)
        finally:
            self._waits_for_whole = False

    def _disturb(self, disturbance):
        with self._lock:
            self._blind += disturbance.blind
        step = Step(disturbance, time.monotonic())
        self._say(f"  {step.begin - self.started:6.1f} s {disturbance.lane:7} {disturbance}")
        done = undone = None
        try:
            done = disturbance.do(self._cluster)
            self._over.wait(disturbance.seconds)
        finally:
            try:
                undone = disturbance.undo(self._cluster)
            finally:
                step.end = time.monotonic()
                step.outcome = "; ".join(filter(None, (done, undone)))
                with self._lock:
                    self._blind -= disturbance.blind
                    self.steps.append(step)
        if step.outcome:
            self._say(f"  {step.end - self.started:6.1f} s {disturbance.lane:7} {disturbance.text()}: {step.outcome}")

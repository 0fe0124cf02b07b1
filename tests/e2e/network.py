"""Several hosts on one machine: namespaces joined by a bridge, the switch.

A host has its own network, host name and boot id, which is what tells two kernels apart; the file
system is shared, so a program that looked at paths alone would take two hosts for one. The
namespaces have no names: they are gone with the processes that hold them, which end with the test
even when it is killed.
"""
import ctypes
import os
import shutil
import subprocess
import threading
import uuid

from cluster import Process

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Which frames the switch drops. Replaces the former rules.
RULES = """
table bridge faults
delete table bridge faults
table bridge faults {{
  chain forward {{
    type filter hook forward priority 0;
    {rules}
  }}
}}
"""


def why_impossible():
    """Why this machine cannot have such hosts; empty if it can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    missing = [tool for tool in ("ip", "nft", "nsenter", "unshare") if not shutil.which(tool)]
    return f"missing: {missing} (./dev setup test)" if missing else ""


def enter_network(test, host):
    """The calling thread, and those that it starts, use the network of the host until the test ends."""
    def enter(descriptor):
        if LIBC.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    test.addCleanup(os.close, own)
    test.addCleanup(enter, own)
    with open(f"/proc/{host.pid}/ns/net", "rb") as file:
        enter(file.fileno())


class Namespace:
    """Namespaces held by a sleeping process."""

    def __init__(self, test, name, *setup):
        line = " && ".join(("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6", *setup,
                            "ip link set lo up", "echo ready", "exec sleep infinity"))
        self._holder = Process(["unshare", "--net", "--mount", "--uts", "sh", "-c", line],
                               test.path(f"namespace-{name}.log"))
        test.addCleanup(self._holder.end)
        if self._holder.popen.stdout.readline() != b"ready\n":
            raise AssertionError(f"no namespaces for {name}\n{self._holder.log()}")
        self.pid = self._holder.pid

    @property
    def enter(self):
        """The prefix of a command that runs here."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--uts", "--"]

    def run(self, *arguments, text=None):
        return subprocess.run([*self.enter, *arguments], input=text, check=True, text=True,
                              capture_output=True, timeout=20).stdout


class Network:
    """The switch and its faults."""

    def __init__(self, test):
        self._test = test
        self._ports = []
        self._faults = {}  # begin_fault(): name, rules
        self._changes = threading.Lock()
        self._has_rules = False
        self._switch = Namespace(test, "switch")
        self._switch.run("ip", "link", "add", "switch", "type", "bridge")
        self._switch.run("ip", "link", "set", "switch", "up")

    def add_host(self, name, own_kernel=True):
        """A Namespace with `address`, reachable from the other hosts, and its `port` here. Without its own
        kernel it can share memory with others of this machine, whatever becomes of the network."""
        setup = [f"hostname {name}"]
        if own_kernel:
            boot_id = self._test.path(f"boot-id-{name}")
            with open(boot_id, "w", encoding="utf-8") as file:
                file.write(f"{uuid.uuid4()}\n")
            setup.append(f"mount --bind {boot_id} {BOOT_ID}")
        host = Namespace(self._test, name, *setup)
        host.port = f"port-{name}"
        self._ports.append(host.port)
        host.address = f"10.66.0.{len(self._ports)}"
        self._switch.run("ip", "link", "add", host.port, "type", "veth", "peer", "name", "eth0",
                         "netns", str(host.pid))
        self._switch.run("ip", "link", "set", host.port, "master", "switch", "up")
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        return host

    def lose_percent(self, percent):
        """Drops this share of the frames, at random, in both directions."""
        self._set_rules([f"numgen random mod 1000 < {percent * 10} counter drop"])

    def cut(self, *hosts):
        """Drops all frames to and from these hosts silently."""
        self._set_rules(rules_of_cut(*hosts))

    def cut_between(self, one, other):
        """Drops all frames between the two hosts."""
        self._set_rules(rules_of_cut_between(one, other))

    def heal(self):
        """Forwards everything again; returns how many frames were dropped until now."""
        self._faults = {}
        return self._set_rules([])

    def begin_fault(self, name, rules):
        """Beside the others that were begun so."""
        with self._changes:
            self._faults[name] = rules
            self._set_rules(sum(self._faults.values(), []))

    def end_fault(self, name):
        """Returns how many frames all faults have dropped since the last change."""
        with self._changes:
            del self._faults[name]
            return self._set_rules(sum(self._faults.values(), []))

    def slow(self, host, bits_per_second):
        """Both directions get this rate, and a queue of up to a quarter of a second."""
        queue = ("root", "tbf", "rate", str(bits_per_second), "burst", "16k", "latency", "250ms")
        self._switch.run("tc", "qdisc", "replace", "dev", host.port, *queue)
        host.run("tc", "qdisc", "replace", "dev", "eth0", *queue)

    def end_slow(self, host):
        self._switch.run("tc", "qdisc", "del", "dev", host.port, "root")
        host.run("tc", "qdisc", "del", "dev", "eth0", "root")

    def _set_rules(self, rules):
        """Returns how many frames the former ones have dropped."""
        dropped = 0
        if self._has_rules:
            words = self._switch.run("nft", "list", "table", "bridge", "faults").split()
            dropped = sum(int(words[i + 1]) for i, word in enumerate(words) if word == "packets")
        self._switch.run("nft", "-f", "-", text=RULES.format(rules="\n    ".join(rules)))
        self._has_rules = True
        return dropped


def rules_of_cut(*hosts):
    return [f'{way} "{host.port}" counter drop' for host in hosts for way in ("iifname", "oifname")]


def rules_of_cut_between(one, other):
    return [f'iifname "{a.port}" oifname "{b.port}" counter drop' for a, b in ((one, other), (other, one))]


def rules_of_loss(host, percent):
    return [f'{way} "{host.port}" numgen random mod 1000 < {percent * 10} counter drop' for way in ("iifname", "oifname")]

"""Several hosts on one machine: namespaces joined by a bridge, the switch.

A host has its own network, host name and boot id, which is what tells two kernels apart; the file
system is shared, so a program that looked at paths alone would take two hosts for one. The
namespaces have no names: they are gone with the processes that hold them, which end with the test
even when it is killed.
"""
import os
import shutil
import subprocess
import uuid

from cluster import Process

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
        self._switch = Namespace(test, "switch")
        self._switch.run("ip", "link", "add", "switch", "type", "bridge")
        self._switch.run("ip", "link", "set", "switch", "up")

    def add_host(self, name):
        """A Namespace with `address`, reachable from the other hosts, and its `port` here."""
        boot_id = self._test.path(f"boot-id-{name}")
        with open(boot_id, "w", encoding="utf-8") as file:
            file.write(f"{uuid.uuid4()}\n")
        host = Namespace(self._test, name, f"hostname {name}", f"mount --bind {boot_id} {BOOT_ID}")
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
        self._set_rules([f'{way} "{host.port}" counter drop' for host in hosts
                         for way in ("iifname", "oifname")])

    def cut_between(self, one, other):
        """Drops all frames between the two hosts."""
        self._set_rules([f'iifname "{a.port}" oifname "{b.port}" counter drop'
                         for a, b in ((one, other), (other, one))])

    def heal(self):
        """Forwards everything again; returns how many frames were dropped until now."""
        words = self._switch.run("nft", "list", "table", "bridge", "faults").split()
        self._set_rules([])
        return sum(int(words[i + 1]) for i, word in enumerate(words) if word == "packets")

    def _set_rules(self, rules):
        self._switch.run("nft", "-f", "-", text=RULES.format(rules="\n    ".join(rules)))

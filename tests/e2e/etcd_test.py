"""Three coordinators on three members of etcd: leaders and members die, stop and are cut off.

FARPAGE_KILLS=50, or the full form, makes it 50 disturbances; FARPAGE_SEED=N repeats their order.
"""
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
import unittest
import urllib.error
import urllib.request

from cluster import FARPAGE, MIB, RANDOM_ACCESS, EndToEnd, Process, Service, settled, wait_until
from verifier import FORM

SERVERS = 3
NODES = 4
PAUSE = 6  # seconds: longer than the lease of a leader
NO_ANSWER = (OSError, http.client.HTTPException)


def free_ports(number):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


class Relay:
    """Forwards connections to a port of this host until they are cut: then nothing comes through."""

    def __init__(self, port):
        self._to = port
        self._lock = threading.Lock()
        self._is_cut = False
        self._open = set()  # ends of connections; the thread that has one closes it
        self._mended = threading.Condition(self._lock)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        with self._lock:
            self._is_cut = True
            for end in self._open:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # its other side has ended

    def mend(self):
        with self._lock:
            self._is_cut = False
            self._mended.notify_all()

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self.cut()
        self.mend()

    def _accept(self):
        with self._listening:
            while True:
                try:
                    near, _ = self._listening.accept()
                except OSError:
                    return
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near):
        with near:
            with self._lock:
                if self._is_cut:
                    self._mended.wait()  # who has connected waits for an answer
                    return
            try:
                far = socket.create_connection(("127.0.0.1", self._to), timeout=5)
            except OSError:
                return
            with far:
                far.settimeout(None)
                with self._lock:
                    if self._is_cut:
                        return
                    self._open |= {near, far}
                back = threading.Thread(target=self._forward, args=(far, near), daemon=True)
                back.start()
                self._forward(near, far)
                back.join()
                with self._lock:
                    self._open -= {near, far}

    @staticmethod
    def _forward(source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class Etcd(EndToEnd):
    def setUp(self):
        super().setUp()
        self.find("etcd")
        version = subprocess.run(["etcd", "--version"], check=True, capture_output=True, text=True).stdout.split()[2]
        if tuple(map(int, version.split(".")[:2])) < (3, 4):
            raise unittest.SkipTest(f"etcd {version} has no /v3 for JSON: 3.4 is needed")
        self.token = self.path("token")
        with open(self.token, "w", encoding="utf-8") as file:
            file.write("0123456789abcdef0123456789abcdef\n")
        os.chmod(self.token, 0o600)

    # ---- etcd ----

    def start_etcd(self, members, name="m"):
        self.etcd_name = name
        self.client_ports = free_ports(members)
        self.peer_ports = free_ports(members)
        self.members = [self.start_member(index) for index in range(members)]
        wait_until(lambda: all(self.is_healthy(index) for index in range(members)), "etcd answers")
        self.etcd_urls = ",".join(f"http://127.0.0.1:{port}" for port in self.client_ports)

    def start_member(self, index):
        peers = [f"http://127.0.0.1:{port}" for port in self.peer_ports]
        client = f"http://127.0.0.1:{self.client_ports[index]}"
        return self.start_process([
            "etcd", "--name", f"m{index}", "--data-dir", self.path(f"{self.etcd_name}{index}"),
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peers[index],
            "--initial-advertise-peer-urls", peers[index],
            "--initial-cluster", ",".join(f"m{i}={url}" for i, url in enumerate(peers))])

    def is_healthy(self, index):
        try:
            url = f"http://127.0.0.1:{self.client_ports[index]}/health"
            with urllib.request.urlopen(url, timeout=2) as reply:
                return json.load(reply)["health"] == "true"
        except NO_ANSWER:
            return False

    # ---- coordinators ----

    def start_coordinators(self, urls=None):
        """Each reaches etcd through relays of its own."""
        self.urls = urls or [f"http://127.0.0.1:{port}" for port in free_ports(SERVERS)]
        self.relays = [[Relay(port) for port in self.client_ports] for _ in self.urls]
        for relays in self.relays:
            for relay in relays:
                self.addCleanup(relay.close)
        self.coordinators = [self.start_one(index) for index in range(SERVERS)]
        self.url = ",".join(self.urls)
        wait_until(lambda: self.leader() is not None, "one is elected")

    def start_one(self, index):
        etcd = ",".join(f"http://127.0.0.1:{relay.port}" for relay in self.relays[index])
        return self._owned(Service(
            ["coordinator", "--listen", self.urls[index].removeprefix("http://"), *self.token_arguments(),
             "--store", "etcd:" + etcd, "--region-ttl", "10s"], self._log(f"coordinator-{index}")))

    def leads(self, index):
        try:
            with urllib.request.urlopen(self.urls[index] + "/readyz", timeout=1) as reply:
                return reply.status == 200
        except NO_ANSWER:
            return False

    def leader(self, but=None):
        """Its index; None: there is none."""
        return next((index for index in range(SERVERS) if index != but and self.leads(index)), None)

    def seconds_until(self, condition, what):
        begin = time.monotonic()
        wait_until(condition, what)
        return time.monotonic() - begin

    def request(self, method, path, body=None, base=None):
        """The answer of the coordinator that leads, which is looked for."""
        answer = None

        def is_answered():
            nonlocal answer
            for url in [base] if base else self.urls:
                data = None if body is None else json.dumps(body).encode()
                request = urllib.request.Request(url + path, method=method, data=data)
                with open(self.token, encoding="utf-8") as file:
                    request.add_header("Authorization", "Bearer " + file.read().strip())
                if data:
                    request.add_header("Content-Type", "application/json")
                try:
                    with urllib.request.urlopen(request, timeout=15) as reply:
                        answer = reply.read().decode()
                        return True
                except urllib.error.HTTPError as error:
                    if error.code != 503:
                        raise AssertionError(f"{method} {path}: {error.code} {error.read()}") from error
                except NO_ANSWER:
                    pass
            return False

        wait_until(is_answered, f"{method} {path}")
        return json.loads(answer) if answer else None

    def regions(self):
        return self.request("GET", "/v1/regions")["regions"]

    def only_region(self):
        """The id of the region of the one program that runs."""
        (region,) = self.regions()
        return region["id"]

    def leases_of(self, region):
        """What the region of that id has: (slab, replica, node, node_slab, generation)."""
        (region,) = [known for known in self.regions() if known["id"] == region]
        self.assertFalse([lease for lease in region["leases"] if lease["lost"]])
        return sorted((lease["slab"], lease["replica"], lease["node"], lease["node_slab"], lease["generation"])
                      for lease in region["leases"])

    def expect_no_slab_leased_twice(self):
        seen = {}
        for region in self.regions():
            for lease in region["leases"]:
                if lease["lost"]:
                    continue
                place = lease["node"], lease["node_slab"]
                self.assertNotIn(place, seen, f"{region['id']} and {seen.get(place)}")
                seen[place] = region["id"]

    def nodes_agree(self):
        """Whether the nodes lend what the coordinator has leases for, and nothing else."""
        held = {node["id"]: 0 for node in self.request("GET", "/v1/nodes")["nodes"]}
        agents = {node["id"]: node["agent_url"] for node in self.request("GET", "/v1/nodes")["nodes"]}
        for region in self.regions():
            for lease in region["leases"]:
                held[lease["node"]] += 1
        return all(json.loads(self.get("/v1/status", agents[name]))["slabs"]["leased"] == leased
                   for name, leased in held.items())

    # ---- disturbances: each returns how long it took until a coordinator led ----

    def kill_leader(self):
        leader = self.leader()
        self.coordinators[leader].end()
        taken = self.seconds_until(lambda: self.leader() is not None, "another one leads")
        self.coordinators[leader] = self.start_one(leader)
        return taken

    def stop_leader(self):
        leader = self.leader()
        self.coordinators[leader].kill(signal.SIGSTOP)
        begin = time.monotonic()
        taken = self.seconds_until(lambda: self.leader(but=leader) is not None, "another one leads")
        time.sleep(max(0.0, PAUSE - (time.monotonic() - begin)))
        self.coordinators[leader].kill(signal.SIGCONT)
        wait_until(lambda: not self.leads(leader), "the former leader follows")
        return taken

    def cut_leader(self):
        leader = self.leader()
        for relay in self.relays[leader]:
            relay.cut()
        begin = time.monotonic()
        taken = self.seconds_until(lambda: self.leader(but=leader) is not None, "another one leads")
        self.assertFalse(self.leads(leader), "two coordinators lead")
        time.sleep(max(0.0, PAUSE - (time.monotonic() - begin)))
        for relay in self.relays[leader]:
            relay.mend()
        return taken

    def kill_member(self):
        member = self.random.randrange(SERVERS)
        self.members[member].end()
        begin = time.monotonic()
        self.lease_and_return()
        taken = time.monotonic() - begin
        self.members[member] = self.start_member(member)
        wait_until(lambda: self.is_healthy(member), "the member is back")
        return taken

    def stop_member(self):
        member = self.random.randrange(SERVERS)
        self.members[member].kill(signal.SIGSTOP)
        begin = time.monotonic()
        self.lease_and_return()
        taken = time.monotonic() - begin
        time.sleep(3)  # the others elect another leader of etcd, if it was this one
        self.lease_and_return()
        self.members[member].kill(signal.SIGCONT)
        wait_until(lambda: self.is_healthy(member), "the member is back")
        return taken

    def lease_and_return(self):
        """A region with leases, made and deleted; what a lost answer has left ends by silence."""
        self.regions_made += 1
        region = self.request("POST", "/v1/regions", {
            "name": f"short-{self.regions_made}", "bytes": 3 * 2 * MIB, "replicas": 2, "slab_bytes": 2 * MIB})
        places = [(lease["node"], lease["node_slab"]) for lease in region["leases"]]
        self.assertEqual(len(set(places)), 6)
        self.expect_no_slab_leased_twice()
        try:
            self.request("DELETE", "/v1/regions/" + region["id"])
        except AssertionError as error:
            if " 404 " not in str(error):  # the answer to the first request was lost
                raise

    def test_leaders_and_members_die_and_programs_do_not_notice(self):
        seed = int(os.environ.get("FARPAGE_SEED", str(random.randrange(1 << 30))))
        kills = int(os.environ.get("FARPAGE_KILLS", "50" if FORM == "full" else "5"))
        print(f"FARPAGE_SEED={seed} FARPAGE_KILLS={kills}", flush=True)
        self.random = random.Random(seed)
        self.regions_made = 0
        self.start_etcd(SERVERS)
        self.start_coordinators()
        for index in range(NODES):
            self.start_node(f"node-{index}", "--slab", "2M", transports="tcp", lend="128M")
        long = self.start_filled(["--transport", "tcp", "--slab", "2M", "--replicas", "2"])
        stats = self.stats_path
        region = self.only_region()
        before = settled(lambda: self.leases_of(region))
        self.assertGreater(len(before), 40)
        kinds = [self.kill_leader, self.stop_leader, self.cut_leader, self.kill_member, self.stop_member]
        times = {}
        for number in range(kills):
            disturb = kinds[number] if number < len(kinds) else self.random.choice(kinds)
            brief = Process([FARPAGE, "run", "--local", "2M", "--coordinator", self.url, *self.token_arguments(),
                             "--transport", "tcp", "--slab", "2M", "--replicas", "2", "--", RANDOM_ACCESS,
                             str(8 * MIB), "2", "1", str(number)], self._log("brief"))
            self.addCleanup(brief.end)
            time.sleep(self.random.uniform(0, 0.3))
            taken = disturb()
            times.setdefault(disturb.__name__, []).append(taken)
            print(f"{number + 1}: {disturb.__name__} {taken:.2f} s", flush=True)
            self.lease_and_return()
            self.assertEqual(self.leases_of(region), before)
            self.expect_right_end(brief)
        for name, list_of in sorted(times.items()):
            print(f"{name}: {len(list_of)} times, longest {max(list_of):.2f} s")
            if FORM == "full" and name.endswith("_leader"):
                self.assertLess(max(list_of), 5)
        wait_until(self.nodes_agree, "nodes and coordinator agree on what is lent", patience=120)
        self.stats_path = stats
        self.assertNotIn("region_recreated", long.log())
        self.end_without_failure(long)
        wait_until(lambda: not any(known["id"] == region for known in self.regions()), "its region is returned")

    def test_who_does_not_lead_names_the_leader(self):
        self.start_etcd(1)
        self.start_coordinators()
        leader = self.leader()
        for index, url in enumerate(self.urls):
            if index == leader:
                cluster = json.loads(self.get("/v1/cluster", url))
                self.assertEqual((cluster["store"], cluster["leader"]), ("etcd", url))
                continue
            wait_until(lambda url=url: self.named_by(url) == self.urls[leader], "it has found the leader")
            self.assertIn("farpage_coordinator_leads 0", self.get("/metrics", url))
            status = subprocess.run([FARPAGE, "status", "--coordinator", url, *self.token_arguments()], check=False,
                                    capture_output=True, text=True, timeout=60)
            self.assertEqual(status.returncode, 1)
            self.assertIn(self.urls[leader], status.stderr)
        begin = time.monotonic()
        self.coordinators[leader].kill(signal.SIGTERM)
        wait_until(lambda: self.leader() is not None, "another one leads")
        print(f"after a SIGTERM another one led in {time.monotonic() - begin:.2f} s")
        self.assertEqual(self.coordinators[leader].finish()[0], 0)
        status = subprocess.run([FARPAGE, "status", "--coordinator", self.url, *self.token_arguments()], check=False,
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(status.returncode, 0, status.stderr)

    def named_by(self, url):
        try:
            self.get("/v1/cluster", url)
            return None
        except urllib.error.HTTPError as error:
            self.assertEqual(error.code, 503)
            return json.load(error)["leader"]

    def coordinator_command(self, *more):
        return subprocess.run([FARPAGE, "coordinator", "--store", "etcd:" + self.etcd_urls, *more], check=False,
                              capture_output=True, text=True, timeout=60)

    def test_backup_of_one_etcd_is_restored_into_another_one(self):
        self.start_etcd(1)
        self.start_coordinators()
        for name in ("node-1", "node-2"):
            self.start_node(name, "--slab", "2M", transports="tcp", lend="128M")
        process = self.start_filled(["--transport", "tcp", "--slab", "2M"], seed=3)
        region = self.only_region()
        before = settled(lambda: self.leases_of(region))
        done = self.coordinator_command("--backup", self.path("copy.db"))
        self.assertEqual(done.returncode, 0, done.stderr)
        refused = self.coordinator_command("--restore", self.path("copy.db"))
        self.assertEqual(refused.returncode, 1)
        self.assertIn("stop all of them first", refused.stderr)
        for coordinator in self.coordinators:
            coordinator.end()
        self.members[0].end()
        urls = self.urls
        self.start_etcd(1, "other")
        done = self.coordinator_command("--restore", self.path("copy.db"))
        self.assertEqual(done.returncode, 0, done.stderr)
        again = self.coordinator_command("--restore", self.path("copy.db"))
        self.assertEqual(again.returncode, 1)
        self.assertIn("etcdctl del --prefix /farpage/v1/", again.stderr)
        self.start_coordinators(urls)
        self.assertEqual(self.leases_of(region), before)
        self.end_access(process)
        self.assertNotIn("region_recreated", process.log())


if __name__ == "__main__":
    unittest.main()

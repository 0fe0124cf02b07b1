#!/usr/bin/env python3
"""program_figures_test.py SOURCE_DIR: what `./dev bench programs` makes of --systems and of its samples."""
import math
import os
import pathlib
import signal
import subprocess
import sys
import unittest
from html.parser import HTMLParser

sys.path.insert(0, str(pathlib.Path(sys.argv.pop(1)) / "bench" / "compare"))
import figures  # noqa: E402
import programs_page  # noqa: E402
import systems  # noqa: E402
import tables  # noqa: E402

SHM, TCP, ZRAM, ZRAM3, LOOP = ("farpage shm", "farpage tcp", "swap zram, cluster 0", "swap zram, cluster 3",
                               "swap loop on ramfs, cluster 0")
MIB = 1 << 20


def plain(program, rates, number=1):
    return {"round": number, "program": program, "system": "plain", "share": 100, "peak_bytes": 600 * MIB,
            "rates": rates}


def far(program, system, rates, number=1, **more):
    return {"round": number, "program": program, "system": system, "share": 50, "limit_bytes": 300 * MIB,
            "peak_bytes": 300 * MIB, "rates": rates, "pages_in": 1000, "pages_out": 2000, "beside_bytes": 3 * MIB,
            **more}


def failed(program, system, number=1, how="killed"):
    return {"round": number, "program": program, "system": system, "share": 50, "limit_bytes": 300 * MIB,
            "rates": None, how: True}


def run(seconds):
    return {"run": 1 / seconds}


def report(samples):
    return {"date": "2026-11-25T00:00Z", "kernel": "6.18", "cpus": 2, "commit": "0123456789ab", "scale": 1,
            "rounds": 5, "huge_pages": "madvise", "command": ["./dev", "bench", "programs", "<sort>"],
            "samples": samples}


# sort: shm 2x, zram 4x. join: shm 8x, zram 2x. redis: shm GET 1x, SET 4x, which is 2x; zram 1x both.
THREE = [plain("sort", run(10)), far("sort", SHM, run(20)), far("sort", ZRAM, run(40)),
         plain("join", run(5)), far("join", SHM, run(40)), far("join", ZRAM, run(10)),
         plain("redis", {"GET": 800, "SET": 800}), far("redis", SHM, {"GET": 800, "SET": 200}),
         far("redis", ZRAM, {"GET": 800, "SET": 800})]


class Figures(unittest.TestCase):
    def test_a_slowdown_is_the_median_of_the_rounds(self):
        samples = [plain("sort", run(10), 1), plain("sort", run(11), 2), plain("sort", run(90), 3),
                   far("sort", SHM, run(22), 1), far("sort", SHM, run(44), 2), far("sort", SHM, run(33), 3)]
        cell = figures.cell(samples, "sort", "run", SHM, 50)
        self.assertAlmostEqual(cell.slowdown, 3)
        self.assertAlmostEqual(cell.least, 2)
        self.assertAlmostEqual(cell.most, 4)

    def test_the_median_of_two_rounds_is_that_of_the_rates(self):
        samples = [plain("redis", {"GET": 100}), far("redis", SHM, {"GET": 20}, 1), far("redis", SHM, {"GET": 60}, 2)]
        self.assertAlmostEqual(figures.cell(samples, "redis", "GET", SHM, 50).slowdown, 2.5)

    def test_what_was_not_measured_has_no_cell(self):
        self.assertIsNone(figures.cell(THREE, "sort", "run", TCP, 50))
        self.assertIsNone(figures.cell(THREE, "sort", "run", SHM, 25))

    def test_a_geometric_mean(self):
        self.assertAlmostEqual(figures.geometric_mean([1, 10, 100]), 10)

    def test_a_program_counts_once_in_a_mean(self):
        found = figures.means(THREE, 50)
        self.assertAlmostEqual(found[SHM].value, (2 * 8 * 2) ** (1 / 3))
        self.assertAlmostEqual(found[ZRAM].value, (4 * 2 * 1) ** (1 / 3))
        self.assertEqual(found[SHM].left_out, [])

    def test_a_failed_round_counts_as_the_slowest(self):
        samples = [plain("sort", run(10)), *(far("sort", ZRAM, run(10 * number), number) for number in (3, 1, 2)),
                   failed("sort", ZRAM, 4), failed("sort", ZRAM, 5, "late")]
        cell = figures.cell(samples, "sort", "run", ZRAM, 50)
        self.assertAlmostEqual(cell.slowdown, 3)
        self.assertAlmostEqual(cell.most, 3)
        self.assertEqual((cell.killed, cell.late), (1, 1))
        self.assertIsNone(figures.cell([*samples, failed("sort", ZRAM, 6)], "sort", "run", ZRAM, 50).slowdown)

    def test_a_run_without_a_rate_was_killed(self):
        samples = [plain("sort", run(10)), {"program": "sort", "system": ZRAM, "share": 50, "rates": None}]
        self.assertEqual(figures.cell(samples, "sort", "run", ZRAM, 50).killed, 1)

    def test_killed_attempts(self):
        samples = [failed("sort", ZRAM) | {"attempts": 3}, far("join", ZRAM, run(1), attempts=2),
                   far("xz", ZRAM, run(1), attempts=1), failed("java", ZRAM, how="late") | {"attempts": 1}]
        self.assertEqual(figures.killed_attempts(samples, ZRAM), (4, 7))

    def test_a_mean_leaves_out_programs_that_one_system_failed(self):
        for how in ("killed", "late"):
            with self.subTest(how):
                found = figures.means(THREE + [failed("join", ZRAM, 2, how)], 50)
                self.assertAlmostEqual(found[SHM].value, (2 * 2) ** 0.5)
                self.assertEqual(found[SHM].programs, ["sort", "redis"])
                self.assertEqual(found[ZRAM].left_out, ["join"])

    def test_a_mean_of_no_program(self):
        samples = [plain("sort", run(10)), failed("sort", ZRAM)]
        self.assertIsNone(figures.means(samples, 50)[ZRAM].value)
        self.assertEqual(figures.means(samples, 50)[ZRAM].left_out, ["sort"])

    def test_a_ratio_names_its_worst_program(self):
        found = figures.ratio(THREE, SHM, ZRAM, 50)
        self.assertAlmostEqual(found.mean.value, (0.5 * 4 * 2) ** (1 / 3))
        self.assertEqual(found.worst_program, "join")
        self.assertAlmostEqual(found.worst, 4)

    def test_a_ratio_is_of_the_programs_that_both_ran(self):
        found = figures.ratio([*THREE, plain("xz", run(1)), far("xz", SHM, run(2)), failed("xz", ZRAM)], SHM, ZRAM, 50)
        self.assertAlmostEqual(found.mean.value, (0.5 * 4 * 2) ** (1 / 3))
        self.assertEqual(found.mean.left_out, ["xz"])

    def test_what_only_the_first_failed_is_the_worst_of_a_ratio(self):
        for how in ("killed", "late"):
            with self.subTest(how):
                samples = [*THREE, plain("xz", run(1)), failed("xz", SHM, how=how), far("xz", ZRAM, run(2))]
                found = figures.ratio(samples, SHM, ZRAM, 50)
                self.assertEqual((found.worst, found.worst_program), (math.inf, "xz"))
                self.assertAlmostEqual(found.mean.value, (0.5 * 4 * 2) ** (1 / 3))
                self.assertEqual(found.mean.left_out, ["xz"])

    def test_what_both_failed_or_the_first_did_not_run_is_not_the_worst_of_a_ratio(self):
        samples = [*THREE, plain("xz", run(1)), failed("xz", SHM), failed("xz", ZRAM), plain("java", run(1)),
                   far("java", ZRAM, run(1))]
        found = figures.ratio(samples, SHM, ZRAM, 50)
        self.assertEqual(found.worst_program, "join")
        self.assertEqual(found.mean.left_out, ["xz", "java"])

    def test_rounds_are_those_of_the_program_that_had_the_fewest(self):
        self.assertEqual(figures.least_rounds([*THREE, plain("sort", run(9), 2), far("sort", SHM, run(9), 2)]), 1)
        self.assertEqual(figures.least_rounds([plain("sort", run(9)), plain("sort", run(9), 2)]), 2)

    def test_the_pairs_of_the_systems(self):
        self.assertEqual(figures.pairs_of([SHM, TCP, ZRAM, ZRAM3, LOOP]),
                         [(SHM, ZRAM), (SHM, ZRAM3), (TCP, SHM), (TCP, LOOP)])
        self.assertEqual(figures.pairs_of([ZRAM, LOOP]), [])

    def test_the_peak_above_the_limit(self):
        self.assertAlmostEqual(figures.over_limit_percent({"rates": {}, "peak_bytes": 103, "limit_bytes": 100}), 3)


class Tables(unittest.TestCase):
    def test_all_tables(self):
        text = tables.all_tables(report([*THREE, failed("sort", ZRAM3), far("join", ZRAM3, run(7))]))
        for part in ("sort: plain 10.00 s, peak 600 MiB", "redis: plain 800 GET/s", "2.00x", "killed",
                     "without sort, redis (killed", f"{SHM} / {ZRAM}, 50 %: 1.59; worst: join, 4.00"):
            self.assertIn(part, text)

    def test_a_program_that_only_the_first_system_failed(self):
        samples = [*THREE, plain("xz", run(1)), failed("xz", SHM), far("xz", ZRAM, run(2))]
        self.assertIn(f"{SHM} / {ZRAM}, 50 %: 1.59; worst: xz, failed (without xz)", tables.all_tables(report(samples)))
        self.assertIn("<td>1.59</td><td>failed</td><td class=word>xz (without xz)</td>",
                      programs_page.page(report(samples)))
        only = [plain("xz", run(1)), failed("xz", SHM), far("xz", ZRAM, run(2))]
        self.assertIn(f"{SHM} / {ZRAM}, 50 %: -; worst: xz, failed", tables.all_tables(report(only)))

    def test_an_interrupted_round_does_not_count(self):
        samples = [*THREE, plain("sort", run(9), 2)]
        self.assertIn("1 of 5 rounds", tables.all_tables(report(samples)))
        self.assertIn("1 of 5 of each program", programs_page.page(report(samples)))

    def test_rounds_that_were_killed_are_marked(self):
        text = tables.all_tables(report([*THREE, far("join", ZRAM, run(12), 2), failed("join", ZRAM, 3)]))
        self.assertIn("2.40x!", text)

    def test_an_interrupted_run(self):
        self.assertIn("no run", tables.all_tables(report([plain("sort", run(1))])))
        self.assertIn("2.00x", tables.all_tables(report(THREE[:2])))


class Nesting(HTMLParser):
    """Counts the open elements."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag


class Page(unittest.TestCase):
    def test_a_page_is_well_formed_and_has_a_dot_for_each_case(self):
        parser = Nesting()
        text = programs_page.page(report([*THREE, failed("sort", ZRAM3)]))
        parser.feed(text)
        self.assertEqual(parser.open, [])
        # Four cases in two systems, and the legend of three.
        self.assertEqual(parser.seen.count("circle"), 4 * 2 + 3)
        self.assertEqual(parser.seen.count("path"), 1)
        self.assertIn("&lt;sort&gt;", text)

    def test_an_axis_contains_its_values(self):
        axis = programs_page.Axis([0.8, 37])
        self.assertEqual((axis.least, axis.most), (0.5, 50))
        self.assertAlmostEqual(axis.x(50), programs_page.WIDTH - programs_page.RIGHT)
        self.assertAlmostEqual(axis.x(0.5), programs_page.LEFT)


class Named:
    def __init__(self, name):
        self.name = name


# A process whose child has another name, and a child that is called like a pager.
FAMILY = """
import ctypes, os, signal
name = ctypes.CDLL(None).prctl
if os.fork() == 0:
    name(15, b"node", 0, 0, 0)
    if os.fork() == 0:
        name(15, b"farpage-engine", 0, 0, 0)
        pages = b"x" * (50 << 20)
        print(os.getpid(), flush=True)
signal.pause()
"""


class Watching(unittest.TestCase):
    def test_the_pager_is_found_below_the_command(self):
        with subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True) as parent:
            try:
                pager = int(parent.stdout.readline())
                self.assertEqual(systems.pagers_below(parent.pid), [pager])
                self.assertGreater(systems.memory_of(pager), 50 * MIB)
            finally:
                os.killpg(parent.pid, signal.SIGKILL)
        self.assertEqual(systems.pagers_below(parent.pid), [])
        self.assertEqual(systems.memory_of(parent.pid), 0)


class Systems(unittest.TestCase):
    def chosen(self, *names):
        return [system.name for system in systems.chosen([Named(name) for name in (SHM, TCP, ZRAM, ZRAM3)], names)]

    def test_a_part_of_the_name_chooses_and_each_system_is_chosen_once(self):
        self.assertEqual(self.chosen(), [SHM, TCP, ZRAM, ZRAM3])
        self.assertEqual(self.chosen("zram", "cluster 3", "shm"), [SHM, ZRAM, ZRAM3])

    def test_a_name_of_no_system_is_an_error_also_beside_one_that_matches(self):
        for names in (["shm", "verbs", "nbd"], ["verbs", "nbd"]):
            with self.assertRaises(SystemExit) as error:
                self.chosen(*names)
            self.assertEqual(str(error.exception), f"no system is called verbs or nbd ({SHM}, {TCP}, {ZRAM}, {ZRAM3})")

    def test_under_swap_programs_have_the_environment_that_was_chosen(self):
        given = {"LD_PRELOAD": "libmimalloc.so.2"}
        both = systems.with_read_ahead("zram", None, environment=given)
        self.assertEqual([(system.name, system.environment) for system in both], [(ZRAM, given), (ZRAM3, given)])
        self.assertEqual([system.environment for system in systems.with_read_ahead("zram", None)], [None, None])


if __name__ == "__main__":
    unittest.main()

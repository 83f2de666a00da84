"""Speed as ratios of one run: reads the Google Benchmark files of a folder and prints what the project promises. Ends with 1
where a promise is missed that is not KNOWN to be, or cannot be judged for want of its row."""
import argparse
import json
import pathlib
import sys

# Promises that docs/simulator.md lists as missed.
KNOWN = {"config_to_answer_times", "config_to_answer_full"}
# Rows of a library that is not there on every machine.
OPTIONAL = ("simgrid_",)


class Judge:
    def __init__(self, folder, partial):
        self.partial = partial
        self.failures = []
        self.rows = {}
        for file in sorted(folder.glob("*.json")):
            for row in json.loads(file.read_text()).get("benchmarks", []):
                self.rows[row["name"]] = row

    def find(self, name):
        """The row of a benchmark, with or without arguments behind its name."""
        row = next((r for n, r in self.rows.items() if n == name or n.startswith(name + "/")), None)
        missing = f"no row of the benchmark {name}"
        if row is None and not self.partial and not name.startswith(OPTIONAL) and missing not in self.failures:
            self.failures.append(missing)
        return row

    def show(self, name, what, value, target="", good=True):
        verdict = "" if good else "missed, as known" if name in KNOWN else "MISSED"
        print(f"  {what:<66} {value:>14}   {target:<10} {verdict}")
        if not good and name not in KNOWN:
            self.failures.append(f"{what}: {value}, promised {target}")


def seconds(row):
    return row["real_time"] * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}[row["time_unit"]]


def instructions(judge):
    floor, folded, memory = judge.find("floor"), judge.find("folded_times"), judge.find("folded_memory")
    if not (floor and folded and memory):
        return
    ns, least = folded["ns_per_instruction"], floor["ns_per_instruction"]
    judge.show("folded_times", "simulate a ready plan, 32 ranks folded: ns an instruction", f"{ns:.1f}", "<= 130", ns <= 130)
    judge.show("floor", "the same over the floor (bare list scheduling with memory)", f"{ns / least:.1f} x", "<= 5 x", ns <= 5 * least)
    judge.show("folded_memory", "  with the exact allocator: ns an instruction", f"{memory['ns_per_instruction']:.1f}")


def simgrid(judge):
    for ranks in (64, 256):
        name = f"foreshard_fluid/{ranks}"
        ours, theirs = judge.find(name), judge.find(f"simgrid_fluid/{ranks}")
        if not ours or not theirs:
            continue
        ratio = seconds(theirs) / seconds(ours)
        judge.show(name, f"{ranks} ranks, links shared: SimGrid's fluid model over ours", f"{ratio:.1f} x", ">= 10 x", ratio >= 10)
        apart = abs(ours["step_s"] / theirs["step_s"] - 1)
        judge.show(name, "  simulated step, difference", f"{100 * apart:.2f} %", "<= 1 %", apart <= 0.01)
    ours, theirs = judge.find("foreshard_fluid/64"), judge.find("simgrid_rounds/64")
    if ours and theirs:
        ratio = seconds(theirs) / seconds(ours)
        judge.show("simgrid_rounds/64", "64 ranks: SimGrid's ring rounds over our flows (no rounds here)", f"{ratio:.0f} x")


def limits(judge):
    for name, what, limit in (("distinct/1024", "1024 ranks that differ", 1.0),
                              ("distinct/16384", "16384 ranks that differ", 20.0),
                              ("config_to_answer_times", "config to step time, breakdown, allocated peak, 32 blocks", 115e-6),
                              ("config_to_answer_full", "config to the full timeline, exact allocator", 1e-3),
                              ("all_groupings_of_80_blocks", "every grouping of 80 blocks, optimum", 1.0)):
        row = judge.find(name)
        if row:
            judge.show(name, what, f"{seconds(row) * 1e3:.3f} ms", f"<= {limit * 1e3:g} ms", seconds(row) <= limit)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="JSON files of the benchmarks")
    parser.add_argument("--partial", action="store_true", help="not all benchmarks were run: judge those that were")
    arguments = parser.parse_args()
    judge = Judge(arguments.folder, arguments.partial)
    for part in (instructions, simgrid, limits):
        part(judge)
    for failure in judge.failures:
        print(f"ratios: {failure}", file=sys.stderr)
    sys.exit(1 if judge.failures else 0)


main()

"""Speed as ratios of one run: reads the Google Benchmark files of a folder and prints what the project promises."""
import json
import pathlib
import sys

FOLDER = pathlib.Path(sys.argv[1])


def load():
    rows = {}
    for file in sorted(FOLDER.glob("*.json")):
        try:
            document = json.loads(file.read_text())
        except ValueError:
            continue
        for row in document.get("benchmarks", []):
            rows[row["name"]] = row
    return rows


def seconds(row):
    return row["real_time"] * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}[row["time_unit"]]


def find(rows, name):
    return next((r for n, r in rows.items() if n == name or n.startswith(name + "/")), None)


def show(what, value, target, good):
    print(f"  {what:<66} {value:>14}   {target:<10} {'' if good else 'MISSED'}")


def main():
    rows = load()
    floor, folded = find(rows, "floor"), find(rows, "folded_times")
    if floor and folded:
        ns, least = folded["ns_per_instruction"], floor["ns_per_instruction"]
        show("simulate a ready plan, 32 ranks folded: ns an instruction", f"{ns:.1f}", "<= 130", ns <= 130)
        show("the same over the floor (bare list scheduling with memory)", f"{ns / least:.1f} x", "<= 5 x", ns <= 5 * least)
        memory = find(rows, "folded_memory")
        show("  with the exact allocator: ns an instruction", f"{memory['ns_per_instruction']:.1f}", "", True)
    for ranks in (64, 256):
        ours, theirs = rows.get(f"foreshard_fluid/{ranks}"), find(rows, f"simgrid_fluid/{ranks}")
        if not ours or not theirs:
            continue
        ratio = seconds(theirs) / seconds(ours)
        show(f"{ranks} ranks, links shared: SimGrid's fluid model over ours", f"{ratio:.1f} x", ">= 10 x", ratio >= 10)
        apart = abs(ours["step_s"] / theirs["step_s"] - 1)
        show("  simulated step, difference", f"{100 * apart:.2f} %", "<= 1 %", apart <= 0.01)
    ours, theirs = rows.get("foreshard_fluid/64"), find(rows, "simgrid_rounds/64")
    if ours and theirs:
        ratio = seconds(theirs) / seconds(ours)
        show("64 ranks: SimGrid's ring rounds over our flows (no rounds here)", f"{ratio:.0f} x", "", True)
    for ranks, limit in ((1024, 1.0), (16384, 20.0)):
        row = find(rows, f"distinct/{ranks}")
        if row:
            show(f"{ranks} ranks that differ", f"{seconds(row):.2f} s", f"<= {limit:.0f} s", seconds(row) <= limit)
    for name, what, limit in (("config_to_answer_times", "config to step time, breakdown, allocated peak, 32 blocks", 115e-6),
                              ("config_to_answer_full", "config to the full timeline, exact allocator", 1e-3),
                              ("all_groupings_of_80_blocks", "every grouping of 80 blocks, optimum", 1.0)):
        row = find(rows, name)
        if row:
            show(what, f"{seconds(row) * 1e3:.3f} ms", f"<= {limit * 1e3:g} ms", seconds(row) <= limit)


main()

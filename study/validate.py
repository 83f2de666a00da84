"""./dev validate: scores every visible recording and measured run and writes a page. Recordings are looked for in
$FORESHARD_SHARED or in a folder "shared" beside the source folder; without them there is nothing to score."""
import argparse
import json
import os
import pathlib
import subprocess
import sys

KINDS = ["models", "fsdp2", "ddp", "fsdp1", "zero", "memory", "numerics"]


def ask(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"error": (done.stderr or done.stdout).strip()[:300]}


def golden_rows(build, shared):
    for kind in KINDS:
        folder = shared / "golden" / kind
        if not folder.is_dir():
            continue
        result = ask(build / "golden_check", kind, folder, "--json")
        if "error" in result:
            yield f"| {kind} | - | - | {result['error']} |"
        else:
            first = next((f"{c['id']}: {c['first_difference']}" for c in result["cases"] if not c["ok"]), "")
            yield f"| {kind} | {result['passed']} | {result['failed']} | {first[:160].replace('|', '/')} |"


def percent(x):
    return f"{100 * x:.1f} %"


def runs_text(build, table):
    scores = ask(build / "foreshard", "score", "runs", table, "--leave-one-laboratory-out", "--ranges", "--json")
    if "error" in scores:
        return [f"Runs could not be scored: {scores['error']}"]
    s = scores["summary"]
    lines = [f"{s['scored']} of {s['rows']} rows scored, each laboratory with ceilings fitted to the others. Time: mean error {percent(s['time_mape'])}, worst {percent(s['time_worst'])}. "
             f"Memory: mean error {percent(s['memory_mape'])}, worst {percent(s['memory_worst'])}.", "",
             "| rows | number | mean error | 95th percentile | worst | between the stated p10 and p90 |", "|---|---|---|---|---|---|"]
    lines += [f"| {g['group']} | {g['rows']} | {percent(g['time_mape'])} | {percent(g['time_p95'])} | {percent(g['time_worst'])} | {percent(g['time_within'])} |"
              for g in scores["groups"] if not g["group"].startswith("laboratory")]
    lines += ["", "| row | measured | predicted | error |", "|---|---|---|---|"]
    rows = [r for r in scores["rows"] if r["time_error"] is not None]
    for r in sorted(rows, key=lambda r: -abs(r["time_error"]))[:10]:
        lines.append(f"| {r['row_id']} | {r['measured_step_s']:.3f} s | {r['predicted_step_s']:.3f} s | {100 * r['time_error']:+.1f} % |")
    reasons = {}
    for r in scores["rows"]:
        if r["skipped"]:
            reasons[r["skipped"]] = reasons.get(r["skipped"], 0) + 1
    lines += ["", "Skipped:", ""] + [f"* {n} x {reason}" for reason, n in sorted(reasons.items(), key=lambda x: -x[1])]
    return lines


def collectives_text(build, index):
    lines = ["| | tables | mean error |", "|---|---|---|"]
    for name, words in (("from the catalogue alone", []), ("calibrated on every second row", ["--calibrate"])):
        score = ask(build / "foreshard", "score", "collectives", index, *words, "--json")
        if "error" in score:
            lines.append(f"| {name} | - | {score['error']} |")
        else:
            lines.append(f"| {name} | {score['summary']['tables']} | {percent(score['summary']['mape'])} |")
    return lines


def ratios_text(build, folder):
    scores = ask(build / "foreshard", "score", "ratios", folder, "--json")
    if "error" in scores:
        return [f"Ratios could not be scored: {scores['error']}"]
    lines = ["| pairs | predicted | direction right | within 10 % | within 20 % | mean error | worst |", "|---|---|---|---|---|---|---|"]
    for name, key in (("stated in full, or all but a link's rate", "stated"), ("stated in part", "partial")):
        s = scores[key]
        lines.append(f"| {name} | {s['scored']} of {s['cases']} | {s['signs_right']} | {s['within_10_percent']} | {s['within_20_percent']} | "
                     f"{percent(s['mean_error'])} | {percent(s['worst_error'])} |")
    return lines + ["", "Each pair: `docs/validation/time-cases.md`."]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    a = parser.parse_args()
    source = pathlib.Path(__file__).resolve().parent.parent
    shared = pathlib.Path(os.environ.get("FORESHARD_SHARED", source.parent / "shared"))
    if not shared.is_dir():
        print(f"no recordings at {shared}: set FORESHARD_SHARED", file=sys.stderr)
        sys.exit(3)
    page = ["# Validation", "", "Written by `./dev validate` from recordings and public measurements.", "", "## Recordings", "",
            "| kind | passed | failed | first difference |", "|---|---|---|---|", *golden_rows(a.build, shared)]
    table, index = shared / "data/measured/calibration_rows.csv", shared / "data/nccl-tests/index.json"
    if table.exists():
        page += ["", "## Measured runs: the ten worst", "", *runs_text(a.build, table)]
    if index.exists():
        page += ["", "## Measured collectives", "", *collectives_text(a.build, index)]
    page += ["", "## Published pairs of runs", "", *ratios_text(a.build, source / "studies/communication_bound")]
    a.out.write_text("\n".join(page) + "\n")
    print(a.out.read_text())


main()

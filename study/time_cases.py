"""Writes docs/validation/time-cases.md: every published pair of studies/communication_bound with our ratio beside it, and the
collectives that users report. Usage: python3 study/time_cases.py build/release/foreshard"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = "studies/communication_bound"
# Reports that name the bandwidth or time of one collective: id, source, words of the command, what is compared.
COLLECTIVES = [
    ("B18", "NVIDIA/nccl-tests#212 and others: 8 H100, ring all-gather 365 to 370 GB/s", 367e9, "bus_bytes_per_s",
     ["all_gather", "--gpus", "8", "--on", "dgx-h100", "--bytes", "8589934592"]),
    ("B18", "the same, all-reduce through NVLS 480 GB/s", 480e9, "bus_bytes_per_s",
     ["all_reduce", "--gpus", "8", "--on", "dgx-h100", "--bytes", "17179869184"]),
    ("B19", "NVIDIA/nccl#1218: 256 H100, 2 GB, all-reduce 340 GB/s", 340e9, "bus_bytes_per_s",
     ["all_reduce", "--gpus", "256", "--on", "dgx-h100", "--bytes", "2e9"]),
    ("B19", "the same, all-gather 200 GB/s", 200e9, "bus_bytes_per_s",
     ["all_gather", "--gpus", "256", "--on", "dgx-h100", "--bytes", "2e9"]),
    ("B20", "NVIDIA/nccl-tests#290: 47 GB/s of one NDR NIC", 47e9, "bus_bytes_per_s",
     ["all_reduce", "--gpus", "2", "--nodes", "2", "--on", "dgx-h100@8x400g", "--bytes", "8e9"]),
    ("B3", "pytorch#106080: gather of a 302 M parameter layer in bf16 on 32 A100 of AWS p4d, 23 ms", 23e-3, "time_s",
     ["all_gather", "--gpus", "32", "--on", "aws-p4d", "--bytes", "604e6"]),
]


def ask(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def ratio_lines(program):
    scores = ask(program, "score", "ratios", CASES, "--json")
    for title, key in (("Stated in full, or all but a link's rate", "stated"), ("Stated in part: direction and trend", "partial")):
        s = scores[key]
        yield f"## {title}\n"
        yield (f"{s['scored']} of {s['cases']} predicted; direction right in {s['signs_right']}; within 10 % {s['within_10_percent']}, "
               f"within 20 % {s['within_20_percent']}; mean error {100 * s['mean_error']:.1f} %, worst {100 * s['worst_error']:.1f} %.\n")
        yield "| id | pair | measured | ours | error | direction | exposed a, b |\n|---|---|--:|--:|--:|---|--:|"
        for r in scores["rows"]:
            if (r["stated"] == "partial") != (key == "partial"):
                continue
            if r["skipped"] is not None:
                yield f"| {r['id']} | {r['what']} | {r['measured']:.3f} | - | - | - | not predicted: {r['skipped']} |"
                continue
            share = [e / s for e, s in zip(r["exposed_communication_s"], r["step_s"])]
            yield (f"| {r['id']} | {r['what']} | {r['measured']:.3f} | {r['predicted']:.3f} | {100 * r['error']:+.1f} % | "
                   f"{'right' if r['sign_right'] else 'WRONG'} | {100 * share[0]:.0f} %, {100 * share[1]:.0f} % |")
        yield ""
    yield "## Why\n"
    for r in scores["rows"]:
        if r["explained"]:
            yield f"* **{r['id']}** {r['explained']}"
    yield "\n## Assumed where the source is silent\n"
    for r in scores["rows"]:
        if r["assumed"]:
            yield f"* {r['id']}: {'; '.join(r['assumed'])}"
    yield ""


def collective_lines(program):
    yield "## Single collectives\n"
    yield "| id | report | measured | ours | command |\n|---|---|--:|--:|---|"
    for name, report, measured, field, words in COLLECTIVES:
        ours = ask(program, "collective", *words, "--json")[0][field]
        show = (lambda x: f"{1e3 * x:.1f} ms") if field == "time_s" else (lambda x: f"{x * 1e-9:.0f} GB/s")
        yield f"| {name} | {report} | {show(measured)} | {show(ours)} | `foreshard collective {' '.join(words)}` |"
    yield ""


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    text = ["# Times and ratios that people reported\n",
            "Our answer beside each published pair of runs that differ in one setting, and beside collectives that users measured. Rows B* are "
            "users' reports. Everything here is one command:\n",
            f"    foreshard score ratios {CASES}\n",
            "and the page is written by `python3 study/time_cases.py build/release/foreshard`. The form of the cases: `docs/formats/ratios.md`.\n",
            "Reports that are rows of a series: B1 is ou-01, B7 is-21, B13 ml-01 and fs-01, B23 hf-01. B2 (pipeline and expert parallelism) and B5, "
            "B11, B12, B15 to B17, B24 to B28 name no pair that can be planned.\n"]
    text += ratio_lines(program)
    text += collective_lines(program)
    page = ROOT / "docs/validation/time-cases.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(text).rstrip() + "\n")


main()

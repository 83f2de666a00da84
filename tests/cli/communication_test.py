"""Commands about communication, checked against published figures and rules."""
import json
import pathlib
import sys

from program import check, run, run_tests

SOURCE = pathlib.Path(sys.argv[2])


def test_published_ratios():
    """Llama-2B on GCP and Polaris, and LoRA-free fine-tuning on 8 to 64 A100: direction right, within 20 %."""
    for series, least in (("oumi", 4), ("atorch", 0)):
        answer = json.loads(run("score", "ratios", str(SOURCE / f"studies/communication_bound/{series}.yaml"), "--json").stdout)
        for row in answer["rows"]:
            if row["skipped"] is not None:
                continue
            check(row["sign_right"], f"{row['id']}: the direction is wrong: {row['predicted']}")
            check(abs(row["error"]) < 0.2, f"{row['id']}: {row['predicted']:.3f}, measured {row['measured']}")
        check(answer["stated"]["scored"] >= least, f"{series}: too few pairs predicted")


def test_wrong_series(folder):
    """All problems of a file at once, with the nearest names."""
    bad = folder / "bad.yaml"
    bad.write_text("series: s\nsource: x\ngiven: {model: gpt2, gpsu: 8}\n"
                   "cases:\n  - {id: a, what: w, ratio: 2, a: {}, b: {measure: speed}}\n  - {id: a, what: w, a: {}, b: {}}\n")
    text = run("score", "ratios", str(bad), code=2).stderr
    for word in ("gpsu", "gpus", "measure", "ratio", "twice"):
        check(word in text, f"the message lacks {word}: {text}")


def test_collective():
    """8 H200, 16 GiB: all-gather 361.4, all-reduce 480 GB/s of bus bandwidth (stas00/ml-engineering, network)."""
    for kind, measured in (("all_gather", 361.4e9), ("all_reduce", 480e9)):
        row = json.loads(run("collective", kind, "--gpus", "8", "--on", "hgx-h200", "--bytes", str(1 << 34), "--json").stdout)[0]
        check(abs(row["bus_bytes_per_s"] / measured - 1) < 0.02, f"{kind}: {row['bus_bytes_per_s']}")
        check(row["limited_by"] == "NVLink", f"{kind} is limited by {row['limited_by']}")
    run("collective", "all_gather", "--gpus", "7", "--nodes", "2", "--on", "dgx-h100", code=2)


def test_import_topology(folder):
    matrix = folder / "topo.txt"
    matrix.write_text("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV2\t0-11\tN/A\nGPU1\tNV2\t X \t0-11\tN/A\n")
    found = json.loads(run("import", "topo-m", str(matrix), "--json").stdout)
    check(found["gpus"] == 2 and found["links_per_gpu"] == 2, f"topo -m: {found}")
    profile = folder / "box.json"
    run("import", "topo-m", str(matrix), "--on", "2x-titan-rtx", "-o", str(profile))
    check("2" in run("hw", "describe", str(profile)).stdout, "the profile reads back")
    run("import", "topo-m", str(matrix), "-o", str(profile), code=2)


NCCL_LOG = """# nThread 1 nGpus 2 minBytes 1048576 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#  Rank  0 Group  0 Pid 11 on node-a device  0 [0x1b] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 12 on node-a device  1 [0x1c] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        131072     float    none      -1    30.00   34.95   17.48       0    29.00   36.16   18.08       0
  1073741824     134217728     float    none      -1   3000.0  357.91  178.96       0   3000.0  357.91  178.96       0
"""


def test_calibrate(folder):
    """Without -o the residuals alone; a log with faults only on demand, and nothing is written of one that is refused."""
    log, profile = folder / "gather.log", folder / "fitted.json"
    log.write_text(NCCL_LOG)
    before = sorted(folder.iterdir())
    text = run("calibrate", str(log), "--on", "dgx-h100").stdout
    check("mean error" in text and "-o FILE" in text and "wrote" not in text, f"residuals without a file: {text}")
    alone = json.loads(run("calibrate", str(log), "--on", "dgx-h100", "--json").stdout)
    check([r["bytes"] for r in alone["residuals"]] == [1 << 20, 1 << 30], f"residuals: {alone}")
    check(sorted(folder.iterdir()) == before, "nothing is written without -o")
    written = json.loads(run("calibrate", str(log), "--on", "dgx-h100", "--json", "-o", str(profile)).stdout)
    check(written == alone and profile.exists(), "-o changes nothing but the file")
    run("hw", "describe", str(profile))
    profile.unlink()
    log.write_text(NCCL_LOG.replace("17.48       0", "17.48       7"))
    refused = run("calibrate", str(log), "--on", "dgx-h100", "-o", str(profile), code=2).stderr
    check("#wrong" in refused and "--accept-faults" in refused and not profile.exists(), f"wrong results: {refused}")
    told = run("calibrate", str(log), "--on", "dgx-h100", "-o", str(profile), "--accept-faults").stdout
    check("fault: line 6" in told and profile.exists(), f"accepted faults are told: {told}")
    check("fault: line 6" in run("import", "nccl-tests", str(log)).stdout, "import tells faults")
    wrong = run("calibrate", str(log), "--on", "dgx-h100", "--collective", "all_reduce", "--accept-faults", code=2).stderr
    check("contradicts all-reduce" in wrong and "all-gather" in wrong, f"a kind that the log contradicts: {wrong}")


def test_spread():
    """One rank of two that computes half as fast: everyone waits, the step grows; equal seeds give equal answers."""
    job = ["gpt2", "--gpus", "2", "--on", "dgx-a100-80", "--seq", "1024", "--micro-batch", "8", "--samples", "3", "--json"]
    slow = json.loads(run("spread", *job, "--slow-ranks", "1:2").stdout)
    check(slow["p10_s"] == slow["p90_s"] > slow["equal_ranks_s"] and slow["cost"] > 0.2, f"spread: {slow}")
    a, b = (run("spread", *job, "--jitter", "0.1", "--threads", t).stdout for t in ("1", "3"))
    check(a == b, "the number of threads changes the answer")
    run("spread", *job, code=2)
    run("spread", *job, "--slow-ranks", "2:2", code=2)


def test_jitter_beside_gpus_that_differ(folder):
    """Two independent spreads a and b are one of sqrt(a^2 + b^2), and no jitter is simulate's step."""
    job = ["gpt2", "--gpus", "16", "--seq", "1024", "--micro-batch", "8", "--samples", "60", "--json"]

    def answer(spread, jitter):
        box = folder / f"spread-{spread}.yaml"
        box.write_text(f"base: dgx-a100-80\nsource: test\nkind_of_numbers: assumed\ngpu:\n  efficiency: {{speed_spread: {spread}}}\n")
        return json.loads(run("spread", *job, "--on", str(box), "--jitter", str(jitter)).stdout)

    still = answer(0.04, 1e-6)
    check(abs(still["cost"]) < 1e-4, f"without jitter the slowest GPU is in the answer already: {still['cost']}")
    both, one = answer(0.04, 0.03), answer(0, 0.05)
    # E[max of 16] = 1.766, of 8 = 1.424: equal ranks hold 0.04 x (1.766 - 1.424) = 1.37 %; the step grows by (0.05 - 0.04) x 1.766.
    check(0.010 < both["cost"] < 0.022, f"jitter 3 % beside a spread of 4 %: {both['cost']}")
    check(0.06 < one["cost"] < 0.095, f"5 % of jitter alone: {one['cost']}")
    # Against GPUs of speed 1 both wait for 1 + 0.05 x 1.766; the answer with a spread counts from the slowest of 8, 0.04 x 1.424 less.
    ratio = both["mean_s"] / one["mean_s"]
    check(abs(ratio - (1 - 0.04 * 1.424 / (1 + 0.05 * 1.766))) < 0.012, f"two spreads are one of 5 %: {ratio}")


def test_groupings():
    found = json.loads(run("tune", "gpt2", "--gpus", "8", "--on", "dgx-a100-80", "--seq", "512", "--all-groupings", "--json").stdout)
    check(found["blocks"] == 12 and all(sum(g["sizes"]) == 12 for g in found["front"]), "groupings cover the blocks")
    steps = [g["model_step_s"] for g in found["front"]]
    check(steps == sorted(steps), "the front starts with the fastest")
    rows = found["simulated"]
    check([r["units"] for r in rows] == sorted(r["units"] for r in rows) and rows[-1]["sizes"] == [1] * 12, "rows by units")
    # 12 blocks in equal groups of 1, 2, 3, 4, 6, 12, and of 5 (5, 5, 2): as few units as 4, so left out.
    for sizes in ([2] * 6, [3] * 4, [4] * 3, [6] * 2, [12]):
        check(sizes in [r["sizes"] for r in rows], f"equal groups {sizes} are simulated")
    fastest = min(r["step_time_s"] for r in rows)
    check(found["best"]["step_time_s"] <= 1.01 * fastest, f"the best is no slower than 1 % over the fastest simulated: {found['best']}")
    every_two = json.loads(run("simulate", "gpt2", "--gpus", "8", "--on", "dgx-a100-80", "--seq", "512", "--wrap", "every:2", "--json").stdout)
    row = next(r for r in rows if r["sizes"] == [2] * 6)
    check(abs(row["step_time_s"] / every_two["step_time_s"] - 1) < 1e-9, f"a row is what simulate says: {row}, {every_two['step_time_s']}")


run_tests(globals())

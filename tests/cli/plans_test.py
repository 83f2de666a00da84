"""Plans as files: written, shown, run, compared, and told apart from wrong ones."""
import json
import pathlib

from program import check, near, run, run_tests, small_model


def test_numbers_and_orders_decide_exit_codes(folder):
    at = lambda name: str(folder / name)
    job = ("llama-tiny", "--gpus", "4", "--seq", "32")
    run("plan", *job, "--framework", "sharded-optimizer", "--param-dtype", "fp32", "-o", at("p.json"))
    answer = json.loads(run("run", at("p.json"), "--steps", "3", "--trace", at("m.json"), "--json").stdout)
    check(answer["numerics"]["max_relative_difference"] < 1e-5, f"sharded numerics {answer['numerics']}")
    run("simulate", *job, "--on", "dgx-h100", "--framework", "fsdp1", "--trace", at("t.json"), "--suggest", "no")
    check("same plan" in run("compare", at("t.json"), at("m.json"), code=4).stdout, "different plans are said to be")
    check("comes first" in run("compare", at("m.json"), at("t.json"), code=2).stderr, "swapped traces are refused")
    run("plan", "gpt2", "--gpus", "4", "--seq", "1024", "--micro-batch", "16", "-o", at("large.json"))
    check("needs at least" in run("run", at("large.json"), code=2).stderr, "a plan too large for the ranks")


def test_plan_run_compare(folder):
    job = [small_model(folder), "--seq", "16", "--param-dtype", "fp32"]
    plan, one = str(folder / "plan.json"), str(folder / "one.json")
    run("plan", *job, "--gpus", "2", "-o", plan)
    run("plan", *job, "--gpus", "1", "--framework", "none", "--micro-batch", "2", "-o", one)
    check("all-gather" in run("show", plan).stdout, "show prints the gathers")
    predicted, measured = str(folder / "predicted.json"), str(folder / "measured.json")
    run("simulate", *job, "--gpus", "2", "--on", "dgx-h100", "--trace", predicted)
    result = json.loads(run("run", plan, "--steps", "3", "--trace", measured, "--reference", one, "--json").stdout)
    check(len(result["losses"]) == 3 and result["ranks"] == 2, "run: losses and ranks")
    # Two ranks with one sequence each train as one rank with both: fp32 rounding only.
    check(result["numerics"]["max_relative_difference"] < 1e-5, f"numerics {result['numerics']}")
    compared = json.loads(run("compare", predicted, measured, "--json").stdout)
    check(compared["order_equal"] and compared["bytes_equal"], f"compare {compared['differences'][:2]}")
    check(compared["peak_bytes_difference"] == 0, "predicted peak = measured peak")
    events = json.loads(pathlib.Path(predicted).read_text())["traceEvents"]
    phases = {e["ph"] for e in events}
    check({"M", "X", "C", "s", "f"} <= phases, f"trace phases {phases}")
    starts = [e for e in events if e["ph"] == "s"]
    check(len(starts) == len([e for e in events if e["ph"] == "f"]) > 0, "arrows from gathers to uses")
    by_track = {}
    for e in events:
        if e["ph"] == "X":
            by_track.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for track, spans in by_track.items():
        spans.sort()
        check(all(a[1] <= b[0] + 1e-3 for a, b in zip(spans, spans[1:])), f"spans overlap on track {track}")


def test_a_small_error_is_found(folder):
    """Rounding explains 1e-5 in fp32, but not averaged gradients that are 1e-3 too large."""
    model, plan = small_model(folder), folder / "fp32.json"
    run("plan", model, "--seq", "16", "--param-dtype", "fp32", "--gpus", "2", "-o", str(plan))
    right = json.loads(run("run", str(plan), "--steps", "3", "--json").stdout)["numerics"]
    check(right["within"] and right["difference"] < right["allowed"] < 1e-3, f"an honest run: {right}")
    wrong = json.loads(plan.read_text())
    for program in wrong["programs"]:
        for c in program["collectives"]:
            if c[:2] == ["reduce-scatter", "average"]: c[1], c[9] = "pre_mul_sum", 0.5 * 1.001
    plan.write_text(json.dumps(wrong))
    found = run("run", str(plan), "--steps", "3", code=4).stdout
    check("TOO LARGE" in found and "rounding explains" in found, found)


def test_numerics_without_a_reference(folder):
    """A plan carries the same job on one rank; in fp32 nothing but the order of sums differs."""
    model = small_model(folder)
    for options in (["--framework", "ddp"], ["--framework", "fsdp2"], ["--framework", "zero2"]):
        plan = str(folder / "with-reference.json")
        run("plan", model, "--seq", "16", "--param-dtype", "fp32", "--gpus", "4", *options, "-o", plan)
        numerics = json.loads(run("run", plan, "--json").stdout)["numerics"]["max_relative_difference"]
        check(numerics is not None and numerics < 1e-4, f"{options}: numerics {numerics}")
    run("plan", model, "--seq", "16", "--gpus", "4", "--reference", "no", "-o", plan)
    check(json.loads(run("run", plan, "--json").stdout)["numerics"]["max_relative_difference"] is None, "no reference, no number")


def test_simulate_writes_the_plan_of_plan(folder):
    """Same steps (DDP and ZeRO need more until the last one repeats), same reference, same bytes."""
    for options in (["--framework", "ddp"], ["--framework", "ddp", "--ddp-static-graph", "yes"], ["--framework", "zero1"],
                    ["--framework", "zero3"], ["--framework", "fsdp1"], ["--framework", "fsdp2", "--accumulate", "2"]):
        job = [small_model(folder), "--seq", "16", "--gpus", "2", *options]
        run("plan", *job, "-o", str(folder / "a.json"))
        run("simulate", *job, "--on", "dgx-h100", "--suggest", "no", "--plan", str(folder / "b.json"))
        check((folder / "a.json").read_bytes() == (folder / "b.json").read_bytes(), f"{options}: simulate --plan writes another plan")


def test_diff(folder):
    model = small_model(folder)
    job = ["--model", model, "--seq", "16", "--gpus", "4", "--on", "dgx-h100"]
    found = json.loads(run("diff", "--framework ddp", "--framework fsdp2 --reduce-dtype fp32", *job, "--json").stdout)
    a, b = found["a"], found["b"]
    check((a["title"], b["title"]) == ("DDP, reduce-dtype default", "FSDP2, reduce-dtype fp32"), f"titles {a['title']}, {b['title']}")
    for side in (a, b):
        near(sum(side["breakdown"].values()), side["step_time_s"], 1e-9, "the breakdown adds up to the step")
        check(sum(side["memory"].values()) == side["device_peak_bytes"], "the parts add up to the peak")
    rows = {(d["kind"], d["what"].split(" over ")[0]): d for d in found["differences"]}
    # 64 * 32 * 2 (embedding, head) + 2 blocks of (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32) + 32 parameters of
    # fp32: DDP reduces each once, FSDP2 none with an all-reduce but the norm of clipping.
    parameters = 2 * 64 * 32 + 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32) + 32
    reduced = rows[("collective", "all-reduce")]
    check(reduced["a"]["bytes"] == 4 * parameters, f"DDP reduces {reduced['a']['bytes']} bytes, not {4 * parameters}")
    check(rows[("collective", "reduce-scatter")]["a"]["count"] == 0, "DDP has no reduce-scatter")
    check(rows[("collective", "all-gather")]["b"]["count"] > 0, "FSDP2 gathers")
    check(any("reduce-scatter" in w for w in found["words"]), f"the words name what is new: {found['words']}")
    text = run("diff", "--framework ddp", "--framework fsdp2", *job, "--table").stdout
    check(text.startswith("DDP -> FSDP2: ") and len(text.splitlines()) <= 50, f"one screen: {len(text.splitlines())} lines")
    same = json.loads(run("diff", "--framework ddp", "--framework ddp", *job, "--json").stdout)
    check(same["differences"] == [] and same["a"]["step_time_s"] == same["b"]["step_time_s"], "a plan equals itself")
    (folder / "one.yaml").write_text(f"model: {model}\nseq: 16\ngpus: 4\non: dgx-h100\nreshard: true\n")
    (folder / "two.yaml").write_text(f"model: {model}\nseq: 16\ngpus: 4\non: dgx-h100\nreshard: false\n")
    kept = json.loads(run("diff", str(folder / "one.yaml"), str(folder / "two.yaml"), "--json").stdout)
    gathers = [d for d in kept["differences"] if d["kind"] == "collective" and "all-gather" in d["what"]]
    check(gathers and gathers[0]["b"]["count"] < gathers[0]["a"]["count"], "kept parameters are not gathered again")
    run("plan", model, "--seq", "16", "--gpus", "4", "-o", str(folder / "p.json"))
    run("diff", str(folder / "p.json"), str(folder / "p.json"))
    wrong = run("diff", "--framework fsdp9", "--gpus x", *job[:2], code=2).stderr
    check("fsdp9" in wrong and "not a whole number" in wrong, f"all problems at once: {wrong}")


def test_planted_bugs(folder):
    run("plan", small_model(folder), "--seq", "16", "--param-dtype", "fp32", "--gpus", "2", "-o", str(folder / "plan.json"))
    plan = json.loads((folder / "plan.json").read_text())
    program = plan["programs"][0]
    begin, end = program["steps"][-1]
    body = program["instructions"]
    gather = next(i for i in range(begin, end) if body[i][0] == "collective" and program["collectives"][body[i][1]][0] == "all-gather")
    moved = json.loads(json.dumps(plan))
    for p in moved["programs"]:
        p["instructions"].insert(min(gather + 40, end - 1), p["instructions"].pop(gather))
    (folder / "moved.json").write_text(json.dumps(moved))
    done = run("show", str(folder / "moved.json"), "--summary", code=2)
    check("use before gather" in done.stderr or "not recorded" in done.stderr, f"moved gather: {done.stderr[:300]}")
    run("run", str(folder / "moved.json"), code=2)
    early = json.loads(json.dumps(plan))
    for p in early["programs"]:
        code = p["instructions"]
        free = next(i for i in range(begin, end) if code[i][0] == "free" and p["buffers"][code[i][1]][3] in ("gathered parameters", "all-gather outputs"))
        alloc = max(i for i in range(begin, free) if code[i] == ["alloc", code[free][1]])
        code.insert(alloc + 1, code.pop(free))
    (folder / "early.json").write_text(json.dumps(early))
    done = run("show", str(folder / "early.json"), "--summary", code=2)
    check("use after free" in done.stderr, f"early free: {done.stderr[:300]}")
    # With the validator off, the executor finds them itself.
    run("run", str(folder / "early.json"), "--validate", "no", "--watchdog", "10", code=3)
    run("run", str(folder / "moved.json"), "--validate", "no", "--watchdog", "10", code=3)


def test_described_units_are_planned_ones(folder):
    """models describe shows the units that a plan with the same words has; their parameters are all there."""
    model, plan = small_model(folder), str(folder / "units.json")
    for framework in ("fsdp2", "fsdp1"):
        for wrap in ("blocks", "blocks+adapters", "every:2", "root", "size:9000", "modules:LlamaMLP,LlamaDecoderLayer"):
            if (framework, wrap.split(":")[0]) in (("fsdp1", "every"), ("fsdp2", "size")):
                continue  # Refused by the framework.
            for split in ("yes", "no"):
                words = [model, "--framework", framework, "--wrap", wrap, "--root-split", split]
                units = json.loads(run("models", "describe", *words, "--json").stdout)["units"]
                run("plan", *words, "--gpus", "2", "--seq", "16", "-o", plan)
                planned = json.loads(pathlib.Path(plan).read_text())["programs"][0]["units"]
                check(sorted(u["numel"] for u in units if u["numel"]) == sorted(u["numel"] for u in planned), f"{words}: {units} {planned}")
                check(units[0]["name"] == "root", f"{words}: the root comes first")
                check(sum(u["numel"] for u in units) == 2 * 64 * 32 + 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32) + 32,
                      f"{words}: each parameter once")
    wrong = run("models", "describe", model, "--wrap", "evry:2", code=2).stderr
    check("blocks+adapters" in wrong and "modules:a,b,c" in wrong, f"the forms are named: {wrong}")


run_tests(globals())

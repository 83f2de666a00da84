"""Runs the program as a user does and checks what it answers. Values are checked against rules, not against ourselves."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
FAILURES = []
SMALL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
         "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 64, "tie_word_embeddings": False}


def run(*words, code=0):
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=120, env={**os.environ, "NO_COLOR": "1"})
    check(done.returncode == code, f"{words}: exit {done.returncode}, expected {code}\n{done.stderr}")
    return done


def check(good, message):
    if not good:
        FAILURES.append(message)


def near(a, b, relative, what):
    check(abs(a - b) <= relative * abs(b), f"{what}: {a}, expected {b}")


def test_welcome_and_help():
    text = run().stdout
    for question in ("Will it fit", "How should I wrap", "What should we buy"):
        check(question in text, f"welcome lacks {question}")
    for command in ("simulate", "plan", "show", "run", "compare", "diff", "tune", "size", "calibrate", "import", "models", "hw"):
        text = run(command, "--help").stdout
        check(text.index("Examples") < text.index("Usage"), f"{command} --help must start with examples")


def test_refusals_of_what_cannot_run():
    job = ("simulate", "llama3-8b", "--gpus", "8", "--on", "dgx-h100", "--suggest", "no")
    check("--float8" in run(*job, "--param-dtype", "fp8", code=2).stderr, "fp8 parameters: the way to 8-bit products")
    check("--seq" in run(*job, "--seq", "60M", code=2).stderr, "too many tokens must name --seq")
    check("hopper" in run("simulate", "llama3-8b", "--gpus", "8", "--on", "dgx-a100-80", "--attention-kernel", "flash3", code=2).stderr,
          "flash-attention 3 needs Hopper")
    check("4x-t4" in run("simulate", "gpt2", "--gpus", "8", "--on", "8x-t4", "--seq", "128", code=2).stderr, "no box of 8 T4")
    answer = run("hw", "describe", "8x-h100-pcie").stdout
    check("8x H100 PCIe" in answer, "8x-h100-pcie is one server")
    check("h200" in run("size", "gpt2", "--on", "dgx-h100", "--gpus", "8", "--price", "h200=2/h", code=2).stderr, "price of no machine")


def test_host_memory_of_a_node():
    # 70.55e9 parameters x (fp32 weights, gradients, two states) = 1.13 TB; an 8x 4090 box has 512 GiB.
    words = ("simulate", "llama3-70b", "--gpus", "8", "--on", "8x-rtx4090", "--framework", "zero3", "--offload", "both",
             "--checkpoint", "full", "--seq", "2048", "--suggest", "no")
    check("of 512.0 GiB of host memory" in run(*words).stdout, "the verdict must name host memory")
    memory = json.loads(run(*words, "--json").stdout)["memory"]
    check(not memory["fits"] and not memory["fits_host"], "host memory decides")
    check(memory["host_node_peak_bytes"] == 8 * memory["host_peak_bytes"], "eight ranks on a node")


def test_sharded_optimizer_computes_in_16_bits():
    words = ("simulate", "llama3-8b", "--gpus", "8", "--on", "dgx-h100", "--suggest", "no", "--json", "--framework", "sharded-optimizer")
    half, full = (json.loads(run(*words, *more).stdout) for more in ((), ("--param-dtype", "fp32")))
    check(full["step_time_s"] > 2 * half["step_time_s"], "fp32 products take longer than bf16 ones")


def test_numbers_and_orders_decide_exit_codes():
    with tempfile.TemporaryDirectory() as folder:
        at = lambda name: str(pathlib.Path(folder) / name)
        job = ("llama-tiny", "--gpus", "4", "--seq", "32")
        run("plan", *job, "--framework", "sharded-optimizer", "--param-dtype", "fp32", "-o", at("p.json"))
        answer = json.loads(run("run", at("p.json"), "--steps", "3", "--trace", at("m.json"), "--json").stdout)
        check(answer["numerics"]["max_relative_difference"] < 1e-5, f"sharded numerics {answer['numerics']}")
        run("simulate", *job, "--on", "dgx-h100", "--framework", "fsdp1", "--trace", at("t.json"), "--suggest", "no")
        check("same plan" in run("compare", at("t.json"), at("m.json"), code=4).stdout, "different plans are said to be")
        check("comes first" in run("compare", at("m.json"), at("t.json"), code=2).stderr, "swapped traces are refused")
        run("plan", "gpt2", "--gpus", "4", "--seq", "1024", "--micro-batch", "16", "-o", at("large.json"))
        check("needs at least" in run("run", at("large.json"), code=2).stderr, "a plan too large for the ranks")


def test_simulate():
    answer = json.loads(run("simulate", "llama3-8b", "--gpus", "8", "--on", "dgx-h100", "--json").stdout)
    for key in ("step_time_s", "tokens_per_s_per_gpu", "mfu", "hfu", "breakdown", "communication", "memory", "critical_path",
                "not_modelled", "provenance"):
        check(key in answer, f"simulate --json lacks {key}")
    parts = answer["breakdown"]
    near(sum(parts.values()), answer["step_time_s"], 1e-9, "the breakdown adds up to the step")
    # Micro-batch 1, 2048 tokens: tokens/s/GPU = 2048 / step.
    near(answer["tokens_per_s_per_gpu"], 2048 / answer["step_time_s"], 1e-9, "tokens per second")
    gathers = [c for c in answer["communication"] if c["kind"] == "all-gather"]
    # 8,030,261,248 parameters in bf16: gathered in forward and, but for the last unit (head), again in backward.
    whole = 2 * 8_030_261_248
    total = sum(c["bytes"] for c in gathers)
    check(1.8 * whole < total < 2.05 * whole, f"all-gather bytes {total}")
    near(sum(c["s"] for c in answer["critical_path"]), answer["step_time_s"], 1e-6, "the critical path covers the step")
    memory = answer["memory"]
    check(memory["allocated_peak_bytes"] <= memory["reserved_peak_bytes"] <= memory["device_peak_bytes"], "memory order")
    # Sharded fp32 parameters and two AdamW states: 12 bytes a parameter over 8 ranks at least.
    check(memory["allocated_peak_bytes"] > 12 * 8_030_261_248 / 8, "allocated peak below the states")
    text = run("simulate", "llama3-8b", "--gpus", "8", "--on", "dgx-h100").stdout
    check("Fits:" in text and len(text.splitlines()) <= 24 and "\033" not in text, "the answer fits a screen, without colours")


def test_config_file(folder):
    config = folder / "job.yaml"
    config.write_text("model: llama3-8b\ngpus: 8\non: dgx-h100\nseq: 4096\nwrap: every:2\n")
    a = json.loads(run("simulate", "--config", str(config), "--json").stdout)
    b = json.loads(run("simulate", "llama3-8b", "--gpus", "8", "--on", "dgx-h100", "--seq", "4096", "--wrap", "every:2", "--json").stdout)
    check(a == b, "a configuration file says the same as options")
    c = json.loads(run("simulate", "--config", str(config), "--seq", "2048", "--json").stdout)
    check(c["step_time_s"] < a["step_time_s"], "the command line wins over the file")


def test_configuration_asks_the_same_again(folder):
    """What simulate --json calls the configuration is a --config file with the same answer."""
    small = ["gpt2", "--on", "dgx-h100", "--seq", "256"]
    for options in (["--gpus", "8"],
                    ["--gpus", "16", "--replicate", "2", "--wrap", "every:3", "--reshard", "false", "--accumulate", "2"],
                    ["--gpus", "4", "--framework", "fsdp1", "--fsdp1-strategy", "shard_grad_op", "--checkpoint", "every:2"],
                    ["--gpus", "4", "--framework", "ddp", "--ddp-comm-hook", "bf16", "--accumulate", "2", "--sync-each-micro-batch", "no"],
                    ["--gpus", "4", "--framework", "ddp", "--model-dtype", "bf16"],
                    ["--gpus", "4", "--framework", "zero3", "--reduce-dtype", "fp32", "--offload", "optimizer"],
                    ["--gpus", "4", "--framework", "zero1", "--zero-reduce-bucket-size", "1e7"],
                    ["--gpus", "1", "--framework", "none", "--clip", "no", "--optimizer", "sgd"],
                    ["--gpus", "4", "--freeze", "wte,h.0"],
                    ["--gpus", "8", "--lora-rank", "8", "--lora-targets", "c_attn", "--device-memory", "40", "--steps", "3"]):
        first = run("simulate", *small, *options, "--json").stdout
        file = folder / "again.json"
        file.write_text(json.dumps(json.loads(first)["configuration"]))
        again = run("simulate", "--config", str(file), "--json").stdout
        check(first == again, f"{options}: the configuration asks something else: {file.read_text()}")


def test_images_per_second():
    """A model without tokens answers in samples; micro-batch / step of each GPU."""
    words = ["simulate", "vit-b16", "--gpus", "8", "--on", "dgx-a100-80", "--micro-batch", "16", "--framework", "ddp"]
    answer = json.loads(run(*words, "--json").stdout)
    check(answer["tokens_per_s_per_gpu"] == 0, "no tokens")
    near(answer["samples_per_s_per_gpu"], 16 / answer["step_time_s"], 1e-9, "samples per second")
    text = run(*words).stdout
    check("samples/s/GPU" in text and "global batch 128 samples" in text, "samples in the text")
    check(not any("tokens of a GPU" in o or "tokens in a" in o for o in answer["outside_calibration"]), "no warning of unused --seq")


def test_help_is_short():
    text = run("simulate", "--help").stdout
    check(len(text.splitlines()) < 110, f"simulate --help has {len(text.splitlines())} lines")
    check("--zero-reduce-bucket-size" not in text and "--help-all" in text, "options of one framework on demand")
    check("--zero-reduce-bucket-size" in run("simulate", "--help-all").stdout, "--help-all has everything")


def test_searches_that_find_nothing_say_so_by_their_exit_code():
    """Nothing fits: 4; no row can be planned: 2; simulate answers with 0 unless it must fit."""
    big = ["llama3-70b", "--on", "dgx-a100-40", "--seq", "2048"]
    run("simulate", *big, "--gpus", "8", "--suggest", "no")
    run("simulate", *big, "--gpus", "8", "--suggest", "no", "--must-fit", code=4)
    run("simulate", "gpt2", "--gpus", "1", "--framework", "none", "--on", "dgx-h100", "--seq", "64", "--suggest", "no", "--must-fit")
    run("simulate", *big[:3], "--gpus", "8", "--largest", "seq", code=4)
    run("tune", *big, "--gpus", "8", "--wrap", "blocks", code=4)
    run("size", *big, "--gpus", "8", "--micro-batches", "1", "--checkpoint", "none", code=4)
    run("size", "gpt2", "--on", "dgx-h100", "--seq", "4096", "--gpus", "8", code=2)


def test_a_mixed_network_is_no_slower_than_the_slow_one():
    job = ["spread", "llama3.2-1b", "--gpus", "16", "--seq", "2048", "--json"]
    for fast, slow in (("dgx-h100", "dgx-h100@2x200g"), ("dgx-a100-40@8x200g", "dgx-a100-40@2x200g")):
        mixed = json.loads(run(*job, "--on", fast, "--other-nodes", f"8-15:{slow}").stdout)
        reverse = json.loads(run(*job, "--on", slow, "--other-nodes", f"8-15:{fast}").stdout)
        check(mixed["median_s"] <= reverse["equal_ranks_s"] and mixed["median_s"] > mixed["equal_ranks_s"], f"{fast}: {mixed}")
        check(reverse["median_s"] <= reverse["equal_ranks_s"], f"one faster node: {reverse}")
    run(*job, "--on", "dgx-h100", "--slow-ranks", "0-3:1.3,2:2", code=2)
    check("--slow-ranks" in run(*job, "--on", "dgx-h100", "--slow-ranks", "3:0", code=2).stderr, "a factor of 0")


def test_the_header_says_what_is_trained_and_on_what():
    job = ["--gpus", "2", "--on", "dgx-h100", "--seq", "64", "--suggest", "no"]
    text = run("simulate", "gpt2", *job, "--lora-rank", "8").stdout
    check("LoRA rank 8 on c_attn in fp32, 294.91 K trained" in text, text)
    text = run("simulate", "llama-tiny", *job, "--lora-rank", "8", "--lora-dtype", "base", "--lora-base", "4bit").stdout
    check("LoRA rank 8 on q_proj, v_proj in bf16" in text and "in 4 bits" in text, text)
    check("1 image of 224 x 224" in run("simulate", "vit-b16", *job[:4], "--suggest", "no").stdout, "images of ViT")


def test_reasons_of_tune_are_those_of_the_table():
    """Latency: more collectives than the row that it is compared with; each reason says both figures."""
    answer = json.loads(run("tune", "llama3-8b", "--gpus", "64", "--on", "dgx-h100@1x200g", "--seq", "2048", "--checkpoint", "full", "--json").stdout)
    reasons = [c["verdict"] for c in answer["choices"]]
    for text in reasons:
        found = re.match(r"latency: (\d+) collectives instead of (\d+), (.*) instead of (.*) exposed", text)
        check(not text.startswith("latency") or (found and int(found[1]) > int(found[2])), text)
    check(any("in the root's unit" in text for text in reasons), f"root split: {reasons}")
    text = " ".join(run("simulate", "llama3-8b", "--gpus", "1000", "--on", "dgx-h100", "--seq", "512", "--suggest", "no").stdout.split())
    check("rows make 1000 parts of" in text and "(experts)" not in text, f"padding of a dense model: {text}")


def test_profiles_and_models_in_the_wrong_place_are_named(folder):
    profile = folder / "mine.yaml"
    profile.write_text("base: dgx-h100\nname: mine\nnodes: 1\nsource: test\nkind_of_numbers: assumed\n")
    for name in (f"{profile}@400g", f"4x-{profile}"):
        said = run("hw", "describe", name, code=2).stderr
        check("not with profile files" in said, f"{name}: {said}")
    check("at most 1" in run("collective", "all_reduce", "--gpus", "2", "--nodes", "2", "--on", str(profile), code=2).stderr, "nodes of a profile")
    check("mine" in run("hw", "describe", str(profile)).stdout.splitlines()[0], "title of a profile with a name")
    model = folder / "config.json"
    model.write_text(json.dumps({**SMALL, "hidden_act": "gelu_fast"}))
    check("a model's config.json" in run("diff", "llama-tiny", str(model), "--gpus", "2", code=2).stderr, "diff of a model")
    run("simulate", str(model), "--gpus", "2", "--on", "dgx-h100", "--seq", "16", "--suggest", "no")


def test_a_deterministic_spread_runs_once():
    words = ["spread", "gpt2", "--seq", "64", "--gpus", "4", "--on", "dgx-h100"]
    check(len(json.loads(run(*words, "--slow-ranks", "1:1.2", "--json").stdout)["steps_s"]) == 1, "nothing is random")
    check(len(json.loads(run(*words, "--jitter", "0.02", "--samples", "3", "--json").stdout)["steps_s"]) == 3, "three seeds")


def test_plan_run_compare(folder):
    model = folder / "config.json"
    model.write_text(json.dumps(SMALL))
    job = [str(model), "--seq", "16", "--param-dtype", "fp32"]
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
    model, plan = str(folder / "config.json"), folder / "fp32.json"
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
    model = str(folder / "config.json")
    for options in (["--framework", "ddp"], ["--framework", "fsdp2"], ["--framework", "zero2"]):
        plan = str(folder / "with-reference.json")
        run("plan", model, "--seq", "16", "--param-dtype", "fp32", "--gpus", "4", *options, "-o", plan)
        numerics = json.loads(run("run", plan, "--json").stdout)["numerics"]["max_relative_difference"]
        check(numerics is not None and numerics < 1e-4, f"{options}: numerics {numerics}")
    run("plan", model, "--seq", "16", "--gpus", "4", "--reference", "no", "-o", plan)
    check(json.loads(run("run", plan, "--json").stdout)["numerics"]["max_relative_difference"] is None, "no reference, no number")


def test_precision_without_sharding():
    """Whole copies compute in bf16 as autocast does: faster than fp32, and what is not planned is refused by name."""
    step = lambda *words: json.loads(run("simulate", "llama3.2-1b", "--gpus", "8", "--on", "dgx-h100", "--framework", "ddp",
                                         "--json", *words).stdout)["step_time_s"]
    check(step() < 0.7 * step("--param-dtype", "fp32"), "DDP in bf16 is no faster than in fp32")
    for words, said in ((["--param-dtype", "fp16"], "autocast"), (["--reduce-dtype", "bf16"], "ddp-comm-hook"),
                        (["--ddp-comm-hook", "bf16", "--ddp-mixed-precision", "yes"], "mixed precision")):
        done = run("plan", "gpt2", "--gpus", "8", "--seq", "512", "--framework", "ddp", *words, code=2)
        check(said in done.stderr, f"{words}: {done.stderr}")


def test_diff(folder):
    model = str(folder / "config.json")
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


def test_studies():
    tuned = json.loads(run("tune", "gpt2", "--gpus", "8", "--on", "dgx-a100-80", "--seq", "512", "--json").stdout)
    fits = [c for c in tuned["choices"] if c["fits"]]
    check(len(fits) > 4 and sum(c["chosen"] for c in fits) == 1, "tune: one choice")
    for c in fits:
        beaten = any(o["step_time_s"] <= c["step_time_s"] and o["device_peak_bytes"] <= c["device_peak_bytes"] and
                     (o["step_time_s"], o["device_peak_bytes"]) != (c["step_time_s"], c["device_peak_bytes"]) for o in fits)
        check(c["pareto"] == (not beaten), f"tune: the front is wrong at {c['options']}")
        check(c["verdict"] != "", "tune: every choice has a reason")
    check("fully_shard" in run("tune", "gpt2", "--gpus", "8", "--on", "dgx-a100-80", "--seq", "512", "--export", "torch").stdout, "export")
    sized = json.loads(run("size", "gpt2", "--on", "8x-l40s", "--gpus", "8", "--tokens", "1B", "--price", "l40s=1/h", "--seq", "512", "--json").stdout)
    row = sized["rows"][0]
    near(row["days"], 1e9 / (row["tokens_per_s_per_gpu"] * 8) / 86400, 1e-9, "days")
    near(row["gpu_hours"], row["days"] * 24 * 8, 1e-9, "GPU-hours")
    near(row["price_usd"], row["gpu_hours"], 1e-9, "price at 1 USD an hour")
    run("size", "gpt2", "--on", "8x-l40s", "--gpus", "8", "--tokens", "1000T", "--deadline", "1d", "--seq", "512", code=4)


def test_calls_for_pytorch(folder):
    """The exported calls are those of the framework, with the model's own names; where there is nothing to wrap that is said."""
    job = ["--gpus", "8", "--on", "dgx-a100-80", "--seq", "32"]
    for model, blocks in ((str(folder / "config.json"), "model.model.layers"), ("gpt2", "model.transformer.h")):
        code = run("tune", model, *job, "--export", "torch").stdout
        check("fully_shard(model, " in code and "FSDP(" not in code, f"FSDP2: {code}")
        check(blocks in code or "blocks" not in code, f"{model}: its blocks are {blocks}: {code}")
        compile(code, "exported", "exec")
        code = run("tune", model, *job, "--framework", "fsdp1", "--export", "torch").stdout
        check("FSDP(model, " in code and "fully_shard(" not in code, f"FSDP1: {code}")
        compile(code, "exported", "exec")
    code = run("tune", "gpt2", *job, "--prefetch-forward", "2", "--prefetch-backward", "1", "--wrap", "blocks", "--checkpoint", "full",
               "--export", "torch").stdout
    compile(code, "exported", "exec")
    for text in ("units[i + 1:i + 3]", "set_modules_to_backward_prefetch(units[i + 1:i + 2])", "units = [", "*model.transformer.h",
                 "full checkpointing"):
        check(text in code, f"{text}: {code}")
    code = run("tune", "gpt2", *job, "--framework", "fsdp1", "--fsdp1-forward-prefetch", "yes", "--fsdp1-limit-all-gathers", "no",
               "--fsdp1-backward-prefetch", "backward_post", "--export", "torch").stdout
    compile(code, "exported", "exec")
    for text in ("forward_prefetch=True", "limit_all_gathers=False", "BackwardPrefetch.BACKWARD_POST"):
        check(text in code, f"{text}: {code}")
    code = run("tune", "gpt2", *job, "--framework", "fsdp1", "--fsdp1-ignored-modules", "transformer.h.0.mlp", "--fsdp1-keep-low-precision-grads",
               "yes", "--optimizer", "sgd", "--accumulate", "2", "--export", "torch").stdout
    compile(code, "exported", "exec")
    for text in ("ignored_modules=[model.transformer.h[0].mlp]", "keep_low_precision_grads=True", "SGD", "accumulate 2"):
        check(text in code, f"{text}: {code}")
    for given, wanted in ((["--root-split", "no"], "--root-split no"), (["--wrap", "every:4"], "--wrap every:4"), (["--reshard", "true"], "--reshard true"),
                          (["--wrap", "root"], "--wrap root")):
        choices = json.loads(run("tune", "gpt2", *job, *given, "--json").stdout)["choices"]
        check(choices and all(wanted in c["options"] for c in choices), f"{given} is kept: {[c['options'] for c in choices]}")
    code = run("tune", "gpt2", *job, "--all-groupings", "--export", "torch").stdout
    compile(code, "exported", "exec")
    check(code.count("transformer.h") >= 1 and "fully_shard(model, " in code, f"groupings: {code}")
    for framework in ("ddp", "zero1", "zero2", "zero3", "sharded-optimizer"):
        done = run("tune", "gpt2", *job, "--framework", framework, "--export", "torch", code=2)
        check(framework in done.stderr and "fsdp2" in done.stderr and done.stdout == "", f"{framework}: {done.stderr}")


def test_described_units_are_planned_ones(folder):
    """models describe shows the units that a plan with the same words has; their parameters are all there."""
    model, plan = str(folder / "config.json"), str(folder / "units.json")
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


def test_describe_without_options():
    """Units as simulate counts them, FLOPs without --seq: 2 x 7,504,658,432 weights x 2048 tokens forward, and half of
    4 x 2048^2 x 4096 x 32 in causal attention."""
    text = run("models", "describe", "llama3-8b").stdout
    rows = [line for line in text.splitlines() if line.startswith("unit ")]
    units = sum(int(r.split("(")[1].split()[0]) if " units)" in r else 1 for r in rows)
    answer = json.loads(run("simulate", "llama3-8b", "--gpus", "8", "--on", "dgx-h100", "--json").stdout)
    units -= sum(r.split()[1] == "0" for r in rows)  # A root without parameters.
    check(f", {units} units" in answer["framework"], f"{answer['framework']}: {rows}")
    forward = 2 * 7_504_658_432 * 2048 + 2 * 2048**2 * 4096 * 32
    check(f"{forward / 1e12:.2f} TFLOP" in text, f"{forward / 1e12:.2f} TFLOP forward: {text}")


def test_same_bytes_at_any_thread_count():
    """Studies run on all cores; one core must give the same bytes."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = os.sched_getaffinity(0)
    for words in (("tune", "gpt2", "--gpus", "8", "--on", "dgx-a100-80", "--seq", "512", "--json"),
                  ("size", "gpt2", "--on", "dgx-a100-80,dgx-h100", "--tokens", "1B", "--seq", "512", "--json")):
        many = run(*words).stdout
        os.sched_setaffinity(0, {min(cores)})
        one = run(*words).stdout
        os.sched_setaffinity(0, cores)
        check(one == many, f"{words[0]}: one thread and {len(cores)} give different bytes")


def test_html(folder):
    page = folder / "report.html"
    run("simulate", "gpt2", "--gpus", "8", "--on", "dgx-a100-80", "--seq", "512", "--html", str(page))
    text = page.read_text()
    check("http://" not in text and "https://" not in text.split("const DATA")[0], "the report loads nothing from the network")
    for word in ("Verdict", "Streams over time", "Memory over time", "Wrap curve", "Assumptions"):
        check(word in text, f"the report lacks {word}")


def test_models_and_hardware():
    described = json.loads(run("models", "describe", "llama3-8b", "--json").stdout)
    check(described["parameters"]["total"] == 8_030_261_248, "Llama-3-8B has 8,030,261,248 parameters")
    check(len(json.loads(run("models", "--json").stdout)) >= 12, "twelve models at least")
    check(len(json.loads(run("hw", "list", "--json").stdout)) >= 8, "eight machines at least")
    run("hw", "describe", "dgx-h100", "--topology")


def main():
    test_welcome_and_help()
    test_simulate()
    test_studies()
    test_same_bytes_at_any_thread_count()
    test_models_and_hardware()
    test_images_per_second()
    test_help_is_short()
    test_searches_that_find_nothing_say_so_by_their_exit_code()
    test_a_mixed_network_is_no_slower_than_the_slow_one()
    test_the_header_says_what_is_trained_and_on_what()
    test_reasons_of_tune_are_those_of_the_table()
    with tempfile.TemporaryDirectory() as folder:
        test_profiles_and_models_in_the_wrong_place_are_named(pathlib.Path(folder))
    test_a_deterministic_spread_runs_once()
    test_describe_without_options()
    test_precision_without_sharding()
    test_refusals_of_what_cannot_run()
    test_host_memory_of_a_node()
    test_sharded_optimizer_computes_in_16_bits()
    test_numbers_and_orders_decide_exit_codes()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        test_config_file(folder)
        test_configuration_asks_the_same_again(folder)
        test_plan_run_compare(folder)
        test_planted_bugs(folder)
        test_numerics_without_a_reference(folder)
        test_diff(folder)
        test_calls_for_pytorch(folder)
        test_described_units_are_planned_ones(folder)
        test_html(folder)
    print("\n".join(FAILURES) or "all well")
    sys.exit(1 if FAILURES else 0)


main()

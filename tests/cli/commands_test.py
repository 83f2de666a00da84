"""Runs the program as a user does and checks what it answers: help, headers, one configuration, refusals, exit codes. Values are
checked against rules, not against ourselves."""
import json

from program import SMALL, check, near, run, run_tests


def test_welcome_and_help():
    text = run().stdout
    for question in ("Will it fit", "How should I wrap", "What should we buy"):
        check(question in text, f"welcome lacks {question}")
    for command in ("simulate", "plan", "show", "run", "compare", "diff", "tune", "size", "calibrate", "import", "models", "hw"):
        text = run(command, "--help").stdout
        check(text.index("Examples") < text.index("Usage"), f"{command} --help must start with examples")


def test_help_is_short():
    text = run("simulate", "--help").stdout
    check(len(text.splitlines()) < 110, f"simulate --help has {len(text.splitlines())} lines")
    check("--zero-reduce-bucket-size" not in text and "--help-all" in text, "options of one framework on demand")
    check("--zero-reduce-bucket-size" in run("simulate", "--help-all").stdout, "--help-all has everything")


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


def test_the_header_says_what_is_trained_and_on_what():
    job = ["--gpus", "2", "--on", "dgx-h100", "--seq", "64", "--suggest", "no"]
    text = run("simulate", "gpt2", *job, "--lora-rank", "8").stdout
    check("LoRA rank 8 on c_attn in fp32, 294.91 K trained" in text, text)
    text = run("simulate", "llama-tiny", *job, "--lora-rank", "8", "--lora-dtype", "base", "--lora-base", "4bit").stdout
    check("LoRA rank 8 on q_proj, v_proj in bf16" in text and "in 4 bits" in text, text)
    check("1 image of 224 x 224" in run("simulate", "vit-b16", *job[:4], "--suggest", "no").stdout, "images of ViT")


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


def test_precision_without_sharding():
    """Whole copies compute in bf16 as autocast does: faster than fp32, and what is not planned is refused by name."""
    step = lambda *words: json.loads(run("simulate", "llama3.2-1b", "--gpus", "8", "--on", "dgx-h100", "--framework", "ddp",
                                         "--json", *words).stdout)["step_time_s"]
    check(step() < 0.7 * step("--param-dtype", "fp32"), "DDP in bf16 is no faster than in fp32")
    for words, said in ((["--param-dtype", "fp16"], "autocast"), (["--reduce-dtype", "bf16"], "ddp-comm-hook"),
                        (["--ddp-comm-hook", "bf16", "--ddp-mixed-precision", "yes"], "mixed precision")):
        done = run("plan", "gpt2", "--gpus", "8", "--seq", "512", "--framework", "ddp", *words, code=2)
        check(said in done.stderr, f"{words}: {done.stderr}")


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


run_tests(globals())

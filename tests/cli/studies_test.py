"""Searches over configurations, machines and ranks: tune, size, spread and the calls that tune exports."""
import json
import os
import re

from program import check, near, run, run_tests, small_model


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


def test_a_deterministic_spread_runs_once():
    words = ["spread", "gpt2", "--seq", "64", "--gpus", "4", "--on", "dgx-h100"]
    check(len(json.loads(run(*words, "--slow-ranks", "1:1.2", "--json").stdout)["steps_s"]) == 1, "nothing is random")
    check(len(json.loads(run(*words, "--jitter", "0.02", "--samples", "3", "--json").stdout)["steps_s"]) == 3, "three seeds")


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
    for model, blocks in ((small_model(folder), "model.model.layers"), ("gpt2", "model.transformer.h")):
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


run_tests(globals())

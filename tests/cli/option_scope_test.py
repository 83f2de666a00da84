"""Options of one framework given to another: exit 2 and a message that names the option, the framework and the owner."""
import json
import os
import subprocess
import sys

PROGRAM = sys.argv[1]
JOB = ["simulate", "gpt2", "--gpus", "8", "--on", "dgx-h100", "--seq", "256"]
FAILURES = []


def run(*words):
    done = subprocess.run([PROGRAM, *JOB, *words], capture_output=True, env={**os.environ, "NO_COLOR": "1"})
    return done.returncode, done.stderr.decode(errors="replace")


def answer(*words):
    done = subprocess.run([PROGRAM, *JOB, *words], capture_output=True)
    found = json.loads(done.stdout)
    return found["step_time_s"], found["communication"], found["memory"]["device_peak_bytes"]


def refused(framework, option, value, owner):
    code, message = run("--framework", framework, "--" + option, value)
    for text in ("--" + option, framework, owner):
        if text not in message:
            FAILURES.append(f"{framework} --{option}: the message lacks {text!r}: {message[:300]}")
    if code != 2:
        FAILURES.append(f"{framework} --{option} {value}: exit {code}, expected 2")


def main():
    for option, value in (("shard", "8"), ("reshard", "false"), ("offload", "params"), ("wrap", "root"), ("prefetch-forward", "2"),
                          ("prefetch-backward", "2"), ("zero-reduce-bucket-size", "1e6")):
        refused("ddp", option, value, "zero3" if option.startswith("zero") else "fsdp2")
    for option, value in (("wrap", "root"), ("reshard", "2"), ("sync-each-micro-batch", "no"), ("model-dtype", "bf16"),
                          ("ddp-static-graph", "yes"), ("fsdp1-strategy", "no_shard")):
        owner = {"ddp-static-graph": "ddp", "fsdp1-strategy": "fsdp1"}.get(option, "fsdp2")
        refused("zero2", option, value, owner)
    refused("zero1", "zero-prefetch-bucket-size", "5", "zero3")
    refused("zero3", "zero-allgather-bucket-size", "6", "zero1, zero2")
    refused("fsdp2", "zero-sub-group-size", "5", "zero3")
    refused("fsdp2", "fsdp1-use-orig-params", "yes", "fsdp1")
    # An offload that the framework does not have, by its name.
    for framework, what in (("fsdp2", "optimizer"), ("fsdp2", "both"), ("zero1", "params"), ("zero2", "both")):
        code, message = run("--framework", framework, "--offload", what)
        if code != 2 or "offload" not in message:
            FAILURES.append(f"{framework} --offload {what}: exit {code}: {message[:300]}")
    refused("zero3", "autocast", "yes", "ddp")
    for framework in ("fsdp1", "ddp", "zero3", "none"):
        refused(framework, "float8-all-gather", "yes", "fsdp2")
    # An option without the one that gives it a meaning.
    for words in (("--float8-all-gather", "yes"), ("--checkpoint-reentrant", "yes"), ("--framework", "ddp", "--replicate", "2"),
                  ("--checkpoint", "every:13"), ("--framework", "zero3", "--float8", "tensorwise"),
                  ("--framework", "ddp", "--ddp-powersgd-rank", "8"), ("--framework", "zero3", "--zero-pin-memory", "yes"),
                  ("--framework", "zero3", "--zero-offload-ratio", "0.5"), ("--param-dtype", "fp32", "--reduce-dtype", "fp32", "--on", "2x-titan-rtx", "--tf32", "yes"),
                  ("--framework", "ddp", "--ddp-bucket-cap-mb-list", "1,25", "--ddp-bucket-cap-mb", "30"),
                  ("--framework", "zero3", "--zero-gpus-per-node", "8"), ("--attention", "eager", "--attention-kernel", "cudnn"),
                  ("--param-dtype", "fp32", "--attention-kernel", "cudnn"),
                  *(("--framework", f, "--float8", "tensorwise", "--float8-all-gather", "yes")
                    for f in ("fsdp1", "ddp", "zero1", "zero2", "none", "sharded-optimizer"))):
        code, message = run(*words)
        if code != 2 or words[-2] not in message:
            FAILURES.append(f"{words}: exit {code}: {message[:300]}")
    # Policies of FSDP1 that do not go by --wrap and --root-split.
    for policy in ("transformer", "module_class", "always"):
        for words in (("--wrap", "root"), ("--wrap", "size:1000000"), ("--wrap", "every:2"), ("--root-split", "yes")):
            code, message = run("--framework", "fsdp1", "--fsdp1-policy", policy, *words)
            if code != 2 or words[0].strip("-") not in message or "policy" not in message:
                FAILURES.append(f"{policy} {words}: exit {code}: {message[:300]}")
        code, message = run("--framework", "fsdp1", "--fsdp1-policy", policy, "--wrap", "blocks", "--root-split", "no")
        if code != 0:
            FAILURES.append(f"{policy} with its own wrapping: exit {code}: {message[:300]}")
    # What belongs is taken.
    for words in (("--framework", "ddp", "--ddp-static-graph", "yes"), ("--framework", "zero3", "--zero-sub-group-size", "1e8"),
                  ("--framework", "zero3", "--zero-reduce-bucket-size", "auto"), ("--framework", "zero2", "--offload", "optimizer"), ("--framework", "fsdp1", "--autocast", "yes"),
                  ("--framework", "ddp", "--ddp-comm-hook", "powersgd", "--ddp-powersgd-rank", "8"),
                  ("--framework", "zero3", "--zero-quantized-gradients", "yes", "--zero-gpus-per-node", "8", "--param-dtype", "fp16"),
                  ("--float8", "tensorwise", "--float8-all-gather", "yes"), ("--attention", "eager", "--attention-kernel", "flash2")):
        code, message = run(*words)
        if code != 0:
            FAILURES.append(f"{words}: exit {code}: {message[:300]}")
    # "auto" for a hidden size h of 768 (transformers, trainer_config_finalize): h * h, int(0.9 * h * h), 10 * h.
    zero3 = ("--framework", "zero3", "--json")
    auto, given = ([w for o, v in values for w in ("--zero-" + o, v)] for values in (
        [(o, "auto") for o in ("reduce-bucket-size", "prefetch-bucket-size", "param-persistence-threshold")],
        [("reduce-bucket-size", "589824"), ("prefetch-bucket-size", "530841"), ("param-persistence-threshold", "7680")]))
    if answer(*zero3, *auto) != answer(*zero3, *given):
        FAILURES.append("\"auto\" is not what a trainer fills in")
    if answer(*zero3, *auto) == answer(*zero3):
        FAILURES.append("\"auto\" is the default")
    for f in FAILURES:
        print(f)
    sys.exit(1 if FAILURES else 0)


main()

"""Questions as people type them: numbers with units, names of the hub and of the driver, other tools' option names, defaults that
fit the model, and what the answers to `size`, `--largest` and `--frameworks` must agree with."""
import json

from program import check, run, run_tests


def answer(*words):
    found = json.loads(run(*words, "--json").stdout or "{}")
    if isinstance(found, dict):
        found.pop("configuration", None)  # As typed.
    return found


def refused(words, *wanted):
    message = run(*words, code=2).stderr
    for text in wanted:
        check(text in message, f"{words}: the message lacks {text!r}: {message[:300]}")


def test_numbers():
    job = ["simulate", "llama3.2-1b", "--gpus", "8", "--on", "dgx-h100"]
    check(answer(*job, "--seq", "1k") == answer(*job, "--seq", "1024") == answer(*job, "--seq", "1,024"), "1k, 1024 and 1,024 tokens")
    refused([*job, "--seq", "1kk"], "--seq", "nearest is \"1k\"")
    refused([*job, "--seq", "1,02"], "--seq", "nearest is \"102\"")
    refused([*job, "--seq", "1.0001k"], "--seq", "whole number")
    gather = ["collective", "all_gather", "--gpus", "8", "--on", "dgx-h100", "--bytes"]
    check(answer(*gather, "1GB") == answer(*gather, "1e9") == answer(*gather, "1,000,000,000"), "1GB is 10^9 bytes")
    check(answer(*gather, "1GiB") == answer(*gather, str(2 ** 30)), "1GiB is 2^30 bytes")
    refused([*gather, "1G"], "--bytes", "1GB or 1GiB")
    check(answer(*job, "--device-memory", "40") == answer(*job, "--device-memory", "40GiB"), "device memory in GiB")
    for kind in ("allreduce", "all-reduce", "AllReduce"):
        run("collective", kind, "--gpus", "8", "--on", "dgx-h100", "--bytes", "1MiB")
    size = ["size", "gpt2", "--on", "dgx-h100", "--gpus", "8", "--micro-batches", "1", "--seq", "256", "--checkpoint", "none", "--tokens"]
    check(answer(*size, "1B") == answer(*size, "1,000,000,000") == answer(*size, "1b"), "1B tokens")
    refused([*size, "1,00"], "--tokens", "nearest is \"100\"")


def test_names():
    def name(model):
        return answer("models", "describe", model)["name"]

    for typed, meant in (("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"), ("meta-llama/Llama-3.1-70B-Instruct", "llama3.1-70b"),
                         ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama3.1-8b"), ("meta-llama/Llama-2-7b-chat-hf", "llama2-7b"),
                         ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"), ("Llama-3.1-8B-Instruct", "llama3.1-8b"),
                         ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"), ("google/gemma-2-9b-it", "gemma2-9b"),
                         ("Qwen/Qwen3-8B-Base", "qwen3-8b"), ("bert-base-uncased", "bert-base")):
        check(name(typed) == meant, f"{typed} is {name(typed)}, not {meant}")
    # Others' copies may be anything; another architecture is no slip of ours.
    refused(["models", "describe", "someone/Llama-3.1-8B-Instruct"], "neither a known model")
    message = run("models", "describe", "command-r", code=2).stderr
    check("gemma" not in message and "no known name is near" in message, f"command-r: {message}")
    job = ["simulate", "llama3.2-1b", "--gpus", "8", "--seq", "512", "--suggest", "no", "--param-dtype", "fp16", "--on"]
    for typed, meant in (("8xA100", "8x-a100"), ("A100 80GB", "a100-80"), ("h100 sxm", "h100-80"), ("8 x NVIDIA A100-SXM4-80GB", "8x-a100-80"),
                         ("NVIDIA H100 80GB HBM3", "h100-80"), ("A100 40GB PCIe", "a100-pcie-40"), ("NVIDIA GeForce RTX 4090", "rtx4090"),
                         ("DGX H100", "dgx-h100"), ("L40S 48GB", "l40s"), ("Tesla V100-SXM2-32GB", "v100-32")):
        machines = [answer("hw", "describe", words) for words in (typed, meant)]
        for machine in machines:
            machine.pop("name", None)  # As typed.
        check(machines[0] == machines[1] != {}, f"{typed} is not {meant}")
    refused([*job, "A100 60GB"], "there is no hardware")
    check("a100-40" in run(*job, "a100").stderr, "a100 has two sizes")
    for clear in ("a100-80", "A100 40GB PCIe", "8xH100"):
        check(run(*job, clear).stderr == "", f"{clear} needs no note")


def test_foreign_names(folder):
    job = ["simulate", "gpt2", "--gpus", "8", "--on", "dgx-h100"]
    for typed, right in (("--batch-size", "--micro-batch"), ("--seq-len", "--seq"), ("--seq_length", "--seq"), ("--nodes", "--gpus"),
                         ("--gradient-checkpointing", "--checkpoint"), ("--global-batch", "--accumulate"), ("--tp", "not modelled"),
                         ("--model", "first argument"), ("--micro_batch", "use --micro-batch"), ("--zero-stage", "zero3")):
        refused([*job, typed, "2"], "no such option", right)
    refused([*job, "--framework", "deepspeed"], "zero1, zero2 and zero3")
    refused([*job, "--framework", "fsdp"], "fsdp2 is fully_shard")
    refused(["simulate", "gpt2", "--gpus", "8", "--on", "dgx-h100", "--compile"], "--compile", "needs a value", "yes, no")
    refused([*job, "--compile", "--seq"], "2 problems", "--compile", "--seq")
    refused([*job, "--lora-alpha", "8"], "--lora-alpha", "--lora-rank")
    # Keys of DeepSpeed's file (docs/framework-options.md): the option of that meaning, or that there is none.
    for typed, right in (("overlap_comm", "--zero-overlap-comm"), ("reduce_scatter", "--zero-reduce-scatter"), ("sub_group_size", "--zero-sub-group-size"),
                         ("reduce_bucket_size", "--zero-reduce-bucket-size"), ("stage3_max_live_parameters", "--zero-max-live-parameters"),
                         ("max_reuse_distance", "--zero-max-reuse-distance"), ("pin_memory", "--zero-pin-memory"), ("ratio", "--zero-offload-ratio"),
                         ("offload_param", "--offload"), ("module_granularity_threshold", "--zero-module-granularity"),
                         ("wall_clock_breakdown", "--zero-wall-clock-breakdown"), ("use_multi_rank_bucket_allreduce", "--zero-multi-rank-allreduce"),
                         ("communication_data_type", "--reduce-dtype"), ("data_types", "import deepspeed"), ("zero_optimization", "import deepspeed"),
                         ("stage3_gather_16bit_weights_on_model_save", "changes nothing"), ("prescale_gradients", "not modelled"),
                         ("gradient_predivide_factor", "not modelled"), ("sparse_gradients", "not planned"), ("mics_shard_size", "MiCS"),
                         ("memory_efficient_linear", "not modelled"), ("cpu_checkpointing", "not modelled"), ("partition_activations", "not modelled"),
                         ("loss_scale", "changes nothing"), ("nvme_path", "NVMe"), ("zero_quantized_nontrainable_weights", "not planned"),
                         ("use_all_reduce_for_fetch_params", "not planned"), ("zeropp_loco_param", "not planned"), ("deepspeed", "import deepspeed"),
                         # Accelerate's and torchtitan's.
                         ("fsdp_version", "--framework fsdp1"), ("fsdp_auto_wrap_policy", "--wrap"), ("fsdp_activation_checkpointing", "--checkpoint"),
                         ("fsdp_transformer_layer_cls_to_wrap", "--wrap"), ("distributed_type", "import accelerate"), ("config_file", "import accelerate"),
                         ("fsdp_state_dict_type", "changes nothing"), ("selective_ac_option", "--checkpoint"), ("gc_freq", "changes nothing")):
        refused([*job, "--framework", "zero3", f"--{typed}", "1"], "no such option", right)
    path = folder / "job.yaml"
    path.write_text("model: gpt2\ngpus: 8\non: dgx-h100\nmicro_batch: 2\n")
    refused(["simulate", "--config", str(path)], "line 4", "micro-batch")


def test_import_job(folder):
    ds = folder / "ds.json"
    ds.write_text(json.dumps({"train_batch_size": 64, "bf16": {"enabled": True}, "steps_per_print": 10, "prescale_gradients": True,
                              "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto", "overlap_comm": False}}))
    refused(["simulate", "gpt2", "--gpus", "8", "--on", "dgx-h100", "--config", str(ds)], "job file of DeepSpeed", f"foreshard import deepspeed {ds}")
    refused(["import", "deepspeed", str(ds)], "train_batch_size", "--gpus")
    refused(["import", "deepspeeed", str(ds)], "deepspeed, accelerate, torchtitan")
    job = folder / "imported.yaml"
    said = run("import", "deepspeed", str(ds), "--gpus", "8", "-o", str(job)).stdout
    for text in ("framework: zero3", "zero_optimization.stage: 3", "not modelled", "prescale_gradients: true", "same plan", "steps_per_print: 10",
                 "open", "--seq", f"--config {job}"):
        check(text in said, f"import says {text}: {said}")
    text = job.read_text()
    check(run("import", "deepspeed", str(ds), "--gpus", "8").stdout.strip() == text.strip(), "the same options on standard output")
    document = answer("import", "deepspeed", str(ds), "--gpus", "8")
    check(document["options"]["micro-batch"] == "8" and document["options"]["zero-overlap-comm"] == "no", f"{document['options']}")
    check({k["key"] for k in document["keys"]} == {"train_batch_size", "bf16.enabled", "steps_per_print", "prescale_gradients",
                                                   "zero_optimization.stage", "zero_optimization.stage3_prefetch_bucket_size",
                                                   "zero_optimization.overlap_comm"}, f"{document['keys']}")
    for name, text, program in (("a.yaml", "distributed_type: FSDP\nnum_processes: 8\n", "accelerate"), ("t.toml", "[training]\nseq_len = 512\n", "torchtitan")):
        other = folder / name
        other.write_text(text)
        refused(["simulate", "gpt2", "--gpus", "8", "--on", "dgx-h100", "--config", str(other)], f"foreshard import {program} {other}")
        check("options" in answer("import", program, str(other)), f"import {program} reads {name}")
    line = ["simulate", "gpt2", "--on", "dgx-h100", "--suggest", "no"]
    by_file = run(*line, "--config", str(job)).stdout
    # By hand: 64 sequences / 8 GPUs; DeepSpeed's own names in docs/framework-options.md.
    by_hand = run(*line, "--gpus", "8", "--framework", "zero3", "--micro-batch", "8", "--param-dtype", "bf16", "--zero-overlap-comm", "no",
                  "--zero-prefetch-bucket-size", "auto").stdout
    check(by_file == by_hand and "ZeRO-3" in by_file, f"the imported job is the one written by hand:\n{by_file}\n{by_hand}")


def test_defaults(folder):
    # GPT-2 has 1024 learned positions.
    done = run("simulate", "gpt2", "--gpus", "8", "--on", "dgx-h100", "--suggest", "no")
    check("--seq 1024" in done.stderr, f"the sequence that was chosen is said: {done.stderr}")
    asked = run("simulate", "gpt2", "--gpus", "8", "--on", "dgx-h100", "--suggest", "no", "--seq", "1024")
    check(done.stdout == asked.stdout and asked.stderr == "", "the default is --seq 1024")
    # T5: one table of embeddings for encoder, decoder and head (modeling_t5.py).
    path = folder / "t5.json"
    path.write_text(json.dumps({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 32128, "d_model": 512,
                                "d_kv": 64, "d_ff": 2048, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 8,
                                "relative_attention_num_buckets": 32, "feed_forward_proj": "relu", "is_encoder_decoder": True}))
    job = ["simulate", str(path), "--gpus", "8", "--on", "dgx-h100", "--seq", "128", "--suggest", "no"]
    done = run(*job)
    check("--root-split no" in done.stderr and "shared.weight" in done.stderr, f"T5: {done.stderr}")
    check(done.stdout == run(*job, "--root-split", "no").stdout, "T5: --root-split no")
    refused([*job, "--root-split", "yes"], "shared.weight")
    # Embedding and head tied to each other alone stay a unit of their own.
    check("root-split" not in run("simulate", "gpt2", "--gpus", "8", "--on", "dgx-h100", "--suggest", "no").stderr, "GPT-2 is split")


def test_largest():
    for words, option, step in ((["gpt2-xl", "--gpus", "1", "--framework", "none", "--seq", "256", "--on", "1x-a100-80"], "micro-batch", 1),
                                (["llama3.2-1b", "--gpus", "2", "--on", "2x-rtx4090"], "seq", 128)):
        found = answer("simulate", *words, "--largest", option)
        at, next_up = found["largest"], found["largest"] + found["granularity"]
        check(found["granularity"] == step and found["stopped_by"] == "memory", f"{words}: {found}")
        here = answer("simulate", *words, f"--{option}", str(at))
        check(here["memory"]["fits"] and here["step_time_s"] == found["step_time_s"], f"{words}: {at} does not give what was said")
        beyond = answer("simulate", *words, f"--{option}", str(next_up))
        m = beyond["memory"]
        tight = m["device_peak_bytes"] > 0.95 * m["device_capacity_bytes"]  # Twentieth left free, as tune does.
        check(not m["fits"] or m["allocator_retries_total"] > 0 or tight, f"{words}: {next_up} fits, too")
    found = answer("simulate", "gpt2", "--gpus", "8", "--on", "dgx-h100", "--largest", "seq")
    check((found["largest"], found["stopped_by"]) == (1024, "model"), f"GPT-2 ends at its positions: {found}")
    refused(["simulate", "gpt2", "--gpus", "8", "--on", "dgx-h100", "--largest", "seq", "--seq", "512"], "--seq", "--largest")


def test_frameworks():
    job = ["gpt2", "--gpus", "8", "--on", "dgx-h100", "--seq", "256"]
    rows = answer("tune", *job, "--frameworks", "all")
    check({r["framework"] for r in rows} >= {"fsdp2", "fsdp1", "zero1", "zero2", "zero3", "ddp"}, f"all frameworks: {rows}")
    check("none" not in {r["framework"] for r in rows}, "one GPU's is left out on eight")
    speeds = [r["tokens_per_s_per_gpu"] for r in rows if r["fits"]]
    check(speeds == sorted(speeds, reverse=True), "the fastest comes first")
    for r in rows[:2]:
        one = answer("simulate", *job, "--framework", r["framework"])
        check(one["step_time_s"] == r["step_time_s"], f"{r['framework']}: the table says what simulate says")
    refused(["tune", *job, "--frameworks", "fsdp2,fsdp9"], "--frameworks", "fsdp9")


def test_size():
    job = ["size", "gpt2", "--on", "dgx-h100", "--seq", "256", "--micro-batches", "1,4", "--checkpoint", "none"]
    # Whole nodes are billed: 12 GPUs lie on two nodes of 8.
    row = answer(*job, "--gpus", "12", "--tokens", "1B")["rows"][0]
    check(abs(row["gpu_hours"] / (row["days"] * 24 * 16) - 1) < 1e-9 and row["billed_gpus"] == 16, f"billed: {row}")
    # A fixed global batch: 96 sequences on 8 and 24 GPUs, not on 64.
    rows = answer(*job, "--gpus", "8,24,64", "--global-batch", "96")["rows"]
    for row in rows[:2]:
        check(row["gpus"] * row["micro_batch"] * row["accumulate"] == row["global_batch"] == 96, f"global batch: {row}")
    check("96" in rows[2]["note"] and "64 GPUs" in rows[2]["note"] and not rows[2]["fits"], f"refused: {rows[2]['note']}")
    refused([*job, "--global-batch", "96", "--accumulate", "2"], "--accumulate", "--global-batch")
    # Checkpointing is searched unless it was said: never slower than either.
    every = answer("size", "gpt2", "--on", "dgx-h100", "--seq", "256", "--gpus", "8")["rows"][0]
    for kind in ("none", "full"):
        one = answer("size", "gpt2", "--on", "dgx-h100", "--seq", "256", "--gpus", "8", "--checkpoint", kind)["rows"][0]
        check(one["checkpoint"] == kind and one["tokens_per_s_per_gpu"] <= every["tokens_per_s_per_gpu"], f"checkpointing {kind}")


run_tests(globals())

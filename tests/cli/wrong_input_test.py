"""Wrong inputs of all kinds: exit 2, within a second, a message that names the place and what is allowed."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PROGRAM = sys.argv[1]
FAILURES = []
JOB = ["--gpus", "8", "--on", "dgx-h100"]
# A loaded machine may be slow; the limit is for answers that take minutes, the printed worst tells the rest.
LIMIT_S = 20
WORST = [0.0, ""]


def refuse(words, *wanted, code=2):
    begin = time.monotonic()
    try:
        done = subprocess.run([PROGRAM, *words], capture_output=True, timeout=LIMIT_S, env={**os.environ, "NO_COLOR": "1"})
    except subprocess.TimeoutExpired:
        FAILURES.append(f"{words}: no answer within {LIMIT_S} s")
        return
    took = time.monotonic() - begin
    if took > WORST[0]:
        WORST[:] = [took, " ".join(words)]
    message = done.stderr.decode(errors="replace")
    if done.returncode != code:
        FAILURES.append(f"{words}: exit {done.returncode}, expected {code}: {message[:300]}")
    for text in wanted:
        if text not in message:
            FAILURES.append(f"{words}: the message lacks {text!r}: {message[:400]}")
    if done.stdout:
        FAILURES.append(f"{words}: wrote to standard output")


def options():
    refuse(["simulat", "llama3-8b"], "did you mean \"simulate\"")
    refuse(["simulate", "llama3-8b", *JOB, "--micro-bach", "2", "--sequ", "4"], "--micro-batch", "--seq", "2 problems")
    refuse(["simulate", "llama-3-9b", "--gpus", "0", "--on", "dgx-h1000"], "3 problems", "--gpus")
    refuse(["simulate", "llama3-8b", "--on", "dgx-h100"], "--gpus", "is missing")
    refuse(["simulate"], "MODEL")
    for value in ("-5", "1e3", "nan", "99999999999999999999", "", "8x"):
        refuse(["simulate", "llama3-8b", f"--gpus={value}", "--on", "dgx-h100"], "gpus")
    for option, value in (("wrap", "evry:2"), ("wrap", "every:0"), ("reshard", "maybe"), ("checkpoint", "every:-1"), ("param-dtype", "int8"),
                          ("optimizer", "adam"), ("clip", "perhaps"), ("framework", "fsdp3"), ("seq", "-1"), ("micro-batch", "0")):
        refuse(["simulate", "llama3-8b", *JOB, "--" + option, value], option)
    refuse(["simulate", "llama3-8b", *JOB, "--shard", "3"], "shard")
    for option, value in (("clip", "maybe"), ("reduce-dtype", "fp8"), ("seq", "x")):
        refuse(["simulate", "llama3-8b", *JOB, "--" + option, value], "wrong input\n")
    refuse(["simulate", "vit-b16", *JOB, "--seq", "64"], "--seq", "no tokens")
    refuse(["simulate", "vit-b16", *JOB, "--largest", "seq"], "--largest", "no tokens")
    refuse(["plan", "llama-tiny", "--gpus", "4", "--on", "nowhere"], "nowhere")
    refuse(["simulate", "llama3-8b", *JOB, "--lora-rank", "4", "--checkpoint", "full", "--checkpoint-reentrant", "yes"], "requires no gradient")
    refuse(["tune", "gpt2", *JOB, "--frameworks", "all", "--export", "torch"], "--export")
    refuse(["tune", "gpt2", *JOB, "--reshard", "4"], "--reshard", "smaller groups")
    refuse(["tune", "gpt2", *JOB, "--wrap", "modules:transformer.h.0"], "--wrap", "every:K")
    refuse(["tune", "gpt2", *JOB, "--wrap", "root", "--root-split", "yes"], "whole model")
    for strategy in ("hybrid_shard", "hybrid_shard_zero2"):
        for replicas in ([], ["--replicate", "1"]):
            refuse(["plan", "llama-tiny", "--gpus", "8", "--framework", "fsdp1", "--fsdp1-strategy", strategy, *replicas], "--replicate", "one replica")
    refuse(["simulate", "gpt2", *JOB, "--html", "a.x", "--trace", "./a.x"], "--trace", "--html")
    refuse(["tune", "gpt2", *JOB, "--export", "torch", "--json"], "--json", "--export")
    refuse(["score"], "score runs", "score collectives")
    for network in ("2x-a100-80-99999999g", "dgx-h100@99999999g", "dgx-h100@0g", "dgx-h100@1e300g"):
        refuse(["simulate", "llama3-8b", "--gpus", "16", "--on", network], "no network rate")
    refuse(["simulate", "llama3-8b", *JOB, "--wrap", "modules:no.such.module"], "no.such.module")
    refuse(["size", "gpt2", "--on", "dgx-h100", "--tokens", "many"], "--tokens")
    refuse(["size", "gpt2", "--on", "dgx-h100", "--tokens", "1T", "--price", "h100"], "--price")
    refuse(["size", "gpt2", "--on", "dgx-h100,dgx-h100", "--gpus", "8,8", "--micro-batches", "1,1", "--price", "h100=1,h100=2"],
           "4 problems", "--on", "--gpus", "--micro-batches", "--price")


def full_disk():
    """An answer that could not be written is no answer."""
    if not os.path.exists("/dev/full"):
        return
    for words in (["hw"], ["--help"], ["simulate", "gpt2", *JOB, "--json"], ["plan", "llama-tiny", "--gpus", "2", "--seq", "32"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, timeout=LIMIT_S)
        if done.returncode != 3 or b"standard output cannot be written" not in done.stderr:
            FAILURES.append(f"{words} on a full disk: exit {done.returncode}: {done.stderr[:200]!r}")


def own_tokens(folder):
    """A text tower's 77 tokens are a part of a sample: no option changes their number."""
    tower = write(folder, "tower.json", json.dumps({
        "format": "foreshard-model", "version": 1, "name": "tower", "architecture": "Tower", "classes": 8,
        "arguments": [{"name": "ids", "kind": "tokens", "vocabulary": 64, "shape": [-1, 77]}],
        "root": {"class": "Tower", "children": {"embed": {"leaf": "embedding", "rows": 64, "dim": 16}, "head": {"leaf": "linear", "in": 1232, "out": 8}},
                 "inputs": "ids", "outputs": "y",
                 "forward": [{"call": "embed", "in": "ids", "out": "e"}, {"do": "reshape", "ints": [0, 1232], "in": "e", "out": "f"},
                             {"call": "head", "in": "f", "out": "y"}]}}).encode())
    for words in (["--seq", "77"], ["--largest", "seq"]):
        refuse(["simulate", tower, *JOB, *words], words[0])
    refuse(["size", tower, "--on", "dgx-h100", "--gpus", "8", "--tokens", "1B"], "--tokens", "takes no tokens")
    done = subprocess.run([PROGRAM, "simulate", tower, *JOB], capture_output=True)
    if done.returncode != 0 or b"samples/s/GPU" not in done.stdout:
        FAILURES.append(f"tower: exit {done.returncode}: {done.stdout[:300]}{done.stderr[:300]}")


def write(folder, name, data):
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def models(folder):
    good = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    text = json.dumps(good)
    cases = {"truncated": text[:-20], "empty": "", "binary": bytes(range(256)) * 4, "deep": "[" * 100_000, "deep_objects": '{"a":' * 5_000,
             "not_object": "[1, 2]", "nan": text.replace("64", "NaN", 1), "duplicate": text[:-1] + ', "vocab_size": 65}',
             "wrong_type": json.dumps({**good, "hidden_size": "32"}), "negative": json.dumps({**good, "num_hidden_layers": -1}),
             "overflow": text.replace('"vocab_size": 64', '"vocab_size": 99999999999999999999999'),
             "fraction": json.dumps({**good, "hidden_size": 32.5}), "heads": json.dumps({**good, "num_key_value_heads": 3}),
             "huge": json.dumps({**good, "hidden_size": 1 << 40}), "many_layers": json.dumps({**good, "num_hidden_layers": 10 ** 9}),
             "other": json.dumps({**good, "model_type": "lama", "architectures": ["LamaForCausalLM"]}),
             "many_keys": "{" + ",".join(f'"k{i}": {i}' for i in range(200_000)) + "}"}
    for name, data in cases.items():
        refuse(["simulate", write(folder, name + ".json", data), *JOB], name + ".json")
    refuse(["simulate", str(folder / "absent.json"), *JOB], "absent.json")
    refuse(["simulate", "/", *JOB])
    refuse(["simulate", "/dev/zero", *JOB], "is a device")


def widths(folder):
    """Layers of a graph file whose widths do not fit, under every framework: PyTorch stops at the first product."""
    def graph(norm=16, up_in=16, up_out=64, down_in=64, down_out=16):
        leaves = {"norm": {"leaf": "layer_norm", "dim": norm}, "up": {"leaf": "linear", "in": up_in, "out": up_out},
                  "down": {"leaf": "linear", "in": down_in, "out": down_out}}
        block = {"class": "Block", "children": leaves, "inputs": "x", "outputs": "x",
                 "forward": [{"call": name, "in": "x" if name == "norm" else "h", "out": "h"} for name in leaves] + [{"do": "add", "in": ["x", "h"], "out": "x"}]}
        root = {"class": "Toy", "inputs": "ids", "outputs": "logits",
                "children": {"embed": {"leaf": "embedding", "rows": 64, "dim": 16}, "layers": {"repeat": 2, "of": block},
                             "head": {"leaf": "linear", "in": 16, "out": 64}},
                "forward": [{"call": "embed", "in": "ids", "out": "h"}, {"call": "layers", "each": True, "in": "h", "out": "h"},
                            {"call": "head", "in": "h", "out": "logits"}]}
        return json.dumps({"format": "foreshard-model", "version": 1, "name": "toy", "architecture": "Toy",
                           "arguments": [{"name": "ids", "kind": "tokens", "vocabulary": 64}], "root": root,
                           "roles": {"blocks": "layers.*", "embeddings": "embed", "tail": "head"}})

    good = write(folder, "fits.json", graph())
    done = subprocess.run([PROGRAM, "simulate", good, *JOB, "--suggest", "no"], capture_output=True, text=True)
    if done.returncode != 0:
        FAILURES.append(f"a graph file whose widths fit: {done.stderr}")
    for change, module in (({"norm": 15}, "layers.0.norm"), ({"up_in": 17}, "layers.0.up"), ({"up_out": 63}, "layers.0.down"),
                           ({"down_in": 65}, "layers.0.down"), ({"down_out": 17}, "layers.0")):
        bad = write(folder, "widths.json", graph(**change))
        for framework in ("fsdp2", "fsdp1", "ddp", "zero1", "zero2", "zero3", "sharded-optimizer"):
            refuse(["simulate", bad, *JOB, "--framework", framework], module, " of [")


def configs(folder):
    head = "model: gpt2\non: dgx-h100\n"
    cases = {"unknown": (head + "gpu: 8\n", "line 3", "gpus"), "twice": (head + "gpus: 8\ngpus: 16\n", "line 4", "second time"),
             "map": (head + "gpus: {a: 1}\n", "line 3"), "broken": (head + "gpus: [8\n", "YAML"), "list": ("- 1\n- 2\n", "name: value"),
             "binary": (b"\x00\x01\x02", "binary"), "wrong": (head + "gpus: eight\n", "line 3", "whole number"),
             "deep": ("a: " + "[" * 5000, "deep.yaml"), "two": (head + "gpus: 8\n---\n" + head, "more than one YAML document"),
             "endless": (' "mo","n}\n","n}\n', "YAML")}
    for name, (data, *wanted) in cases.items():
        refuse(["simulate", "--config", write(folder, name + ".yaml", data)], *wanted)


def plans(folder):
    model = write(folder, "tiny.json", json.dumps({"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
                                                   "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
                                                   "max_position_embeddings": 64}))
    path = folder / "plan.json"
    subprocess.run([PROGRAM, "plan", model, "--gpus", "2", "--seq", "8", "-o", str(path)], check=True, capture_output=True)
    plan = json.loads(path.read_text())

    def lie(name, change, *wanted):
        copy = json.loads(json.dumps(plan))
        change(copy)
        refuse(["run", write(folder, name + ".plan.json", json.dumps(copy))], name + ".plan.json", *wanted)

    lie("version", lambda p: p.update(version=2), "version")
    lie("world", lambda p: p.update(world=2 ** 60), "world")
    lie("world_negative", lambda p: p.update(world=-1), "world")
    lie("no_program", lambda p: p.update(programs=[]), "program")
    lie("index", lambda p: p["programs"][0]["instructions"].__setitem__(0, ["alloc", 10 ** 6]), "instructions[0]")
    lie("kind", lambda p: p["programs"][0]["instructions"].__setitem__(0, ["aloc", 0]), "instructions[0]", "alloc")
    lie("size", lambda p: p["programs"][0]["buffers"][0].__setitem__(0, 2 ** 62), "buffers[0]")
    lie("shape", lambda p: p["programs"][0]["tensors"][0].__setitem__(5, [2 ** 40]), "tensors[0]")
    lie("stream", lambda p: p["programs"][0]["launches"][0].__setitem__(2, 31), "launches[0]")
    lie("unknown", lambda p: p.update(wrld=2), "wrld")
    lie("event", lambda p: p["programs"][0].update(events=0), "event")
    lie("segment", lambda p: p["programs"][0].update(steps=[[10, 5]]), "steps[0]")
    for cut in (0.1, 0.5, 0.99):
        text = path.read_text()
        refuse(["show", write(folder, f"cut{cut}.json", text[:int(len(text) * cut)])], "not valid JSON")
    refuse(["show", str(path), "--step", "99"], "--step", "2 steps")
    for form, wanted in (("--executable=no", "--executable yes"), ("--compile=yes", "--compile no")):
        other = str(folder / "form.plan.json")
        subprocess.run([PROGRAM, "plan", model, "--gpus", "2", "--seq", "8", form, "-o", other], check=True, capture_output=True)
        refuse(["run", other], wanted)
    for command in (["show"], ["run"], ["compare", str(path)]):
        refuse([*command, model])
    refuse(["score", "runs", model])


def main():
    options()
    full_disk()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        models(folder)
        widths(folder)
        configs(folder)
        plans(folder)
        own_tokens(folder)
    print("\n".join(FAILURES) or "all refused", f"\nslowest answer {WORST[0]:.2f} s: {WORST[1]}")
    sys.exit(1 if FAILURES else 0)


main()

"""Step times of one's own: from a table to a profile to a prediction; what is wrong with a table is named."""
import json
import pathlib
import re
import sys

from program import check, run, run_tests

SOURCE = pathlib.Path(sys.argv[2])
JOB = ["llama3.2-1b", "--gpus", "8", "--seq", "2048"]


def answer(machine):
    return json.loads(run("simulate", *JOB, "--on", str(machine), "--json").stdout)


def test_one_step_reaches_a_prediction(folder):
    """The five columns that a row cannot do without; the step 10 % slower than predicted."""
    table, box = folder / "mine.csv", folder / "my-box.json"
    before = answer("dgx-h100")
    measured = 1.1 * before["step_time_s"]
    table.write_text(f"model,n_gpus,strategy,seq_len,step_time_s\nllama3.2-1b,8,FSDP2,2048,{measured}\n")
    files = sorted(folder.iterdir())
    shown = run("calibrate", "runs", str(table), "--on", "dgx-h100").stdout
    check(sorted(folder.iterdir()) == files and "-o FILE" in shown, "nothing is written without -o")
    found = json.loads(run("calibrate", "runs", str(table), "--on", "dgx-h100", "-o", str(box), "--json").stdout)
    row = found["rows"][0]
    check(row["row_id"] == "line 2", f"a row without a name is called after its line: {row}")
    after = answer(box)
    check(abs(row["before_step_s"] / before["step_time_s"] - 1) < 1e-9, f"the row is simulate's job: {row}, {before['step_time_s']}")
    check(abs(row["fitted_step_s"] / after["step_time_s"] - 1) < 1e-9, f"the profile predicts what the fit says: {row}, {after['step_time_s']}")
    check(before["step_time_s"] * 1.04 < after["step_time_s"] < measured, f"one step moves the prediction: {after['step_time_s']}")
    width = [a["step_time_p90_s"] / a["step_time_p10_s"] for a in (before, after)]
    check(width[1] < width[0], f"and narrows its range: {width}")
    check(run("calibrate", "runs", str(table), "--on", str(box)).returncode == 0, "a fitted profile can be fitted again")


def test_tokens_per_second_are_a_step_time(folder):
    step, tokens = folder / "step.csv", folder / "tokens.csv"
    step.write_text("model,n_gpus,strategy,seq_len,step_time_s\nllama3.2-1b,8,FSDP2,2048,0.125\n")
    tokens.write_text("model,n_gpus,strategy,seq_len,tokens_per_s_per_gpu\nllama3.2-1b,8,FSDP2,2048,16384\n")
    a, b = (json.loads(run("calibrate", "runs", str(t), "--on", "dgx-h100", "--json").stdout)["rows"] for t in (step, tokens))
    check(a == b, f"2048 tokens in 1/8 s are 16,384 a second: {a}, {b}")


def test_rows_that_take_no_part(folder):
    """Each column with words of its own, a machine that is another, times of another unit: row, column, found, allowed."""
    table = folder / "words.csv"
    columns = ["row_id", "model", "gpu", "n_gpus", "strategy", "dp_shard", "seq_len", "precision", "ac_mode", "compile", "attention_impl",
               "step_time_s", "peak_mem_gib", "mem_kind"]
    good = dict(model="llama3.2-1b", n_gpus="8", strategy="FSDP2", seq_len="2048", step_time_s="0.125")
    wrong = {"model": "my-llama", "gpu": "A100-80GB", "strategy": "Megatron", "precision": "int3", "ac_mode": "sometimes", "compile": "perhaps",
             "attention_impl": "paged", "dp_shard": "4", "step_time_s": "125", "seq_len": ""}
    rows = [{**good, "row_id": "good"}, *({**good, column: word, "row_id": f"wrong {column}"} for column, word in wrong.items()),
            {**good, "row_id": "wrong mem_kind", "peak_mem_gib": "10", "mem_kind": "swapped"}]
    table.write_text("\n".join([",".join(columns), *(",".join(r.get(c, "") for c in columns) for r in rows)]) + "\n")
    found = {r["row_id"]: r["left_out"] for r in json.loads(run("calibrate", "runs", str(table), "--on", "dgx-h100", "--json").stdout)["rows"]}
    check(found.pop("good") is None, "the good row takes part")
    for row, why in found.items():
        column = row.removeprefix("wrong ")
        said = why is not None and re.match(rf"columns? [^:]*\b{column}\b", why) is not None and (wrong.get(column, "swapped") in why)
        check(said, f"{row}: {why}")
        check(column in ("seq_len", "model", "dp_shard") or "allowed: " in why, f"{row} says what is allowed: {why}")
    rest = [r for r in rows if r["row_id"] != "good"]
    table.write_text("\n".join([",".join(columns), *(",".join(r.get(c, "") for c in columns) for r in rest)]) + "\n")
    text = run("calibrate", "runs", str(table), "--on", "dgx-h100", "-o", str(folder / "none.json"), code=2).stderr
    check(all(r["row_id"] in text for r in rest) and not (folder / "none.json").exists(), f"no row is left: all reasons, no file: {text}")


def test_headers(folder):
    table = folder / "header.csv"

    def refusal(header, row="llama3.2-1b,8,FSDP2,2048,0.125"):
        table.write_text(f"{header}\n{row}\n")
        return run("calibrate", "runs", str(table), "--on", "dgx-h100", code=2).stderr

    check('"n_gpus"' in refusal("model,ngpus,strategy,seq_len,step_time_s"), "a missing column is named")
    check("step_time_s, tokens_per_s_per_gpu, peak_mem_gib" in refusal("model,n_gpus,strategy,seq_len,colour"), "no measurement")
    text = refusal("model,n_gpus,strategy,seq_len,step_time_s,micro_bacth", "llama3.2-1b,8,FSDP2,2048,0.125,4")
    check('"micro_bacth"' in text and '"micro_batch"' in text, f"a slip of the pen is none of the further columns: {text}")
    check("twice" in refusal("model,n_gpus,strategy,seq_len,step_time_s,model", "llama3.2-1b,8,FSDP2,2048,0.125,x"), "a column twice")
    text = refusal("model,n_gpus,strategy,seq_len,step_time_s", "llama3.2-1b,eight,FSDP2,2048,fast")
    check("line 2, column n_gpus" in text and '"eight"' in text and "line 2, column step_time_s" in text, f"numbers: {text}")
    table.write_text("\ufeffmodel,n_gpus,strategy,seq_len,step_time_s,colour\nllama3.2-1b,8,fsdp2,2048,0.125,red\n")
    done = run("calibrate", "runs", str(table), "--on", "dgx-h100")
    check("columns not read: colour" in done.stderr, f"further columns are named: {done.stderr}")


def test_one_laboratory(folder):
    table = folder / "lab.csv"
    table.write_text("source_id,row_id,model,gpu,n_gpus,strategy,seq_len,step_time_s\nmine,a,llama3.2-1b,H100-80GB,8,FSDP2,2048,0.125\n")
    text = run("calibrate", "runs", str(table)).stdout
    check("none to leave out" in text and "1.0000 - 1.0000" not in text, f"one laboratory: {text}")
    file = json.loads(run("calibrate", "runs", str(table), "--json").stdout)
    check(all(c["range"] is None for c in file["ceilings"]) and "leaving one laboratory out" not in json.dumps(file), "no range of one")
    text = run("score", "runs", str(table)).stdout
    check("memory:" not in text and "time: mean" in text, f"no memory was measured: {text}")
    summary = json.loads(run("score", "runs", str(table), "--json").stdout)["summary"]
    check(summary["memory_mape"] is None and summary["time_mape"] is not None, f"nor is it in the JSON: {summary}")


def test_the_page_names_every_column():
    page = (SOURCE / "docs/formats/measured-runs.md").read_text()
    named = {name for line in page.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    read = set(re.findall(r'\{"(\w+)", &R::', (SOURCE / "study/runs_table.cc").read_text()))
    check(len(read) == 32 and named == read, f"docs/formats/measured-runs.md: {sorted(named ^ read)}")


run_tests(globals())

"""The program under test, and the runner of this folder's tests: every function test_* of a file, with a folder of its own where it asks
for one. Usage of each file: FILE FORESHARD."""
import inspect
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback

PROGRAM = sys.argv[1]
FAILURES = []
SMALL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
         "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 64, "tie_word_embeddings": False}


def check(good, message):
    if not good:
        FAILURES.append(message)


def near(a, b, relative, what):
    check(abs(a - b) <= relative * abs(b), f"{what}: {a}, expected {b}")


def run(*words, code=0):
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=600, env={**os.environ, "NO_COLOR": "1"})
    check(done.returncode == code, f"{words}: exit {done.returncode}, expected {code}\n{done.stderr}")
    return done


def small_model(folder):
    """A Llama of 2 blocks that CPU ranks train in a blink."""
    path = folder / "config.json"
    path.write_text(json.dumps(SMALL))
    return str(path)


def run_tests(module):
    """`module`: the globals of a test file. Ends the process: 1 if a check failed."""
    tests = [f for name, f in module.items() if name.startswith("test_")]
    for test in tests:
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(*[pathlib.Path(folder) for _ in inspect.signature(test).parameters])
            except Exception:  # An answer without a key, or none: the other tests still run.
                FAILURES.append(f"{test.__name__}: {traceback.format_exc()}")
    print("\n".join(FAILURES) or f"all well: {len(tests)} tests")
    sys.exit(1 if FAILURES or not tests else 0)

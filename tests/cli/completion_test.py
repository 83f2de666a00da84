"""Shell completion: bash reads the script, and completes what is asked. Usage: completion_test.py
FORESHARD"""

import subprocess
import sys

PROGRAM = sys.argv[1]


def script(*words, code=0):
    done = subprocess.run([PROGRAM, "completion", *words], capture_output=True, text=True)
    assert done.returncode == code, (words, done.returncode, done.stderr)
    return done.stdout if code == 0 else done.stderr


def completed(*line):
    """What bash offers for the last word of a command line."""
    words = " ".join(f"'{w}'" for w in ("foreshard", *line))
    asked = script("bash") + f"""
COMP_WORDS=({words}); COMP_CWORD={len(line)}; _foreshard; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.split()


def main():
    for shell in ("bash", "zsh"):
        read = subprocess.run(["bash", "-n"], input=script(shell), capture_output=True, text=True)
        assert read.returncode == 0, read.stderr
    assert "compinit" in script("zsh")
    assert "bash or zsh" in script("fish", code=2)
    assert "bash or zsh" in script(code=2)

    assert "simulate" in completed("sim")
    assert {"tune", "size", "help"} <= set(completed(""))
    assert "--checkpoint" in completed("simulate", "llama3-8b", "--check")
    assert "--micro-batch" not in completed("hw", "describe", "--micro")
    assert "describe" in completed("models", "desc")
    assert "llama3-70b" in completed("simulate", "llama3-7")
    assert "dgx-h100" in completed("simulate", "llama3-8b", "--on", "dgx-h")
    assert {"fsdp1", "fsdp2"} <= set(completed("tune", "gpt2", "--framework", "fsdp"))
    assert completed("tune", "gpt2", "--compile", "y") == ["yes"]
    assert set(completed("plan", "gpt2", "--reshard", "")) >= {"false", "true"} and "N" not in completed("plan", "gpt2", "--reshard", "N")
    assert "--help-all" in completed("simulate", "--hel")
    assert "completion bash" in script("--help")
    assert "llama3-70b" in completed("diff", "--model", "llama3-7")
    assert "etc/" in [w + "/" for w in completed("simulate", "gpt2", "--html", "et")]


main()

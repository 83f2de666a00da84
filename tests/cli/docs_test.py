#!/usr/bin/env python3
"""The documentation names files that exist, and every op kind and key of an answer that there is.
Usage: docs_test.py SOURCE PROGRAM"""
import glob
import json
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
pages = [root / "README.md", *sorted(root.glob("docs/**/*.md")), *sorted(root.glob("conformance/*.md"))]
folders = {p.name for p in root.iterdir() if p.is_dir() and p.name != "build"}
problems = []


def expanded(text):
    """a.{h,cc} and validate*.cc as the list of paths that it stands for."""
    braces = re.search(r"\{([^}]*)\}", text)
    if not braces:
        return [text]
    return [e for part in braces[1].split(",") for e in expanded(text.replace(braces[0], part.strip(), 1))]


for page in pages:
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for name in re.findall(r"`([A-Za-z0-9_.*{},/-]+)`", line):
            if name.split("/")[0] not in folders or "/" not in name or re.search(r"[A-Z]{4}", name):
                continue  # Not a path of this repository, or a placeholder such as gpus/NAME.json.
            for path in expanded(name):
                if not glob.glob(str(root / path)):
                    problems.append(f"{page.relative_to(root)}:{number}: `{path}` does not exist")
        for target in re.findall(r"\]\(([^)#:]+)\)", line):
            if not (page.parent / target).exists():
                problems.append(f"{page.relative_to(root)}:{number}: link to {target}, which does not exist")

operands = (root / "docs/formats/op_operands.md").read_text()
for kind in re.findall(r'X\(k\w+,\s*"([^"]+)"', (root / "core/op_kind.h").read_text()):
    if f"`{kind}`" not in operands:
        problems.append(f"docs/formats/op_operands.md: no row for `{kind}`")

keys_page = (root / "docs/framework-options.md").read_text() + (root / "docs/formats/job-files.md").read_text()
for table in root.glob("cli/foreign/*_keys.cc"):
    for key in re.findall(r'\{"([^"]+)",\s*k(?:Taken|SamePlan|NotModelled|Refused)\b', table.read_text()):
        if f"`{key}`" not in keys_page:
            problems.append(f"{table.relative_to(root)}: no page names `{key}`")


def keys_of(page):
    """The keys in the first column of a page's tables."""
    return {k for line in page.read_text().splitlines() if line.startswith("| `") for k in re.findall(r"`(\w+)`", line.split("|")[1])}


said = keys_of(root / "docs/formats/answer.md")
answer_page = (root / "docs/formats/answer.md").read_text()
job = ["llama3-8b", "--gpus", "8", "--on", "dgx-h100"]
given = set()
for words in ([*job, "--suggest", "no", "--device-memory", "20"], ["gpt2", *job[1:], "--framework", "zero3", "--offload", "optimizer", "--suggest", "yes"]):  # The second with suggestions.
    out = subprocess.run([sys.argv[2], "simulate", *words, "--json"], capture_output=True, text=True, timeout=300).stdout
    answer = json.loads(out)
    given |= {*answer, *answer["memory"]}
    for name, rows in [*answer.items(), *answer["memory"].items()]:
        of_rows = {k for row in rows if isinstance(row, dict) for k in row} if isinstance(rows, list) else set()
        problems += [f"docs/formats/answer.md: `{name}` does not name `{k}`" for k in sorted(of_rows) if f"`{k}`" not in answer_page]
if not answer["suggestions"]:
    problems.append("no suggestion, so the keys of its rows are not compared")
problems += [f"docs/formats/answer.md: no row for `{k}`" for k in sorted(given - said)]
problems += [f"docs/formats/answer.md: `{k}` is in no answer" for k in sorted(said - given)]

print("\n".join(problems) or "ok")
sys.exit(1 if problems else 0)

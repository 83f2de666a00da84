"""Checks the direction of includes between the folders: who may know whom (docs/architecture.md), and that those who run
schedules name no framework."""
import pathlib
import re
import sys

ALLOWED = {
    "core": set(),
    "models": {"core"},
    "hwprofiles": {"core"},
    "schedules": {"core"},
    "memory": {"core"},
    "schedules/planner": {"core", "models", "schedules"},
    "sim": {"core", "schedules", "hwprofiles", "memory"},
    "exec": {"core", "schedules", "memory"},
    "report": {"core", "schedules"},
    "study": {"core", "models", "schedules", "schedules/planner", "hwprofiles", "sim", "memory"},
    "conformance": {"core", "models", "schedules", "schedules/planner", "memory", "sim", "exec", "hwprofiles", "study"},
    "cli": {"core", "models", "schedules", "schedules/planner", "hwprofiles", "sim", "exec", "memory", "report", "study"},
}
# Slow headers, and the only places that may include them: docs/architecture.md says the same. Headers that only name a document
# take core/json_fwd.h; those of conformance/ hold the documents that they record, HfConfig a reader.
HEAVY = {
    "CLI/": re.compile(r"^cli/parse\.cc$"),
    "toml++/": re.compile(r"^cli/foreign/toml_json\.cc$"),
    "yaml-cpp/": re.compile(r"^(cli/config_file|hwprofiles/yaml_json)\.cc$"),
    "nlohmann/json.hpp": re.compile(r"^core/json\.h$"),
    "core/json.h": re.compile(r".*\.cc$|^conformance/.*\.h$|^models/import/hf_config\.h$|^schedules/json_row\.h$"),
    "boost/": re.compile(r".*\.cc$"),
}
# Whoever runs a schedule knows instructions, not who planned them.
WITHOUT_FRAMEWORKS = ("sim", "exec")
FRAMEWORK = re.compile(r"(?i:fsdp|\bddp|deepspeed|\bzero-?[123]\b|sharded[_ -]?optimizer)|ZeRO")
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.M)


def part_of(path):
    best = ""
    for part in ALLOWED:
        if path.startswith(part + "/") and len(part) > len(best):
            best = part
    return best


def main():
    root = pathlib.Path(sys.argv[1])
    wrong, files = [], 0
    for folder in sorted(root.iterdir()):
        if folder.name not in (*ALLOWED, "tests", "bench", "build", "shared") and any(folder.glob("*.cc")):
            wrong.append(f"{folder.name}/: a folder of code that ALLOWED (tests/cli/layering_test.py) does not name")
    for part in ALLOWED:
        for file in sorted((root / part).rglob("*")):
            if file.suffix not in (".cc", ".h", ".cu", ".cuh"):
                continue
            name = file.relative_to(root).as_posix()
            if part_of(name) != part:
                continue
            files += 1
            if part in WITHOUT_FRAMEWORKS:
                wrong += [f"{name}: names {found}: {part}/ must not know a framework" for found in FRAMEWORK.findall(file.read_text())]
            for own, system in INCLUDE.findall(file.read_text()):
                target = part_of(own) if own else ""
                if target and target != part and target not in ALLOWED[part]:
                    wrong.append(f"{name}: includes {own}: {part}/ must not know {target}/")
                for heavy, places in HEAVY.items():
                    if (own or system).startswith(heavy) and not places.match(name):
                        wrong.append(f"{name}: includes {own or system}, which is slow to compile: only in {places.pattern}")
    print("\n".join(wrong) or f"{files} files keep the direction")
    sys.exit(1 if wrong or files < 50 else 0)


main()

#!/usr/bin/env python3
"""Reads the events of `go test -json` and prints what a person wants to see.

testsum.py EVENTS          package lines, skips by name, and the output of what failed
testsum.py --count EVENTS  one line: N passed, N failed, N skipped
Exits with 1 if something failed or nothing ran.
"""
import collections
import json
import sys


def read(path):
    with open(path, encoding="utf-8", errors="replace") as events:
        for line in events:
            try:
                yield json.loads(line)
            except ValueError:  # a line of the go command itself
                yield {"Action": "output", "Package": "", "Output": line}


def main():
    count_only = sys.argv[1] == "--count"
    output = collections.defaultdict(list)
    outcome = collections.Counter()
    broken = 0
    for event in read(sys.argv[-1]):
        action, package, test = event["Action"], event.get("Package", ""), event.get("Test")
        key = (package, test)
        if action == "build-output":
            output[(event["ImportPath"], "build")].append(event["Output"])
        elif action == "build-fail":
            broken += 1
            if not count_only:
                print("".join(output[(event["ImportPath"], "build")]), end="")
        elif action == "output":
            output[key].append(event["Output"])
        elif action in ("pass", "fail", "skip"):
            text = output.pop(key, [])
            if test is not None:
                outcome[action] += 1
                if not count_only and action == "fail":
                    print("".join(text), end="")
                elif not count_only and action == "skip":
                    print("".join(line for line in text if "SKIP" in line), end="")
                continue
            broken += action == "fail"
            if not count_only:
                lines = "".join(text)
                if action != "fail":  # only the package's own closing line
                    lines = "".join(line for line in text if line.startswith(("ok ", "?  ", "\t")))
                print(lines, end="")
    if count_only:
        failed = max(outcome["fail"], 1 if broken else 0)
        print(f"{outcome['pass']} passed, {failed} failed, {outcome['skip']} skipped")
    return 1 if broken or outcome["fail"] or not outcome["pass"] else 0


sys.exit(main())

#!/usr/bin/env python3
"""Reads `go test -json` on standard input and prints, as it comes, what a person
wants to see: package lines, skips by name, and the output of what failed.

testsum.py COUNT  writes one line, "N passed, N failed, N skipped", to the file COUNT.
Exits with 1 if something failed or nothing ran.
"""
import collections
import json
import sys


def events():
    for line in sys.stdin:
        try:
            yield json.loads(line)
        except ValueError:  # a line of the go command itself
            print(line, end="", flush=True)


def main():
    output = collections.defaultdict(list)
    outcome = collections.Counter()
    broken = 0  # packages that failed, for whatever reason
    for event in events():
        action, package, test = event["Action"], event.get("Package", ""), event.get("Test")
        if action in ("build-output", "build-fail"):
            print(event.get("Output", ""), end="", flush=True)
        elif action == "output":
            output[package, test].append(event["Output"])
        elif action in ("pass", "fail", "skip"):
            text = output.pop((package, test), [])
            if test is None:
                broken += action == "fail"
                if action != "fail":  # only its closing line
                    text = [line for line in text if line.startswith(("ok ", "?  ", "\t"))]
            else:
                outcome[action] += 1
                if action == "pass":
                    text = []
                elif action == "skip":
                    text = [line for line in text if "SKIP" in line]
            print("".join(text), end="", flush=True)
    failed = outcome["fail"] or broken
    with open(sys.argv[1], "w", encoding="utf-8") as count:
        count.write(f"{outcome['pass']} passed, {failed} failed, {outcome['skip']} skipped\n")
    return 1 if failed or not outcome["pass"] else 0


sys.exit(main())

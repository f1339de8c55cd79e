"""Reads a result of `oroshi lab run` for scripts/bench-check: which figures are worse, and which set-ups failed."""

import json
import sys

# A figure counts as worse from this share on.
LIMIT = 0.03
# The primary metrics of scripts/checks, with the better direction of each.
PRIMARY = {"cpu": "lower", "load-cpu": "lower"}


def worse(result):
    """Returns the sentences on figures of the primary metric that are worse by more than LIMIT."""
    primary = result["metrics"][0]
    metric, better = primary["metric"], primary["better"]
    if PRIMARY.get(metric) != better:
        raise ValueError(f"the first metric is {metric}, {better} is better: expected one of {PRIMARY}")
    return [
        f"{cell['group']}: {comparison['words']}"
        for cell in result["cells"]
        for comparison in cell["comparisons"]
        if comparison["metric"] == metric
        and comparison["verdict"] == "slower"
        and is_far(comparison["ratio"]["estimate"], better)
    ]


def is_far(ratio, better):
    """Whether a ratio is worse than 1 by more than LIMIT."""
    return ratio > 1 + LIMIT if better == "lower" else ratio < 1 / (1 + LIMIT)


def failed(result):
    """Returns the set-ups that failed, with the reason."""
    return [
        f"{cell['group']}, {variant['name']}: {variant['failed']['why']}"
        for cell in result["cells"]
        for variant in cell["variants"]
        if variant.get("failed")
    ]


def main(path):
    """Prints both, and returns an exit code: 1 if a set-up failed, 3 if a figure is worse, otherwise 0."""
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    broken, bad = failed(result), worse(result)
    for words in broken:
        print(f"FAILED {words}", file=sys.stderr)
    for words in bad:
        print(f"WORSE  {words}", file=sys.stderr)
    if broken:
        return 1
    return 3 if bad else 0

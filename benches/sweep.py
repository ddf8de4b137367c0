#!/usr/bin/env python3
"""The AUC of `forebay train` for each combination of settings, as a Markdown table.

usage: sweep.py LOG [--seeds 1,2] [--label LABEL] --grid 'KEY=VALUE | VALUE' [--grid ...]
                -- [JOB.toml] --set data.eval=ROWS [--set KEY=VALUE ...]

`--grid` names a field of the job and its values; the value `default` leaves the field as the job has it. The last grid makes the columns
of the table, the others its rows. A cell is the mean over the seeds; the best of each column is bold. LOG gets a line of JSON for each
run (arguments, AUC, logloss, CPU seconds; with several labels the AUC of each). `--label` names the label of the table, by default the
first. A run that LOG has is not run again, so a sweep that was stopped goes on. A run that fails is printed with its error, and is tried
again next time. `FOREBAY` names another program.
"""

import argparse, itertools, json, os, resource, statistics, subprocess, sys


def parse_grid(text):
    """`KEY=A | B` as a key and the settings for each value; the value `default` sets nothing."""
    key, equals, values = text.partition("=")
    values = [value.strip() for value in values.split("|")]
    if not key.strip() or not equals or "" in values:
        raise argparse.ArgumentTypeError(f"`{text}`, expected KEY=VALUE or KEY=VALUE | VALUE")
    return key.strip(), values


def arguments(setting):
    key, value = setting
    return [] if value == "default" else ["--set", f"{key}={value}"]


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def train(job):
    """One run. Returns AUC, logloss and CPU seconds; `None`, with the error printed, if it failed."""
    before = cpu_seconds()
    program = os.environ.get("FOREBAY", "target/release/forebay")
    done = subprocess.run([program, "-q", "--log-format", "json", "train", *job], capture_output=True, text=True)
    if done.returncode:
        print(f"{' '.join(job)}: {done.stderr.strip()}", file=sys.stderr)
        return None
    for line in done.stdout.splitlines():
        evaluated = json.loads(line).get("evaluated")
        if evaluated:
            quality = evaluated["evaluation"]
            labels = {label["label"]: label["auc"] for label in quality.get("labels", [])}
            result = {"auc": quality["auc"], "logloss": quality["logloss"], "cpu": round(cpu_seconds() - before, 2)}
            return {**result, "labels": labels} if labels else result
    raise SystemExit("the run evaluated nothing: set data.eval")


class Log:
    """The runs so far, by their arguments."""

    def __init__(self, path):
        self.path, self.runs = path, {}
        if os.path.exists(path):
            for line in open(path):
                run = json.loads(line)
                self.runs[tuple(run["job"])] = run

    def result(self, job):
        """The result of the run with these arguments, which is run if it was not yet."""
        if tuple(job) not in self.runs:
            result = train(job)
            if result is None:
                return None
            run = {"job": job, **result}
            self.runs[tuple(job)] = run
            with open(self.path, "a") as file:
                print(json.dumps(run), file=file)
        return self.runs[tuple(job)]


def auc_of(result, label):
    if label is None:
        return result["auc"]
    labels = result.get("labels", {})
    if label not in labels:
        raise SystemExit(f"no label `{label}`, only {', '.join(labels) or 'one without a name'}")
    return labels[label]


def mean_auc(log, job, settings, seeds, label):
    more = [argument for setting in settings for argument in arguments(setting)]
    results = [log.result([*job, *more, *arguments(("seed", seed))]) for seed in seeds]
    return None if None in results else statistics.mean(auc_of(result, label) for result in results)


def print_table(grids, aucs):
    """`aucs`: the AUC of each combination of values, in the order of `grids`; `None` for a run that failed."""
    *rows, (column, values) = grids
    best = {value: max((auc for combination, auc in aucs.items() if combination[-1] == value and auc is not None), default=None)
            for value in values}
    keys = [key for key, _ in rows]
    print("| " + " | ".join([*keys, *(f"{column} {value}" for value in values)]) + " |")
    print("|---" * (len(keys) + len(values)) + "|")
    for combination in itertools.product(*(values for _, values in rows)):
        cells = []
        for value in values:
            auc = aucs[(*combination, value)]
            text = "failed" if auc is None else f"{auc:.4f}".removeprefix("0")
            cells.append(f"**{text}**" if auc is not None and auc == best[value] else text)
        print("| " + " | ".join([*(f"`{value}`" for value in combination), *cells]) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--label")
    parser.add_argument("--grid", action="append", type=parse_grid, required=True)
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, job = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    log, keys = Log(args.log), [key for key, _ in args.grid]
    aucs = {}
    for combination in itertools.product(*(values for _, values in args.grid)):
        aucs[combination] = mean_auc(log, job, zip(keys, combination), args.seeds.split(","), args.label)
    print_table(args.grid, aucs)
    sys.exit(None in aucs.values())


main()

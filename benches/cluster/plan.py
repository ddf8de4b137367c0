"""Predictions of `forebay plan` beside measured runs: one run in one process is the profile of all others of its model."""
import json, subprocess

from measure import PROGRAM, Process, settings, together

# Passes over 400,000 rows of the profile, so that it takes some seconds.
PASSES = {"lr": 12, "fm": 6, "wide_deep": 1}


def profile(cache, words, model):
    """The report of a run in one process, made once."""
    file = cache / f"profile-{model}.json"
    if not file.exists():
        command = [PROGRAM, "train", *words, *settings(data__epochs=PASSES[model]), "--report", str(file)]
        together([Process("train", command)], str(file))
    return file


def predicted(file, words, lines, round_trip="0.2ms"):
    """Rows per second of `forebay plan`, and what limits them. `lines`: megabits per second of a role's network, where it is limited."""
    machines = ["--machine", "cores=2,network=100Gbit"]
    for role, mbit in lines.items():
        machines += ["--machine", f"{role}:network={mbit}Mbit"]
    command = [PROGRAM, "plan", *words, "--profile", str(file), *machines, "--assume", f"round_trip={round_trip}", "--json"]
    plan = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"predicted": round(plan["rows_per_second"]), "limit": plan["bounds"][0]["name"]}


def beside(result, prediction):
    """A measured result with its prediction."""
    return result | prediction | {"ratio": round(prediction["predicted"] / result["rows_per_s"], 3)}

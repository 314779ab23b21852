#!/usr/bin/env python3
"""Small, committable results of a sweep of head modes or interventions.

Run      python3 scripts/sweep_results.py FOLDER SWEEP [SWEEP ...] [--untied ARM] [--command TEXT ...]
         SWEEP: folders of one sweep file's runs (`tiebreak sweep` names them), further ones with further seeds.
Writes   FOLDER/RESULTS.md and FOLDER/result.json: per arm perplexity with its paired difference to the baseline and Holm's p,
         parameters, FLOPs, speed; loss by frequency decile; alignment of its tables to those of untied runs of another seed,
         beside chance. Every number is one that `tiebreak compare`, `inspect` and `probe` print.
Needs    a built tiebreak (--binary, else the one on the PATH) and nothing outside Python's standard library.
"""

import argparse
import json
import pathlib
import statistics
import subprocess

DECILES = range(10)
# Of alignment: what survives held-out rows, and what a rotation alone explains.
METRICS = ("procrustes", "linear_heldout")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("sweeps", type=pathlib.Path, nargs="+")
    parser.add_argument("--untied", default="untied", help="arm whose tables the others are aligned to (default: untied)")
    parser.add_argument("--command", action="append", default=[], help="a command that made the runs, to be written down")
    parser.add_argument("--binary", default="tiebreak")
    arguments = parser.parse_args()

    def ask(*words):
        return json.loads(subprocess.run([arguments.binary, *map(str, words)], check=True, stdout=subprocess.PIPE).stdout)

    compared = ask("compare", *arguments.sweeps, "--json")
    by_decile = [ask("compare", *arguments.sweeps, "--metric", f"eval/loss_decile/{k}", "--json")["arms"] for k in DECILES]
    runs = complete_runs(arguments.sweeps)
    arms = []
    for index, arm in enumerate(compared["arms"]):
        own = runs.get(arm["arm"], {})
        if not own:
            continue
        arm["flops_per_token"] = ask("inspect", next(iter(own.values())), "--json")["flops_per_token"]
        arm["loss_by_decile"] = [values[index]["mean"] for values in by_decile]
        arm["alignment"] = alignments(ask, own, runs.get(arguments.untied, {}))
        arms.append(arm)
    result = {"commands": arguments.command, "metric": compared["metric"], "baseline": compared["baseline"],
              "aligned_to": arguments.untied, "warnings": compared["warnings"], "arms": rounded(arms)}
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (arguments.folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.folder / "RESULTS.md").write_text(text(result))


def complete_runs(sweeps):
    """Folders of complete runs, by arm and seed."""
    runs = {}
    for sweep in sweeps:
        for cell in json.loads((sweep / "sweep.json").read_text())["cells"]:
            folder = sweep / cell["folder"]
            status = folder / "status.json"
            if status.is_file() and json.loads(status.read_text())["state"] == "complete":
                runs.setdefault(cell["name"], {})[cell["seed"]] = folder
    return runs


def alignments(ask, own, untied):
    """Mean over seeds of each metric, its chance level (rows permuted within frequency deciles) and by how many seeds, for each
    of the arm's tables and each of an untied run's: of the next seed, so that no initialisation is shared."""
    found = {}
    for seed, folder in own.items():
        others = [other for other in untied if other != seed]
        if not others:
            continue
        other = min((other for other in others if other > seed), default=min(others))
        pairs = ask("probe", folder, untied[other], "--only", "alignment", "--pairs", "all", "--json")["pairs"]
        for pair in pairs:
            source, target = (pair[side].rsplit(":", 1) for side in ("source", "target"))
            if source[0] == folder.name and target[0] == untied[other].name:
                found.setdefault((source[1], target[1]), []).append(pair["metrics"])
    return [
        {"table": table, "untied": target, "n": len(metrics)}
        | {name: {key: statistics.fmean(m[name][key] for m in metrics) for key in ("value", "null_freq")} for name in METRICS}
        for (table, target), metrics in found.items()
    ]


def rounded(value):
    """Six significant digits: more is noise in a diff."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def table(header, rows):
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def text(result):
    arms, baseline = result["arms"], result["baseline"]
    parts = ["Written by `scripts/sweep_results.py`; do not edit. The numbers are in result.json.\n"]
    parts += [f"    {command}" for command in result["commands"]]
    parts += ["", *(f"WARNING: {warning}" for warning in result["warnings"])]
    tested = sum(1 for arm in arms if (arm["vs_baseline"] or {}).get("p_holm") is not None)
    parts.append(f"Differences are paired by seed, arm minus `{baseline}`; brackets are 95 % t intervals. `p (Holm)` is adjusted for "
                 f"the {tested} arm(s) with three seeds or more; an arm with one seed decides nothing.\n")
    rows = []
    for arm in arms:
        versus = arm["vs_baseline"]
        spread = f"{arm['mean']:.2f}" + (f" ± {arm['sd']:.2f}" if arm["sd"] is not None else "")
        rows.append([
            f"`{arm['arm']}`", str(arm["n"]), str(arm["failed"]), spread,
            difference(versus) if versus else "", difference(versus["eval_loss"], 4) if versus else "",
            f"{versus['p_holm']:.3f}" if versus and versus["p_holm"] is not None else "",
            parameters(arm, result), f"{arm['flops_per_token'] / 1e6:.2f}", f"{arm['tokens_per_second']:,.0f}",
        ])
    parts.append(table(["arm", "n", "failed", "perplexity", "difference", "difference of loss, nats", "p (Holm)", "parameters",
                        "MFLOPs per token", "tokens/s"], rows))
    parts.append("Loss by how frequent the target is in training (0: the most frequent ids, which make a tenth of the text; 9: the rarest), "
                 f"mean over seeds; `{baseline}` in nats, the others less `{baseline}`:\n")
    base = next(arm["loss_by_decile"] for arm in arms if arm["arm"] == baseline)
    rows = []
    for arm in arms:
        values = arm["loss_by_decile"]
        shown = [f"{x:.3f}" for x in values] if arm["arm"] == baseline else [f"{x - b:+.3f}" for x, b in zip(values, base)]
        rows.append([f"`{arm['arm']}`", *shown])
    parts.append(table(["arm", *map(str, DECILES)], rows))
    parts.append(f"Alignment of an arm's tables to the input and the output table of `{result['aligned_to']}` at another seed: mean "
                 "cosine after the best rotation (Procrustes) and of held-out rows after a linear fit. In brackets chance: rows "
                 "permuted within frequency deciles.\n")
    rows = []
    for arm in arms:
        for name in dict.fromkeys(found["table"] for found in arm["alignment"]):
            cells = {found["untied"]: found for found in arm["alignment"] if found["table"] == name}
            shown = [
                f"{cells[side][metric]['value']:.3f} ({cells[side][metric]['null_freq']:.3f})" if side in cells else ""
                for metric in METRICS for side in ("input", "output")
            ]
            rows.append([f"`{arm['arm']}`", name, str(max(c["n"] for c in cells.values())), *shown])
    parts.append(table(["arm", "table", "n", "rotation, to input", "to output", "held out, to input", "to output"], rows))
    return "\n".join(parts)


def parameters(arm, result):
    """Their number and, where it is not the baseline's within 1 %, by how much it differs."""
    base = next(other["parameters"] for other in result["arms"] if other["arm"] == result["baseline"])
    more = arm["parameters"] / base - 1
    return f"{arm['parameters']:,}" + (f" ({more:+.0%})" if abs(more) > 0.01 else "")


def difference(versus, digits=2):
    if versus["mean_difference"] is None:
        return "no seed in common"
    shown = f"{versus['mean_difference']:+.{digits}f}"
    return shown + (f" [{versus['ci95'][0]:+.{digits}f}, {versus['ci95'][1]:+.{digits}f}]" if versus["ci95"] else "")


if __name__ == "__main__":
    main()

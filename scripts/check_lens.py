#!/usr/bin/env python3
"""Independent numbers for the lenses, in numpy (float64).

Run      pip install numpy safetensors
         python scripts/check_lens.py write                 writes crates/tiebreak-probe/fixtures/lens.json (at once); a test of
                                                            that crate compares every number with its own
         python scripts/check_lens.py compare RUN SHARD     reads a run's last checkpoint and its lens, runs the model over the
                                                            validation.bin SHARD (in the cache's shards/) and compares every
                                                            point with probes/lens-step-<n>-<recipe>.json
Wrote    the committed file was written with numpy 2.4.6.

Written from the definitions, not from the Rust code. `compare` knows the default block (swiglu, layer_no_affine, rope), tied or
untied; the two predictors, which need the lens's training tokens, are checked by `write` alone.
"""
import json
import pathlib
import re
import sys

import numpy as np

FIXTURE = pathlib.Path(__file__).parents[1] / "crates/tiebreak-probe/fixtures/lens.json"


# ---------------------------------------------------------------- the formula

def layer_norm(h, gain=1.0, bias=0.0, eps=1e-5):
    h = h - h.mean(-1, keepdims=True)
    return h / np.sqrt((h * h).mean(-1, keepdims=True) + eps) * gain + bias


def log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def readings(log_p, log_q, inputs, targets):
    """What q says beside the final p, per token. KL in nats."""
    row, final_top = np.arange(len(log_p)), log_p.argmax(1)
    return {
        "top": log_q.argmax(1),
        "p": np.exp(log_q.max(1)),
        "rank": 1 + (log_q > log_q[row, final_top][:, None]).sum(1),
        "kl_nats": (np.exp(log_p) * (log_p - log_q)).sum(1),
        "entropy_nats": -(np.exp(log_q) * log_q).sum(1),
        "p_input": np.exp(log_q[row, inputs]),
        "nats": -log_q[row, targets],
    }


def summary(r, targets, constant_kl):
    return {
        "kl_bits": r["kl_nats"].mean() / np.log(2),
        "kl_fraction": r["kl_nats"].mean() / constant_kl,
        "top1_agreement": (r["rank"] == 1).mean(),
        "accuracy": (r["top"] == targets).mean(),
        "ce_nats": r["nats"].mean(),
        "p_input": r["p_input"].mean(),
    }


# ---------------------------------------------------------------- the fixture

def write():
    rng = np.random.default_rng(0)
    draw = lambda *shape, scale=1.0: np.round(rng.standard_normal(shape) * scale * 4096) / 4096     # the same in f32
    n, d, v, layers, cap = 12, 6, 11, 3, 4.0
    case = {
        "states": [draw(n, d, scale=1.0 + k) for k in range(layers + 1)],
        "A": [draw(d, d, scale=0.5) for _ in range(layers)], "b": [draw(1, d) for _ in range(layers)],
        "gain": 1 + draw(1, d, scale=0.2), "bias": draw(1, d, scale=0.1), "U": draw(v, d), "vocabulary_bias": draw(1, v),
        "softcap": cap, "inputs": rng.integers(0, v - 2, n), "targets": rng.integers(0, v, n),
        "trained_on": draw(20, d), "trained_on_ids": rng.integers(0, v - 2, 20),
    }
    norm = lambda h: layer_norm(h, case["gain"], case["bias"])
    log_q = lambda h: log_softmax(cap * np.tanh((norm(h) @ case["U"].T + case["vocabulary_bias"]) / cap))
    translate = lambda k, h: h + h @ case["A"][k].T + case["b"][k]
    states, final, p = case["states"], case["states"][-1], np.exp(log_q(case["trained_on"]))
    constant = (p.sum(0) + 1 / v) / (len(p) + 1)
    seen = [p[case["trained_on_ids"] == i] for i in range(v)]
    bigram = np.array([(s.sum(0) + constant) / (len(s) + 1) for s in seen])
    lenses = {
        "logit": [log_q(h) for h in states],
        "converged": [log_q(translate(k, h) if k < layers else h) for k, h in enumerate(states)],
        # Point k >= 1 with translator k - 1; the last state is normed before that as well as after.
        "paper": [log_q(translate(max(0, k - 1), h if k < layers else norm(h))) for k, h in enumerate(states)],
        "constant": [np.log(np.tile(constant, (n, 1)))],
        "bigram": [np.log(bigram[case["inputs"]])],
    }
    inputs, targets = case["inputs"], case["targets"]
    read = {name: [readings(log_q(final), q, inputs, targets) for q in qs] for name, qs in lenses.items()}
    constant_kl = read["constant"][0]["kl_nats"].mean()
    means = {name: [summary(r, targets, constant_kl) for r in rs] for name, rs in read.items()}
    plain = lambda x: x.tolist() if isinstance(x, (np.ndarray, np.generic)) else x
    FIXTURE.parent.mkdir(exist_ok=True)
    FIXTURE.write_text(json.dumps({"case": case, "readings": read, "means": means}, default=plain) + "\n")
    print(FIXTURE, FIXTURE.stat().st_size, "bytes")


# ---------------------------------------------------------------- a real run

def rope(x, theta):
    t, half = x.shape[-2], x.shape[-1] // 2
    angle = np.arange(t)[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)
    x1, x2 = x[..., :half], x[..., half:]
    return np.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)


def states(p, table, ids, layers, heads, theta):
    """The residual stream [L + 1][B T, d] of ids [B, T]."""
    (b, t), d = ids.shape, table.shape[1]
    x = table[ids]
    mask = np.triu(np.full((t, t), -np.inf), 1)
    found = [x]
    for i in range(layers):
        qkv = layer_norm(x) @ p[f"blocks.{i}.attention.qkv.weight"]
        q, k, v = (m.reshape(b, t, heads, -1).transpose(0, 2, 1, 3) for m in np.split(qkv, 3, -1))
        q, k = rope(q, theta), rope(k, theta)
        weights = np.exp(log_softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(d // heads) + mask))
        x = x + (weights @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ p[f"blocks.{i}.attention.out.weight"]
        value, gate = np.split(layer_norm(x) @ p[f"blocks.{i}.mlp.up.weight"], 2, -1)
        x = x + (gate / (1 + np.exp(-gate)) * value) @ p[f"blocks.{i}.mlp.down.weight"]
        found.append(x)
    return [x.reshape(b * t, d) for x in found]


def compare(run, shard):
    import tomllib
    from safetensors.numpy import load_file
    run = pathlib.Path(run)
    config = tomllib.loads((run / "config.toml").read_text())
    model, context = config["model"], config["data"]["context_length"]
    load = lambda path: {name: x.astype(np.float64) for name, x in load_file(path).items()}
    raw = pathlib.Path(shard).read_bytes()
    if raw[80:112].hex() != json.loads((run / "env.json").read_text())["data"]["tokenizer_hash"]:
        sys.exit(f"{shard}: another tokenizer's than the run's")
    width = int.from_bytes(raw[12:16], "little")
    tokens = np.frombuffer(raw, {2: "<u2", 4: "<u4"}[width], offset=256).astype(int)
    worst = 0.0
    for path in sorted(run.glob("probes/lens-step-*.json")):
        report = json.loads(path.read_text())
        p = load(run / f"checkpoints/step-{report['step']}/model.safetensors")
        lens = load(run / "lens" / (re.sub("^lens-", "", path.stem) + ".safetensors"))
        table_in, table_out = (p["table"], p["table"]) if "table" in p else (p["input_table"], p["output_table"])
        points = [x["point"] for x in report["held_out"]["points"]]
        windows, all_windows = report["held_out"]["tokens"] // context, (len(tokens) - 1) // context
        chosen = [i * all_windows // windows for i in range(windows)]
        read = {}
        for start in range(0, windows, 8):
            at = np.array([np.arange(w * context, w * context + context + 1) for w in chosen[start:start + 8]])
            inputs, targets = tokens[at][:, :-1], tokens[at][:, 1:].ravel()
            hs = states(p, table_in, inputs, model["n_layers"], model["n_heads"], model["rope_theta"])
            log_q = lambda h: log_softmax(layer_norm(h) @ table_out.T)
            log_p, layers = log_q(hs[-1]), len(hs) - 1
            for k, (point, h) in enumerate(zip(points, hs)):
                if report["recipe"] == "paper":
                    translated = (max(0, k - 1), h if k < layers else layer_norm(h))
                else:
                    translated = (k, h)
                at, tuned = translated
                if at < layers:
                    tuned = tuned + tuned @ lens[f"{points[at]}/A"].T + lens[f"{points[at]}/b"]
                for kind, state in (("logit", h), ("tuned", tuned)):
                    r = readings(log_p, log_q(state), inputs.ravel(), targets)
                    read.setdefault((point, kind), []).append((r, targets))
        for x in report["held_out"]["points"]:
            for kind in ("logit", "tuned"):
                parts = read[x["point"], kind]
                r = {name: np.concatenate([part[0][name] for part in parts]) for name in parts[0][0]}
                mean = summary(r, np.concatenate([t for _, t in parts]), report["held_out"]["constant"]["kl_bits"] * np.log(2))
                off = max(abs(mean[name] - x[kind][name]) / (1 + abs(mean[name])) for name in mean)
                worst = max(worst, off)
                print(f"{path.stem} {x['point']:>6} {kind:<6} kl_bits {mean['kl_bits']:.6f} {x[kind]['kl_bits']:.6f}  worst {off:.1e}")
    print(f"largest difference, relative to 1 + the value: {worst:.1e}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write"]:
            write()
        case ["compare", run, shard]:
            compare(run, shard)
        case _:
            sys.exit(__doc__)

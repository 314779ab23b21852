#!/usr/bin/env python3
"""Golden numbers for the tests: an independent PyTorch reference of the model, its gradients and ten optimiser steps.

Run      python scripts/golden.py --out tests/golden          (needs only `pip install torch numpy`; a few seconds on a CPU)
Wrote    the committed files were written with torch 2.15.0+cu132 and numpy 2.4.6 on a CPU; each file records its own versions.
Output   six files, {tied,untied}_{a,b,c}.json, all numbers computed in float64 and printed so that they read back exactly.

It is written from the definitions and from PyTorch's own operations (embedding, layer_norm, rms_norm, silu, gelu,
scaled_dot_product_attention, cross_entropy, AdamW, clip_grad_norm_), never from the Rust code: agreement means something.

Model    x0 = E[ids]; x = x0 (+ position.weight[:T]); per block x += attention(norm(x)), x += mlp(norm(x)); logits = norm(x) U^T.
         Tied: one parameter `table` is both E and U. Untied: `input_table` and `output_table`. Linear weights are [in, out], no biases.
Cases    a: swiglu, layer_no_affine, rope, mitchell init (truncated at 3 std)         b: gelu, layer, learned positions, normal init
         c: swiglu, rms, rope, mitchell init.  Gains are moved away from 1 and biases from 0.  Tied and untied share E_0, trunk and data.
         Initial values are multiples of 2^-12, hence the same in f32 and f64. Id 28 never occurs: its lookup gradient is exactly 0.
         context_length exceeds T, so rows of position.weight past T get no gradient, only decay.

Keys of a file (matrices are flat lists, row major, beside their shape)
  config, optim, versions     what was run; decay acts on 2-D parameters (tables and position.weight too), not on gains and biases;
                              clip_norm, over distinct parameters, is per case: some steps are clipped and others are not
  parameters                  [{name, shape, data}] before training
  batches                     ten {inputs, targets}, [B][T] each; one batch is one optimiser step; a target is the next id
  first                       of batch 0 at the initial parameters: loss (nats per token, mean over B T), logits of sequence 0 [T, V],
                              gradients of every parameter, g_in and g_out [V, d] (through the lookup alone, through the head alone),
                              x0_gradient [B, T, d]; all without clip or scale
  training                    per step, of the update that completes step 1..10: loss before it, lr, grad_norm before the clip, clip_factor =
                              min(1, clip_norm / (grad_norm + 1e-6)) as in PyTorch; final: values after step 10 of the table(s), of one
                              trunk matrix, of position.weight and of every gain and bias
  variants (tied_a)           same, without final: input_x5_before_clip: table gradient 5 g_in + g_out, then the clip, which sees it;
                              output_x0.25_after_clip: the norm and factor are those of g_in + g_out, then the table gets
                              factor (g_in + 0.25 g_out)
  micro_batches (untied_a)    loss of each half of batch 0, and how far the summed gradients of the halves are from the whole
  f32                         the largest deviations of the same PyTorch code in f32, relative to the largest magnitude of each tensor: what
                              a correct f32 implementation may be off by, to choose tolerances
"""
import argparse
import json
import math
import pathlib
import zlib

import numpy as np
import torch
import torch.nn.functional as F

V, D, LAYERS, HEADS, D_FF, CONTEXT, T, B = 29, 16, 2, 2, 24, 12, 9, 4
CASES = {
    "a": dict(mlp="swiglu", norm="layer_no_affine", position="rope", init="mitchell"),
    "b": dict(mlp="gelu", norm="layer", position="learned", init="normal"),
    "c": dict(mlp="swiglu", norm="rms", position="rope", init="mitchell"),
}
CLIP_NORM = {"a": 3.0, "b": 1.0, "c": 3.0}       # chosen so that each case clips some steps and not others
ZIPF_EXPONENTS = [1, 2, 0.2, 1, 2, 0.2, 1, 2, 0.2, 1]     # of the ids of each step: repetitive batches have larger gradients
EPS, THETA = 1e-5, 10000.0
OPTIM = dict(lr=3e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, steps=10, warmup_steps=3,
             warmup_start_ratio=0.1, min_lr_ratio=0.1, schedule="cosine")
TRUNK_MATRIX = "blocks.1.mlp.down.weight"


# ---------------------------------------------------------------- data and initial values

def stream(seed, name):
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def initial_parameters(case, tied, seed):
    """Name -> float64 tensor, each drawn from its own stream so that the head mode does not move the trunk's values."""
    def draw(name, shape, std, mean=0.0):
        noise = stream(seed, name)
        x = noise.standard_normal(shape)
        while case["init"] == "mitchell" and (np.abs(x) > 3).any():
            x = np.where(np.abs(x) > 3, noise.standard_normal(shape), x)
        params[name] = torch.from_numpy(np.round((mean + std * x) * 4096) / 4096)

    def norm(prefix):
        if case["norm"] != "layer_no_affine":
            draw(f"{prefix}.gain", (D,), 0.2, 1.0)
        if case["norm"] == "layer":
            draw(f"{prefix}.bias", (D,), 0.1)

    mitchell, params = case["init"] == "mitchell", {}
    std = D ** -0.5 if mitchell else 0.02
    for name in ("input_table", "output_table"):
        draw(name, (V, D), std)
    if case["position"] == "learned":
        draw("position.weight", (CONTEXT, D), 0.02)
    for i in range(LAYERS):
        block = f"blocks.{i}"
        residual = lambda fan_in: (2 * fan_in * (i + 1)) ** -0.5 if mitchell else 0.02 / math.sqrt(2 * LAYERS)
        norm(f"{block}.norm_attention")
        draw(f"{block}.attention.qkv.weight", (D, 3 * D), std)
        draw(f"{block}.attention.out.weight", (D, D), residual(D))
        norm(f"{block}.norm_mlp")
        draw(f"{block}.mlp.up.weight", (D, 2 * D_FF if case["mlp"] == "swiglu" else D_FF), std)
        draw(f"{block}.mlp.down.weight", (D_FF, D), residual(D_FF))
    norm("norm_final")
    if tied:
        table = params.pop("input_table")
        params.pop("output_table")
        params = {"table": table, **params}
    return params


def make_batches(seed):
    """Ten batches of Zipf-distributed ids; the last id never occurs. Windows of T + 1 ids give T inputs and T targets."""
    noise, batches = stream(seed, "data"), []
    for exponent in ZIPF_EXPONENTS:
        p = np.arange(1, V + 1, dtype=float) ** -exponent
        p[-1] = 0.0
        w = noise.choice(V, size=(B, T + 1), p=p / p.sum())
        batches.append((torch.from_numpy(w[:, :-1].copy()), torch.from_numpy(w[:, 1:].copy())))
    ids = batches[0][0]
    assert len(ids[0].unique()) < T and len(ids.unique()) < V - 1, "batch 0 must repeat ids within a sequence and lack some"
    return batches


# ---------------------------------------------------------------- the model

def rope(x):
    """Rotate-half rotary positions on [B, H, T, hd]: component j pairs with j + hd/2, angle = position theta^(-2j/hd)."""
    t, hd = x.shape[-2:]
    pair = torch.arange(hd // 2, dtype=torch.float64)
    angle = torch.arange(t, dtype=torch.float64)[:, None] * THETA ** (-2.0 * pair / hd)
    angle = torch.cat([angle, angle], dim=-1)
    x1, x2 = x.chunk(2, dim=-1)
    return x * angle.cos().to(x.dtype) + torch.cat([-x2, x1], dim=-1) * angle.sin().to(x.dtype)


def forward(case, p, table_in, table_out, ids):
    """Returns x0 [B, T, d] and logits [B, T, V]."""
    def norm(x, name):
        if case["norm"] == "rms":
            return F.rms_norm(x, (D,), p[f"{name}.gain"], EPS)
        return F.layer_norm(x, (D,), p.get(f"{name}.gain"), p.get(f"{name}.bias"), EPS)

    def attention(x, block):
        b, t, _ = x.shape
        q, k, v = (m.view(b, t, HEADS, D // HEADS).transpose(1, 2)
                   for m in (x @ p[f"{block}.qkv.weight"]).split(D, dim=-1))
        if case["position"] == "rope":
            q, k = rope(q), rope(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)      # scale 1/sqrt(hd)
        return y.transpose(1, 2).reshape(b, t, D) @ p[f"{block}.out.weight"]

    def mlp(x, block):
        x = x @ p[f"{block}.up.weight"]
        if case["mlp"] == "swiglu":
            value, gate = x.chunk(2, dim=-1)
            x = F.silu(gate) * value
        else:
            x = F.gelu(x, approximate="tanh")
        return x @ p[f"{block}.down.weight"]

    x0 = F.embedding(ids, table_in)
    x = x0 + p["position.weight"][: ids.shape[1]] if case["position"] == "learned" else x0
    for i in range(LAYERS):
        x = x + attention(norm(x, f"blocks.{i}.norm_attention"), f"blocks.{i}.attention")
        x = x + mlp(norm(x, f"blocks.{i}.norm_mlp"), f"blocks.{i}.mlp")
    return x0, norm(x, "norm_final") @ table_out.T


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def leaves(params, dtype=torch.float64):
    return {n: t.to(dtype, copy=True).requires_grad_() for n, t in params.items()}


def tables(p):
    """(E, U): the same tensor twice when tied."""
    return (p["table"], p["table"]) if "table" in p else (p["input_table"], p["output_table"])


# ---------------------------------------------------------------- gradients and training

def first_batch(case, params, ids, targets, dtype=torch.float64):
    """Everything about batch 0; the two sides come from a second graph in which E and U are separate leaf copies."""
    p = leaves(params, dtype)
    _, logits = forward(case, p, *tables(p), ids)
    loss = loss_of(logits, targets)
    loss.backward()

    q = leaves(params, dtype)
    e, u = (t.detach().clone().requires_grad_() for t in tables(q))
    x0, split_logits = forward(case, q, e, u, ids)
    x0.retain_grad()
    loss_of(split_logits, targets).backward()
    return dict(loss=loss.detach(), logits=logits.detach(), gradients={n: t.grad for n, t in p.items()}, g_in=e.grad, g_out=u.grad,
                x0_gradient=x0.grad)


def learning_rate(step):
    """Rate of the update that completes `step`, 1-based."""
    lr, warmup, r, m = OPTIM["lr"], OPTIM["warmup_steps"], OPTIM["warmup_start_ratio"], OPTIM["min_lr_ratio"]
    if step <= warmup:
        return lr * (r + (1 - r) * step / warmup)
    progress = (step - warmup) / (OPTIM["steps"] - warmup)
    return lr * (m + (1 - m) * 0.5 * (1 + math.cos(math.pi * progress)))


def train(case, clip_norm, params, batches, dtype=torch.float64, split=False, input_scale=1.0, output_scale=1.0, after_clip=False):
    """Ten AdamW steps. With `split` (tied only) the table's gradient is put together from its two sides, scaled."""
    p = leaves(params, dtype)
    matrices, vectors = [t for t in p.values() if t.ndim == 2], [t for t in p.values() if t.ndim == 1]
    groups = [dict(params=matrices, weight_decay=OPTIM["weight_decay"])]
    if vectors:
        groups.append(dict(params=vectors, weight_decay=0.0))
    optimiser = torch.optim.AdamW(groups, lr=OPTIM["lr"], betas=tuple(OPTIM["betas"]), eps=OPTIM["eps"])
    log = dict(loss=[], lr=[], grad_norm=[], clip_factor=[])
    for step, (ids, targets) in enumerate(batches, 1):
        lr = learning_rate(step)
        for group in optimiser.param_groups:
            group["lr"] = lr
        optimiser.zero_grad()
        e, u = (t.detach().clone().requires_grad_() for t in tables(p)) if split else tables(p)
        loss = loss_of(forward(case, p, e, u, ids)[1], targets)
        loss.backward()
        if split:
            scaled = input_scale * e.grad + output_scale * u.grad
            p["table"].grad = e.grad + u.grad if after_clip else scaled
        norm = torch.nn.utils.clip_grad_norm_(p.values(), clip_norm).item()
        factor = min(1.0, clip_norm / (norm + 1e-6))
        if split and after_clip:
            p["table"].grad = factor * scaled
        optimiser.step()
        for key, value in zip(log, (loss.item(), lr, norm, factor)):
            log[key].append(value)
    return log, {n: t.detach() for n, t in p.items()}


# ---------------------------------------------------------------- one file

def close(a, b, what, tolerance=1e-12):
    off = (a - b).abs().max().item()
    assert off <= tolerance, f"{what}: off by {off:.3e}, allowed {tolerance:.0e}"
    return off


def deviation(reference, other):
    """max |other - reference| / max |reference|"""
    return ((other.double() - reference).abs().max() / reference.abs().max()).item()


def named(tensors):
    return [dict(name=n, shape=list(t.shape), data=t.flatten().tolist()) for n, t in tensors.items()]


def build(letter, tied, seed):
    case, clip_norm = CASES[letter], CLIP_NORM[letter]
    params, batches = initial_parameters(case, tied, seed), make_batches(seed)
    first = first_batch(case, params, *batches[0])
    g_in, g_out, gradients = first["g_in"], first["g_out"], first["gradients"]

    ids, targets = batches[0]
    if tied:
        close(g_in + g_out, gradients["table"], "G_in + G_out against the tied gradient")
    else:
        close(g_in, gradients["input_table"], "G_in against the input table's gradient")
        close(g_out, gradients["output_table"], "G_out against the output table's gradient")
    close(g_out.sum(0), torch.zeros(D, dtype=g_out.dtype), "column sums of G_out over V")
    scattered = torch.zeros_like(g_in).index_add_(0, ids.flatten(), first["x0_gradient"].flatten(0, 1))
    close(scattered, g_in, "scatter-added x0 gradient against G_in")
    assert (g_in[-1] == 0).all() and (g_out[-1] != 0).any(), "the id that never occurs is reached by the head alone"

    log, final = train(case, clip_norm, params, batches)
    assert min(log["clip_factor"]) < 0.9 and max(log["clip_factor"]) == 1.0, f"clip must be on and off: {log['grad_norm']}"
    assert abs(log["loss"][0] - first["loss"].item()) < 1e-12, "first loss"
    kept = [n for n, t in final.items() if t.ndim == 1 or n == TRUNK_MATRIX or "table" in n or n == "position.weight"]

    single = first_batch(case, params, *batches[0], dtype=torch.float32)
    log32, single_params = train(case, clip_norm, params, batches, dtype=torch.float32)
    golden = dict(
        config=dict(name=f"{'tied' if tied else 'untied'}_{letter}", seed=seed, vocab_size=V, context_length=CONTEXT, sequence_length=T,
                    batch_size=B, head=dict(mode="tied" if tied else "untied"),
                    model=dict(d_model=D, n_layers=LAYERS, n_heads=HEADS, d_ff=D_FF, norm_eps=EPS, rope_theta=THETA, **case)),
        optim=dict(OPTIM, clip_norm=clip_norm),
        versions=dict(torch=torch.__version__, numpy=np.__version__),
        parameters=named(params),
        batches=[dict(inputs=x.tolist(), targets=y.tolist()) for x, y in batches],
        first=dict(loss=first["loss"].item(), logits=named({"logits": first["logits"][0]})[0], gradients=named(gradients),
                   **{n: named({n: first[n]})[0] for n in ("g_in", "g_out", "x0_gradient")}),
        training=dict(**log, final=named({n: final[n] for n in kept})),
        f32=dict(logits=deviation(first["logits"], single["logits"]),
                 gradients=max(deviation(g, single["gradients"][n]) for n, g in gradients.items()),
                 loss=max(abs(a / b - 1) for a, b in zip(log32["loss"], log["loss"])),
                 grad_norm=max(abs(a / b - 1) for a, b in zip(log32["grad_norm"], log["grad_norm"])),
                 final=max(deviation(final[n], single_params[n]) for n in kept)),
    )
    if tied and letter == "a":
        same, _ = train(case, clip_norm, params, batches, split=True)
        close(torch.tensor(same["loss"], dtype=torch.float64), torch.tensor(log["loss"], dtype=torch.float64),
              "two leaf copies with scale 1 against plain tied training")
        golden["variants"] = {
            "input_x5_before_clip": train(case, clip_norm, params, batches, split=True, input_scale=5.0)[0],
            "output_x0.25_after_clip": train(case, clip_norm, params, batches, split=True, output_scale=0.25, after_clip=True)[0],
        }
    if not tied and letter == "a":
        p, half_losses = leaves(params), []
        for half in (slice(0, 2), slice(2, 4)):
            part = loss_of(forward(case, p, *tables(p), ids[half])[1], targets[half])
            (part * 0.5).backward()
            half_losses.append(part.item())
        off = max(close(p[n].grad, g, f"micro-batches: {n}") for n, g in gradients.items())
        golden["micro_batches"] = dict(sizes=[2, 2], losses=half_losses, max_gradient_difference=off)
    return golden


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the six JSON files")
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)                     # one summation order
    x = torch.randn(1, 1, T, 8, dtype=torch.float64)
    close(rope(x).norm(dim=-1), x.norm(dim=-1), "a rotation keeps norms")
    args.out.mkdir(parents=True, exist_ok=True)
    for letter in CASES:
        for tied in (True, False):
            golden = build(letter, tied, args.seed)
            path = args.out / f"{golden['config']['name']}.json"
            text = "{\n" + ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'), allow_nan=False)}" for k, v in golden.items()) + "\n}\n"
            assert len(text) < 400 * 1024, f"{path}: {len(text)} bytes"
            path.write_text(text)
            log = golden["training"]
            print(f"{path.name}: {len(text) / 1024:.0f} KiB, {sum(len(q['data']) for q in golden['parameters'])} parameters")
            print("  loss   ", " ".join(f"{v:.4f}" for v in log["loss"]))
            print("  lr     ", " ".join(f"{v:.5f}" for v in log["lr"]))
            print("  norm   ", " ".join(f"{v:.4f}" for v in log["grad_norm"]))
            print("  clip   ", " ".join(f"{v:.4f}" for v in log["clip_factor"]))
            print("  f32 off", " ".join(f"{k} {v:.1e}" for k, v in golden["f32"].items()))
            for name, variant in golden.get("variants", {}).items():
                print(f"  {name}: loss", " ".join(f"{v:.4f}" for v in variant["loss"]), "clip", " ".join(f"{v:.3f}" for v in variant["clip_factor"]))
            if "micro_batches" in golden:
                print("  micro-batches:", golden["micro_batches"])


if __name__ == "__main__":
    main()

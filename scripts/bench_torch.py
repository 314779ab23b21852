#!/usr/bin/env python3
"""Training throughput of the same model in PyTorch: a peer for tiebreak's own tokens per second.

Run      python scripts/bench_torch.py --d-model 128 --layers 4 --heads 4 --context 128 --batch 32 --vocab 3144 --head tied
Needs    `pip install torch`; --compile also needs a C++ compiler.
Measures whole optimiser steps on the CPU: forward, mean cross-entropy over all logits at once, backward, clip at 1.0, AdamW with
         decay on matrices, on random tokens. No data loading, logging or gradient provenance. d_ff = 4 d_model.
         --block default: swiglu, layer norm without affine, rope.  gpt: gelu (tanh), layer norm with gain and bias, learned positions.
         rms: as gpt, with RMS norm and its gain.
Prints   one JSON object. median_step_ms and tokens_per_second (from that median) leave out the warm-up steps; peak_rss_mb (MiB) is of
         the whole process, the interpreter and PyTorch's libraries included.
"""
import argparse
import contextlib
import json
import resource
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


def norm(a):
    return nn.RMSNorm(a.d_model, eps=1e-5) if a.block == "rms" else nn.LayerNorm(a.d_model, elementwise_affine=a.block == "gpt")


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads, self.default = a.heads, a.block == "default"
        d, d_ff = a.d_model, 4 * a.d_model
        self.norm_attention, self.norm_mlp = norm(a), norm(a)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.up = nn.Linear(d, 2 * d_ff if self.default else d_ff, bias=False)
        self.down = nn.Linear(d_ff, d, bias=False)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm_attention(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if self.default:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        y = self.up(self.norm_mlp(x))
        if self.default:
            value, gate = y.chunk(2, dim=-1)
            y = F.silu(gate) * value
        else:
            y = F.gelu(y, approximate="tanh")
        return x + self.down(y)


def rotate(x, cos, sin):
    x1, x2 = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-x2, x1], dim=-1) * sin).to(x.dtype)


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        d, hd, default = a.d_model, a.d_model // a.heads, a.block == "default"
        self.table = nn.Embedding(a.vocab, d)
        self.head = nn.Linear(d, a.vocab, bias=False)
        self.position = None if default else nn.Embedding(a.context, d)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm_final = norm(a)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=d ** -0.5)
        if a.head == "tied":
            self.head.weight = self.table.weight
        angle = torch.arange(a.context)[:, None] * 10000.0 ** (-torch.arange(0, hd, 2) / hd)
        angle = torch.cat([angle, angle], dim=-1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, ids, targets):
        x = self.table(ids)
        if self.position is not None:
            x = x + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm_final(x)).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in dict(d_model=128, layers=4, heads=4, context=128, batch=32, vocab=3144, steps=20, warmup=3, threads=0).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--head", choices=["tied", "untied"], default="tied")
    parser.add_argument("--block", choices=["default", "gpt", "rms"], default="default")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast, f32 weights")
    a = parser.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(0)

    model = Model(a)
    matrices, vectors = [p for p in model.parameters() if p.ndim == 2], [p for p in model.parameters() if p.ndim == 1]
    groups = [dict(params=p, weight_decay=wd) for p, wd in ((matrices, 0.1), (vectors, 0.0)) if p]
    optimiser = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, fused=True)
    run = torch.compile(model) if a.compile else model
    times = []
    for _ in range(a.warmup + a.steps):
        tokens = torch.randint(a.vocab, (a.batch, a.context + 1))
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16) if a.bf16 else contextlib.nullcontext():
            loss = run(tokens[:, :-1], tokens[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        loss.item()
        times.append(time.perf_counter() - start)
    median = statistics.median(times[a.warmup:])
    print(json.dumps(dict(tokens_per_second=round(a.batch * a.context / median, 1), median_step_ms=round(1e3 * median, 3),
                          peak_rss_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1), torch=torch.__version__,
                          threads=torch.get_num_threads(), dtype="bf16" if a.bf16 else "f32", compiled=a.compile, head=a.head, block=a.block,
                          parameters=sum(p.numel() for p in model.parameters()), min_step_ms=round(1e3 * min(times[a.warmup:]), 3))))


if __name__ == "__main__":
    main()

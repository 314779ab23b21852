#!/usr/bin/env python3
"""Training speed against PyTorch on the same CPU or GPU: the same shapes, initial weights, tokens and optimiser, run in turn.

Run      python scripts/bench_pytorch.py --torch-python ~/venv-torch/bin/python --shape S1
         python scripts/bench_pytorch.py --torch-python ... --d-model 128 --layers 2 --heads 4 --context 64 --batch 4 --vocab 512
Needs    cargo, and a Python with PyTorch (`pip install torch`) behind --torch-python; a C++ compiler for --compile.
Measures whole optimiser steps: forward, mean cross-entropy, backward, clip at 1.0, AdamW (lr 3e-3, betas 0.9 0.95, eps 1e-8, decay
         0.1 on matrices); then passes without gradients. Ours is the example bench_step of tiebreak-train, without provenance.
         d_ff = 4 d_model. --block default: swiglu, layer norm without affine, rope. gpt: gelu (tanh), layer norm with gain and
         bias, learned positions. rms: as gpt, with RMS norm and its gain.
         Variants run one after the other in each of the --pairs rounds, each in a process of its own, on equally many threads.
         --cells N runs every variant in N processes at a time, each on its share of the threads, as a sweep does, and counts the
         tokens per second of all of them; a step's time is then divided by N.
         --device NAME runs ours there (wgpu:0, vulkan:0, cuda:0) and PyTorch on its CUDA device, with and without TF32; peak memory is
         then the most that nvidia-smi counts on the device beyond what it counted before. Told to stop (SIGTERM), or where a variant
         fails, it reports what it has. --ours-only leaves PyTorch out.
         OPENBLAS_CORETYPE and the like are removed from PyTorch's environment (it says so), for they can choose a slower path.
Checks   that the first losses agree (f32 to 1e-5, bf16 to 2e-3, relative) and the later ones too (1e-3, 5e-3): both do the same work.
Prints   medians per variant and, per pair of ours and PyTorch's, the ratio of every round: median and range. --json: one document.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SHAPES = {
    "S1": dict(d_model=256, layers=4, heads=8, context=256, batch=8, vocab=8192, block="rms"),
    "S2": dict(d_model=128, layers=4, heads=4, context=128, batch=32, vocab=3144, block="default"),
    "S3": dict(d_model=512, layers=8, heads=8, context=256, batch=8, vocab=16384, block="rms"),
    "gpt2": dict(d_model=768, layers=12, heads=12, context=1024, batch=8, vocab=50257, block="gpt"),
}
OURS = {"ours f32": "f32", "ours bf16": "bf16"}
THEIRS = {"eager f32": [], "compile f32": ["--compile"], "autocast bf16": ["--bf16"]}
THEIRS_ON_GPU = {"eager f32": ["--cuda"], "eager tf32": ["--cuda", "--tf32"], "autocast bf16": ["--cuda", "--bf16"]}
REMOVED = ["OPENBLAS_CORETYPE", "MKL_DEBUG_CPU_TYPE", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"]


def tokens(vocab, count):
    """The example's generator: the high 31 bits of a linear congruential one."""
    state, found = 1, []
    for _ in range(count):
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        found.append((state >> 33) % vocab)
    return found


def torch_child(a):
    """One PyTorch run; prints the same JSON as bench_step."""
    import contextlib
    import resource
    import struct

    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.set_num_threads(a.threads)
    place = "cuda" if a.cuda else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = a.tf32
    with open(a.weights, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    weights = {
        name: torch.frombuffer(data, dtype=torch.float32, count=(e["data_offsets"][1] - e["data_offsets"][0]) // 4,
                               offset=e["data_offsets"][0]).reshape(e["shape"]).clone()
        for name, e in header.items()
    }
    del data
    default = a.block == "default"

    def norm(path):
        if a.block == "rms":
            layer = nn.RMSNorm(a.d_model, eps=1e-5)
        else:
            layer = nn.LayerNorm(a.d_model, elementwise_affine=a.block == "gpt")
        for ours, theirs in (("gain", "weight"), ("bias", "bias")):
            if f"{path}.{ours}" in weights:
                getattr(layer, theirs).data = weights.pop(f"{path}.{ours}").flatten()
        return layer

    def linear(path):
        weight = weights.pop(path)
        layer = nn.Linear(*weight.shape, bias=False)
        layer.weight.data = weight.t().contiguous()
        return layer

    def rotate(x, cos, sin):
        x1, x2 = x.chunk(2, dim=-1)
        return (x * cos + torch.cat([-x2, x1], dim=-1) * sin).to(x.dtype)

    class Block(nn.Module):
        def __init__(self, path):
            super().__init__()
            self.norm_attention, self.norm_mlp = norm(f"{path}.norm_attention"), norm(f"{path}.norm_mlp")
            self.qkv, self.out = linear(f"{path}.attention.qkv.weight"), linear(f"{path}.attention.out.weight")
            self.up, self.down = linear(f"{path}.mlp.up.weight"), linear(f"{path}.mlp.down.weight")

        def forward(self, x, cos, sin):
            b, t, d = x.shape
            qkv = self.qkv(self.norm_attention(x)).view(b, t, 3, a.heads, d // a.heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            if default:
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
            y = self.up(self.norm_mlp(x))
            if default:
                value, gate = y.chunk(2, dim=-1)
                y = F.silu(gate) * value
            else:
                y = F.gelu(y, approximate="tanh")
            return x + self.down(y)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            half = a.d_model // a.heads // 2
            tied = "table" in weights
            self.table = nn.Embedding(*weights["table" if tied else "input_table"].shape)
            self.table.weight.data = weights.pop("table" if tied else "input_table")
            self.head = nn.Linear(a.d_model, a.vocab, bias=False)
            if tied:
                self.head.weight = self.table.weight
            else:
                self.head.weight.data = weights.pop("output_table")
            self.position = None
            if not default:
                self.position = nn.Parameter(weights.pop("position.weight"))
            self.blocks = nn.ModuleList(Block(f"blocks.{i}") for i in range(a.layers))
            self.norm_final = norm("norm_final")
            angle = torch.arange(a.context)[:, None] * 10000.0 ** (-torch.arange(half) / half)
            angle = torch.cat([angle, angle], dim=-1)
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)

        def forward(self, ids, targets):
            x = self.table(ids)
            if self.position is not None:
                x = x + self.position[: ids.shape[1]]
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return F.cross_entropy(self.head(self.norm_final(x)).flatten(0, 1), targets.flatten())

    model = Model()
    if weights:
        sys.exit(f"weights without a place: {', '.join(weights)}")
    model.to(place)
    matrices, vectors = [p for p in model.parameters() if p.ndim == 2], [p for p in model.parameters() if p.ndim == 1]
    groups = [dict(params=p, weight_decay=wd) for p, wd in ((matrices, 0.1), (vectors, 0.0)) if p]
    optimiser = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, fused=True)
    run = torch.compile(model) if a.compile else model
    cast = lambda: torch.autocast(place, torch.bfloat16) if a.bf16 else contextlib.nullcontext()
    n, steps = a.batch * a.context, a.warmup + a.steps
    passes = (a.steps + 3) // 4 + 1
    ids = torch.tensor(tokens(a.vocab, 2 * n * (steps + passes))).view(-1, 2, a.batch, a.context).to(place)
    times, losses = [], []
    for i in range(steps):
        start = time.perf_counter()
        with cast():
            loss = run(*ids[i])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    evaluation = []
    for i in range(steps, steps + passes):
        start = time.perf_counter()
        with torch.no_grad(), cast():
            run(*ids[i]).item()
        evaluation.append(time.perf_counter() - start)
    median = statistics.median(times[a.warmup:])
    print(json.dumps(dict(
        tokens_per_second=n / median, median_step_ms=1e3 * median, min_step_ms=1e3 * min(times[a.warmup:]), peak_rss_mb=peak,
        evaluation_tokens_per_second=n / statistics.median(evaluation[1:]), losses=losses, threads=torch.get_num_threads(),
        products=f"torch {torch.__version__}, "
                 + (f"{torch.cuda.get_device_name()}, TF32 {a.tf32}" if a.cuda else torch.backends.cpu.get_cpu_capability()),
        parameters=sum(p.numel() for p in model.parameters()))))


def shape_arguments(a):
    names = ["d_model", "layers", "heads", "context", "batch", "vocab", "steps", "warmup", "block", "head"]
    return [x for name in names for x in (f"--{name.replace('_', '-')}", str(getattr(a, name)))]


def gpu_memory():
    """MiB in use on the first NVIDIA device; none where nvidia-smi does not say."""
    ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        return int(subprocess.run(ask, check=True, stdout=subprocess.PIPE, text=True).stdout)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def child_on_gpu(command, environment):
    """[`child`] with the device's memory instead of the process's."""
    before = peak = gpu_memory()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, text=True)
        try:
            while process.poll() is None:
                if before is not None:
                    peak = max(peak, gpu_memory() or 0)
                time.sleep(0.1)
        finally:
            # Told to stop, it must not go on alone.
            if process.poll() is None:
                process.kill()
                process.wait()
        out.seek(0)
        lines = out.read().splitlines()
    if process.returncode == -signal.SIGTERM:
        raise Stopped
    if process.returncode:
        sys.exit(f"failed ({process.returncode}): {' '.join(command)}")
    return json.loads(lines[-1]) | dict(peak_rss_mb=None if before is None else peak - before)


def child(command, environment, cells):
    """The same run in `cells` processes at a time: of the first, with the tokens per second of all."""
    if "--device" in command or "--cuda" in command:
        return child_on_gpu(command, environment)
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(cells)]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"failed ({[process.returncode for process in started]}): {' '.join(command)}")
    runs = [json.loads(output.splitlines()[-1]) for output in outputs]
    total = {key: sum(run[key] for run in runs) for key in ["tokens_per_second", "evaluation_tokens_per_second"]}
    # A step of all together, as if they took turns.
    step = runs[0]["tokens_per_second"] * runs[0]["median_step_ms"] / total["tokens_per_second"]
    return runs[0] | total | dict(median_step_ms=step)


class Stopped(Exception):
    """Told to stop."""


def stop(*_):
    # Once is enough: timeout tells the child, then its group.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


def near(found, expected, tolerance):
    return abs(found - expected) <= tolerance * abs(expected)


def measure(a, binary, found, failed, theirs_are, environment, theirs, say):
    """Rounds of every variant, into `found`; on a GPU one that fails is noted in `failed`, and the others go on."""
    def run(name, command, environment):
        try:
            made = child(command, environment, a.cells)
        except SystemExit as e:
            if not a.device:
                raise
            failed[name] = str(e)
            return say(f"{name}: {e}")
        found.setdefault(name, []).append(made)
        if a.device:
            # Somebody's time limit may end this before the report.
            print(f"{name}: {made['tokens_per_second']:.0f} tokens/s", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        weights = os.path.join(folder, "weights.safetensors")
        for turn in range(a.pairs):
            for name, precision in OURS.items():
                if precision in a.precision and (precision == "f32" or not a.device):
                    export = ["--export", weights] if not os.path.exists(weights) else []
                    command = [binary, *shape_arguments(a), "--precision", precision, *export]
                    run(name, command + (["--device", a.device] if a.device else []), environment)
            for name, flags in theirs_are.items():
                if name == "compile f32" and not a.compile:
                    continue
                command = [a.torch_python, os.path.abspath(__file__), "--child", "--weights", weights, *shape_arguments(a),
                           "--threads", str(a.threads), *flags]
                run(name, command, theirs)
            say(f"round {turn + 1}: " + ", ".join(f"{name} {runs[-1]['median_step_ms']:.1f} ms" for name, runs in found.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, help="fills in what is not given below")
    for name in ["d_model", "layers", "heads", "context", "batch", "vocab"]:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--block", choices=["default", "gpt", "rms"])
    parser.add_argument("--head", choices=["tied", "untied"], default="tied")
    parser.add_argument("--steps", type=int, default=20, help="timed steps (default 20)")
    parser.add_argument("--warmup", type=int, default=4, help="steps before them (default 4)")
    parser.add_argument("--pairs", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both (default: all)")
    parser.add_argument("--cells", type=int, default=1, help="processes at a time, as in a sweep (default 1)")
    parser.add_argument("--torch-python", default=sys.executable, help="a Python with PyTorch (default: this one)")
    parser.add_argument("--binary", help="a built bench_step (default: build it)")
    parser.add_argument("--precision", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"], help="ours (default: both)")
    parser.add_argument("--compile", action="store_true", help="also torch.compile (with --child: only)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", help="of ours, with PyTorch on its CUDA device; needs --binary (default: the CPU for both)")
    parser.add_argument("--ours-only", action="store_true", help="without PyTorch; needs --device")
    for name in ["--child", "--bf16", "--cuda", "--tf32"]:
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--weights", help=argparse.SUPPRESS)
    a = parser.parse_args()
    for name, value in (SHAPES[a.shape or "S2"]).items():
        if getattr(a, name) is None:
            setattr(a, name, value)
    if a.child:
        return torch_child(a)

    if a.device and (a.cells > 1 or a.compile or not a.binary):
        parser.error("--device needs --binary, built with the device's feature, and goes with neither --cells nor --compile")
    if a.ours_only and not a.device:
        parser.error("--ours-only needs --device")
    binary = a.binary
    if not binary:
        build = ["cargo", "build", "--release", "-p", "tiebreak-train", "--example", "bench_step", "--message-format=json"]
        lines = subprocess.run(build, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        built = [json.loads(line) for line in lines]
        binary = next(m["executable"] for m in built if m.get("executable") and m["target"]["name"] == "bench_step")
    theirs_are = {} if a.ours_only else THEIRS_ON_GPU if a.device else THEIRS
    a.threads = max(1, a.threads // a.cells)
    environment = dict(os.environ, RAYON_NUM_THREADS=str(a.threads))
    removed = [name for name in REMOVED if name in environment]
    theirs = {k: v for k, v in environment.items() if k not in REMOVED} | dict(OMP_NUM_THREADS=str(a.threads))
    say = (lambda *x: print(*x, file=sys.stderr)) if a.json else print
    say(f"{a.shape or 'shape'}: " + " ".join(shape_arguments(a)))
    say(f"{a.cells} at a time, {a.threads} threads each; removed for PyTorch: {', '.join(removed) or 'nothing was set'}")
    found, failed, stopped = {}, {}, False
    if a.device:
        signal.signal(signal.SIGTERM, stop)
    try:
        measure(a, binary, found, failed, theirs_are, environment, theirs, say)
    except Stopped:
        stopped = True
        say("told to stop: this is what there is")

    deviating = []
    reference = found.get("eager f32", [None])[0]
    for name, runs in found.items() if reference else []:
        first, later = (2e-3, 5e-3) if "bf16" in name or "tf32" in name else (1e-5, 1e-3)
        for run in runs:
            # Rounding grows with the steps, and a GPU takes more of them.
            for step, (loss, expected) in enumerate(zip(run["losses"][:24], reference["losses"]), 1):
                if a.device and not near(loss, expected, first if step == 1 else later):
                    # A machine that is lent for minutes is not to lose its figures for it.
                    deviating.append(f"{name}: loss {loss} at step {step}, PyTorch eager has {expected}")
                elif not near(loss, expected, first if step == 1 else later):
                    sys.exit(f"{name}: loss {loss} at step {step}, PyTorch eager has {expected}: not the same work")
        if runs[0]["parameters"] != reference["parameters"]:
            sys.exit(f"{name}: {runs[0]['parameters']} parameters, PyTorch has {reference['parameters']}")
    middle = lambda runs, key: statistics.median(r[key] for r in runs)
    known = lambda runs, key: all(run[key] for run in runs)
    report = dict(shape={n: getattr(a, n) for n in ["d_model", "layers", "heads", "context", "batch", "vocab", "block", "head"]},
                  threads=a.threads, cells=a.cells, pairs=a.pairs, variants={}, ratios={})
    if a.device:
        report |= dict(device=a.device, deviating=deviating if reference else None, stopped=stopped, failed=failed)
    for name, runs in found.items():
        keys = ["tokens_per_second", "median_step_ms", "evaluation_tokens_per_second", "peak_rss_mb"]
        report["variants"][name] = {key: round(middle(runs, key), 1) if known(runs, key) else None for key in keys} | dict(products=runs[0]["products"])
    for ours in (name for name in found if name in OURS):
        for other in (name for name in found if name in theirs_are):
            rounds = list(zip(found[ours], found[other]))
            speed = sorted(y["median_step_ms"] / x["median_step_ms"] for x, y in rounds)
            evaluation = statistics.median(x["evaluation_tokens_per_second"] / y["evaluation_tokens_per_second"] for x, y in rounds)
            memory = None
            if known(found[ours] + found[other], "peak_rss_mb"):
                memory = round(statistics.median(x["peak_rss_mb"] / y["peak_rss_mb"] for x, y in rounds), 2)
            report["ratios"][f"{ours} / {other}"] = dict(
                speed=[round(x, 2) for x in (statistics.median(speed), speed[0], speed[-1])], evaluation=round(evaluation, 2),
                memory=memory)
    if a.json:
        print(json.dumps(report, indent=1), flush=True)
        sys.exit(1 if failed else 0)
    for name, v in report["variants"].items():
        print(f"{name:14} {v['median_step_ms']:8.1f} ms  {v['tokens_per_second']:9.0f} tok/s  evaluation "
              f"{v['evaluation_tokens_per_second']:9.0f} tok/s  peak {v['peak_rss_mb'] or 0:6.0f} MiB  [{v['products']}]")
    for name, v in report["ratios"].items():
        print(f"{name:28} {v['speed'][0]:5.2f} x ({v['speed'][1]} to {v['speed'][2]})  evaluation {v['evaluation']:.2f} x  "
              f"memory {v['memory'] or 0:.2f} x")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

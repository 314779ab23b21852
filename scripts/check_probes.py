#!/usr/bin/env python3
"""Independent numbers for the probes of tables, in numpy and scipy (float64), and their time at full size.

Run      pip install numpy scipy
         python scripts/check_probes.py write                       writes crates/tiebreak-probe/fixtures/probes.json (seconds);
                                                                    a test of that crate compares every number with its own
         python scripts/check_probes.py collect UNTIED TIED SHARD   writes crates/tiebreak-probe/fixtures/trained.safetensors from two
                                                                    runs and the train.bin of their data (in the cache's shards/)
         python scripts/check_probes.py compare RUN... JSON SHARD   checks what `tiebreak probe RUN... --json > JSON` said of real
                                                                    runs, nulls included
         python scripts/check_probes.py bench V D PERMUTATIONS      time and peak memory of the same measures in numpy and scipy
Wrote    the committed file was written with numpy 2.4.6 and scipy 1.17.1.

Definitions are those of the library calls used: scipy.linalg.orthogonal_procrustes, numpy.linalg.lstsq, numpy.linalg.qr and svd,
scipy.stats.spearmanr and rankdata, numpy.quantile. Only folds and random pairings are drawn as tiebreak draws them (ChaCha8 keyed by
SHA-256 of seed and name, Fisher-Yates), so that nulls and held-out scores can be compared number by number.

Cases of the fixture
  formula    tables whose entries are hashes of (table, row, column), small multiples of 2^-8, hence the same in f32; some share
             structure through one another, through frequency, or differ in width
  trained    input, output and shared tables of two small runs, from fixtures/trained.safetensors with the training counts
"""
import argparse
import hashlib
import json
import pathlib
import resource
import struct
import time

import numpy as np
import scipy
from scipy import linalg, stats

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "crates/tiebreak-probe/fixtures"
MASK = (1 << 64) - 1


# --- the random stream -------------------------------------------------------------------------------------------------


class Stream:
    """ChaCha8, 64-bit counter, key SHA-256(seed as 8 little-endian bytes + name); 64-bit draws, low word first."""

    def __init__(self, seed, name):
        self.key = struct.unpack("<8I", hashlib.sha256(struct.pack("<Q", seed) + name.encode()).digest())
        self.counter, self.draws = 0, []

    def block(self):
        constants = struct.unpack("<4I", b"expand 32-byte k")
        start = [*constants, *self.key, self.counter & 0xFFFFFFFF, self.counter >> 32, 0, 0]
        x = list(start)

        def quarter(a, b, c, d):
            for first, second, third, shift in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[first] = (x[first] + x[second]) & 0xFFFFFFFF
                turned = x[third] ^ x[first]
                x[third] = ((turned << shift) | (turned >> (32 - shift))) & 0xFFFFFFFF

        for _ in range(4):
            for q in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)):
                quarter(*q)
            for q in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
                quarter(*q)
        self.counter += 1
        words = [(a + b) & 0xFFFFFFFF for a, b in zip(x, start)]
        self.draws = [words[i] | words[i + 1] << 32 for i in range(0, 16, 2)]

    def below(self, n):
        limit = MASK - MASK % n
        while True:
            if not self.draws:
                self.block()
            draw = self.draws.pop(0)
            if draw < limit:
                return draw % n

    def permutation(self, n):
        order = list(range(n))
        for i in range(n - 1, 0, -1):
            j = self.below(i + 1)
            order[i], order[j] = order[j], order[i]
        return np.array(order)


def groups(counts, n):
    order = sorted(range(len(counts)), key=lambda i: (-counts[i], i))
    group = np.zeros(len(counts), int)
    for rank, i in enumerate(order):
        group[i] = n * rank // len(counts)
    return group


class Pairing:
    """Positions are rows in the order of the folds; pairs[p] is the target's position that goes with the source's p."""

    def __init__(self, counts, permutations, seed, folds=5):
        n = len(counts)
        self.order = Stream(seed, "probe folds").permutation(n)
        self.folds = [np.arange(f * n // folds, (f + 1) * n // folds) for f in range(folds)]
        self.tercile = groups(counts, 3)[self.order]
        decile = groups(counts, 10)[self.order]
        self.free = [Stream(seed, f"probe null {k}").permutation(n) for k in range(permutations)]
        self.within = []
        for k in range(permutations):
            stream, pairs = Stream(seed, f"probe null within deciles {k}"), np.zeros(n, int)
            for g in range(10):
                members = np.flatnonzero(decile == g)
                pairs[members] = members[stream.permutation(len(members))]
            self.within.append(pairs)


# --- metrics, from their definitions -----------------------------------------------------------------------------------


def cosines(a, b):
    return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


def neighbours(t, k=10):
    unit = t / np.linalg.norm(t, axis=1, keepdims=True)
    found = []
    for start in range(0, len(t), 512):
        similar = unit[start : start + 512] @ unit.T
        similar[np.arange(len(similar)), np.arange(start, start + len(similar))] = -np.inf
        near = np.argpartition(-similar, k, axis=1)[:, :k] if len(t) > 4000 else np.argsort(-similar, axis=1, kind="stable")[:, :k]
        found.append(near)
    return np.concatenate(found)


def measure(s, t, metric, folds, cache):
    """Per-token values, or one number for what is no mean over tokens. Rows are in the order of the folds."""
    sc, tc = s - s.mean(0), t - t.mean(0)
    if metric == "identity":
        return cosines(s, t)
    if metric == "procrustes":
        return cosines(sc @ linalg.orthogonal_procrustes(sc, tc)[0], tc)
    if metric == "linear":
        return cosines(sc @ np.linalg.lstsq(sc, tc, rcond=None)[0], tc)
    if metric == "linear_heldout":
        values = np.zeros(len(s))
        for fold in folds:
            rest = np.setdiff1d(np.arange(len(s)), fold)
            ms, mt = s[rest].mean(0), t[rest].mean(0)
            m = np.linalg.lstsq(s[rest] - ms, t[rest] - mt, rcond=None)[0]
            values[fold] = cosines((s[fold] - ms) @ m, t[fold] - mt)
        return values
    if metric == "cca":
        return float(np.linalg.svd(np.linalg.qr(sc)[0].T @ np.linalg.qr(tc)[0], compute_uv=False).mean())
    if metric == "knn10":
        # A search of its own for every pairing, where tiebreak renames the neighbours it has.
        for x in (s, t):
            if x.tobytes() not in cache:
                cache[x.tobytes()] = neighbours(x)
        near = [cache[x.tobytes()] for x in (s, t)]
        return np.array([len(set(a) & set(b)) / 10 for a, b in zip(*near)])
    if metric == "cka":
        return float(np.linalg.norm(sc.T @ tc) ** 2 / (np.linalg.norm(sc.T @ sc) * np.linalg.norm(tc.T @ tc)))
    a, b = np.linalg.norm(s, axis=1), np.linalg.norm(t, axis=1)
    return float(stats.spearmanr(a, b).statistic if metric == "norm_spearman" else stats.pearsonr(a, b).statistic)


def scores(s, t, counts, metrics, permutations, seed):
    pairing, cache, out = Pairing(counts, permutations, seed), {}, {}
    s, t = s[pairing.order], t[pairing.order]
    for metric in metrics:
        value = measure(s, t, metric, pairing.folds, cache)
        null = [measure(s, t[p], metric, pairing.folds, cache) for p in pairing.free]
        freq = [measure(s, t[p], metric, pairing.folds, cache) for p in pairing.within]
        mean = lambda x: float(np.mean(x))
        sd = lambda xs: float(np.std([mean(x) for x in xs], ddof=1))
        out[metric] = {
            "value": mean(value),
            "null": mean([mean(x) for x in null]),
            "null_sd": sd(null),
            "null_freq": mean([mean(x) for x in freq]),
            "null_freq_sd": sd(freq),
        }
        if not isinstance(value, float):
            third = lambda x: [mean(x[pairing.tercile == g]) for g in range(3)]
            out[metric]["terciles"] = third(value)
            out[metric]["null_terciles"] = np.mean([third(x) for x in null], 0).tolist()
            out[metric]["deciles"] = np.quantile(value, np.arange(1, 10) / 10).tolist()
    return out


def single(t, counts):
    """Geometry and norm against frequency of one table."""
    n, d = t.shape
    unit = t / np.linalg.norm(t, axis=1, keepdims=True)
    p = np.linalg.svd(t, compute_uv=False)
    p = p[p > 0] / p.sum()
    variances = linalg.eigvalsh(np.cov(t.T, ddof=0))
    v = np.sqrt(d) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(v - 1) / np.sqrt(2 * (d - np.sqrt(d)))
    z = np.exp(t @ linalg.eigh(t.T @ t)[1])
    z = np.concatenate([z.sum(0), (1 / z).sum(0)])
    x, y = np.log10(np.array(counts) + 1.0), np.linalg.norm(t, axis=1)
    seen = np.array(counts) > 0
    fit = stats.linregress(x[seen], y[seen])
    return {
        "mean_cosine": float((unit @ unit.T)[~np.eye(n, dtype=bool)].mean()),
        "effective_rank": float(np.exp(-(p * np.log(p)).sum())),
        "isoscore": float(((d - defect**2 * (d - np.sqrt(d))) ** 2 - d) / (d * (d - 1))),
        "partition_isotropy": float(z.min() / z.max()),
        "mean_norm": float(y.mean()),
        "spearman": float(stats.spearmanr(x[seen], y[seen]).statistic),
        "pearson": float(fit.rvalue),
        "slope": float(fit.slope),
    }


def drift(now, before):
    c = cosines(now, before)
    return {"mean": float(c.mean()), "deciles": np.quantile(c, np.arange(1, 10) / 10).tolist()}


def learned_part(now, before):
    return now - ((now * before).sum(1) / (before * before).sum(1))[:, None] * before


# --- tables both sides can make ----------------------------------------------------------------------------------------


def hashed(table, n, d):
    """Multiples of 2^-8 in [-1, 1), from splitmix64 of (table, row, column)."""
    with np.errstate(over="ignore"):
        i, j = np.meshgrid(np.arange(n, dtype=np.uint64), np.arange(d, dtype=np.uint64), indexing="ij")
        z = (np.uint64(table) << np.uint64(40)) + (i << np.uint64(16)) + j
        z = z * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(55)).astype(np.float64) - 256.0) / 256.0


def counts_of(n):
    return [5000 // (i + 1) + i % 3 for i in range(n)]


def formula_tables(n, d):
    a, b = hashed(1, n, d), hashed(2, n, d)
    frequent = (np.array(counts_of(n)) > 12).astype(float)[:, None]
    return {
        "a": a,
        # Columns of a, mixed, under noise, on unlike scales: a map is to be found, in some directions better than in others.
        "mixed": (np.roll(a, 3, 1) + a[:, ::-1] / 2 + b) * np.where(np.arange(d) % 3 == 0, 2.0, 0.5),
        "stranger": b + 0.25,
        # Shares nothing with `frequent_b` but that frequent tokens stand apart in both.
        "frequent_a": hashed(3, n, d) + frequent * hashed(4, 1, d) * 2,
        "frequent_b": hashed(5, n, d) + frequent * hashed(6, 1, d) * 2,
        "narrow": a[:, : d // 2] + hashed(7, n, d // 2),
    }


def safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    take = lambda h: np.frombuffer(data[8 + size :], "<f4", offset=h["data_offsets"][0], count=int(np.prod(h["shape"])))
    return {k: take(h).reshape(h["shape"]).astype(np.float64) for k, h in header.items() if k != "__metadata__"}


ALL = ["identity", "procrustes", "linear", "linear_heldout", "cca", "knn10", "cka", "norm_spearman", "norm_pearson"]
ANY_WIDTH = ["linear", "linear_heldout", "cca", "knn10", "cka"]


def write(_):
    n, d, permutations, seed = 160, 12, 6, 3
    counts, tables = counts_of(n), formula_tables(n, d)
    cases = []
    for source, target, metrics in [
        ("a", "mixed", ALL), ("mixed", "a", ALL), ("a", "stranger", ALL), ("frequent_a", "frequent_b", ALL),
        ("a", "narrow", ANY_WIDTH), ("narrow", "a", ANY_WIDTH),
    ]:
        found = scores(tables[source], tables[target], counts, metrics, permutations, seed)
        cases.append({"source": source, "target": target, "scores": found})
    document = {
        "versions": {"numpy": np.__version__, "scipy": scipy.__version__},
        "formula": {
            "rows": n, "columns": d, "permutations": permutations, "seed": seed, "cases": cases,
            "single": {k: single(t, counts) for k, t in tables.items()},
            "drift": drift(tables["mixed"], tables["a"]),
            "learned": scores(learned_part(tables["mixed"], tables["a"]), learned_part(tables["stranger"], tables["a"]),
                              counts, ["procrustes", "linear"], permutations, seed),
        },
    }
    trained = FIXTURES / "trained.safetensors"
    stored = safetensors(trained)
    counts = [int(x) for x in stored.pop("counts")[0]]
    seen = [i for i, c in enumerate(counts) if c > 0]
    rows = {k: t[seen] for k, t in stored.items()}
    counts = [counts[i] for i in seen]
    pairs = [("input", "output"), ("input", "tied"), ("output", "tied")]
    document["trained"] = {
        "permutations": permutations, "seed": seed,
        "cases": [{"source": s, "target": t, "scores": scores(rows[s], rows[t], counts, ALL, permutations, seed)} for s, t in pairs],
        "single": {k: single(rows[k], counts) for k in ("input", "output", "tied")},
        "drift": {k: drift(rows[k], rows[f"{k}_initial"]) for k in ("input", "output", "tied")},
    }
    path = FIXTURES / "probes.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(path)


def counts_in(shard):
    data = pathlib.Path(shard).read_bytes()
    width, vocabulary = struct.unpack("<I", data[12:16])[0], struct.unpack("<Q", data[16:24])[0]
    return np.bincount(np.frombuffer(data[256:], "<u2" if width == 2 else "<u4"), minlength=vocabulary).tolist()


def last_step(run):
    return max(int(p.stem.split("-")[1]) for p in (run / "tables").glob("step-*.safetensors"))


def collect(args):
    untied, tied = pathlib.Path(args.untied), pathlib.Path(args.tied)
    tables = {"counts": np.array([counts_in(args.shard)])}
    for suffix, step in (("", last_step), ("_initial", lambda _: 0)):
        stored = safetensors(untied / f"tables/step-{step(untied)}.safetensors")
        tables |= {f"input{suffix}": stored["input"], f"output{suffix}": stored["output"]}
        tables[f"tied{suffix}"] = safetensors(tied / f"tables/step-{step(tied)}.safetensors")["input"]
    header, body = {}, b""
    for name, table in tables.items():
        bytes_ = table.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(table.shape), "data_offsets": [len(body), len(body) + len(bytes_)]}
        body += bytes_
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (FIXTURES / "trained.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


def compare(args):
    *folders, report, shard = args.paths
    report, worst = json.loads(pathlib.Path(report).read_text()), 0.0
    runs = {pathlib.Path(f).resolve().name: pathlib.Path(f) for f in folders}
    counts = np.array(counts_in(shard))
    rows = np.flatnonzero(counts > 0) if report["rows"]["which"] == "seen" else np.arange(len(counts))

    def table(name, step):
        run, side = name.rsplit(":", 1)
        stored = safetensors(runs[run] / f"tables/step-{step}.safetensors")
        return stored["input" if side == "tied" else side][rows]

    for pair in report["pairs"]:
        s, t = table(pair["source"], pair["source_step"]), table(pair["target"], pair["target_step"])
        exact = scores(s, t, counts[rows].tolist(), list(pair["metrics"]), report["permutations"], report["seed"])
        for metric, score in pair["metrics"].items():
            for key in ("value", "null", "null_sd", "null_freq", "null_freq_sd"):
                worst = max(worst, abs(exact[metric][key] - score[key]))
            print(f"{pair['source']} {pair['target']} {metric}: {score['value']:.8f} null {score['null']:.8f}, "
                  f"numpy {exact[metric]['value']:.8f} null {exact[metric]['null']:.8f}")
    print(f"largest difference {worst:.2e}")


def bench(args):
    v, d = args.v, args.d
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((v, 64), np.float32) @ rng.standard_normal((64, d), np.float32) / 8
    s = shared + rng.standard_normal((v, d), np.float32)
    t = (shared + rng.standard_normal((v, d), np.float32)) @ np.linalg.qr(rng.standard_normal((d, d), np.float32))[0]
    del shared
    if args.save:
        s.tofile(args.save + ".source.f32")
        t.astype(np.float32).tofile(args.save + ".target.f32")
    pairs = [None] + [rng.permutation(v) for _ in range(args.permutations)]
    folds = np.array_split(rng.permutation(v), 5)
    totals, values = {}, {}
    for metric in args.metrics:
        started = time.monotonic()
        for p in pairs:
            other = t if p is None else t[p]
            if metric == "knn10" and p is not None:
                where = np.argsort(p)
                near_t = where[near[1][p]]
                value = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(near[0], near_t)])
            elif metric == "knn10":
                near = [neighbours(s), neighbours(t)]
                value = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(*near)])
            else:
                value = np.mean(measure(s, other, metric, folds, {}))
            values.setdefault(metric, []).append(float(value))
        totals[metric] = time.monotonic() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{metric}: value {values[metric][0]:.4f} null {np.mean(values[metric][1:]):.4f} {totals[metric]:.1f} s, peak {peak:.2f} GiB", flush=True)
    print(f"all: {sum(totals.values()):.1f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("write").set_defaults(run=write)
    command = commands.add_parser("compare")
    command.add_argument("paths", nargs="+")
    command.set_defaults(run=compare)
    command = commands.add_parser("collect")
    for name in ("untied", "tied", "shard"):
        command.add_argument(name)
    command.set_defaults(run=collect)
    command = commands.add_parser("bench")
    command.add_argument("v", type=int)
    command.add_argument("d", type=int)
    command.add_argument("permutations", type=int)
    command.add_argument("--metrics", nargs="+", default=["identity", "procrustes", "linear", "linear_heldout", "cca", "knn10"])
    command.add_argument("--save", default="")
    command.set_defaults(run=bench)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()

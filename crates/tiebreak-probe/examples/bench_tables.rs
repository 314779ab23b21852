//! Time and peak memory of alignment, neighbours and their nulls on two tables of raw little-endian f32 values, row by row.
//!
//!     python scripts/check_probes.py bench 50304 2048 1 --save big        (writes big.source.f32 and big.target.f32)
//!     cargo run --release -p tiebreak-probe --example bench_tables -- 50304 2048 1 big [METRIC...]

use std::time::Instant;

use tiebreak_data::Error;
use tiebreak_probe::{Aligner, Metric, Options, Rows, Table};

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|x| x.parse().ok());
    let (Some(v), Some(d), Some(permutations), Some(prefix)) = (number(0), number(1), number(2), args.get(3)) else {
        return Err(Error::Input("usage: bench_tables V D PERMUTATIONS PREFIX [METRIC...]".into()));
    };
    let read = |name: &str| {
        let path = format!("{prefix}.{name}.f32");
        let bytes = std::fs::read(&path).map_err(|e| Error::Failed(format!("{path}: {e}")))?;
        Table::new(v, d, bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    };
    let (source, target) = (read("source")?, read("target")?);
    let chosen = |m: &Metric| args.len() == 4 || args[4..].iter().any(|name| name == m.name());
    let metrics = Options::default().metrics.into_iter().filter(chosen).collect();
    let rows = Rows::all(&(0..v as u64).map(|i| 1_000_000 / (i + 1)).collect::<Vec<_>>())?;
    let started = Instant::now();
    let aligner = Aligner::new(rows, Options { metrics, permutations, ..Options::default() })?;
    let [source, target] = [aligner.operand(&source)?, aligner.target(&target)?];
    println!("tables made ready: {:.1} s", started.elapsed().as_secs_f64());
    let found = aligner.align(&source, &target)?;
    for (metric, score) in &found.scores {
        let (null, freq) = (score.null.unwrap_or(f64::NAN), score.null_freq.unwrap_or(f64::NAN));
        println!("{}: value {:.4} null {null:.4} null_freq {freq:.4}", metric.name(), score.value);
    }
    println!("all: {:.1} s, peak {}", started.elapsed().as_secs_f64(), peak());
    Ok(())
}

fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or("unknown").trim().to_owned()
}

//! Every measure against numpy and scipy: fixtures/probes.json, written by scripts/check_probes.py.

use std::collections::BTreeMap;

use safetensors::SafeTensors;
use serde_json::Value;

use crate::{Drift, Metric, Options, Rows, Table, align, geometry, learned_part, norm_frequency};

/// Scores go through f32 products.
const SCORE: f64 = 2e-6;
/// What is computed in f64 from f32 values.
const EXACT: f64 = 1e-9;

fn fixture() -> Value {
    serde_json::from_str(include_str!("../fixtures/probes.json")).unwrap()
}

fn hashed(table: u64, n: usize, d: usize) -> Vec<Vec<f32>> {
    let value = |i: usize, j: usize| {
        let z = ((table << 40) + ((i as u64) << 16) + j as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((z ^ (z >> 31)) >> 55) as f32 - 256.0) / 256.0
    };
    (0..n).map(|i| (0..d).map(|j| value(i, j)).collect()).collect()
}

fn counts(n: usize) -> Vec<u64> {
    (0..n as u64).map(|i| 5000 / (i + 1) + i % 3).collect()
}

fn formula_tables(n: usize, d: usize) -> BTreeMap<String, Table> {
    let counts = counts(n);
    let table = |columns: usize, value: &dyn Fn(usize, usize) -> f32| {
        let values = (0..n * columns).map(|k| value(k / columns, k % columns)).collect();
        Table::new(n, columns, values).unwrap()
    };
    let [a, b] = [1, 2].map(|t| hashed(t, n, d));
    let frequent = |rows: u64, away: u64| {
        let (rows, away) = (hashed(rows, n, d), hashed(away, 1, d));
        table(d, &|i, j| rows[i][j] + if counts[i] > 12 { 2.0 * away[0][j] } else { 0.0 })
    };
    let scale = |j: usize| if j.is_multiple_of(3) { 2.0 } else { 0.5 };
    let seven = hashed(7, n, d / 2);
    let all = [
        ("a", table(d, &|i, j| a[i][j])),
        ("mixed", table(d, &|i, j| (a[i][(j + d - 3) % d] + a[i][d - 1 - j] / 2.0 + b[i][j]) * scale(j))),
        ("stranger", table(d, &|i, j| b[i][j] + 0.25)),
        ("frequent_a", frequent(3, 4)),
        ("frequent_b", frequent(5, 6)),
        ("narrow", table(d / 2, &|i, j| a[i][j] + seven[i][j])),
    ];
    all.into_iter().map(|(name, table)| (name.to_owned(), table)).collect()
}

fn trained() -> (BTreeMap<String, Table>, Vec<u64>) {
    let bytes = include_bytes!("../fixtures/trained.safetensors");
    let file = SafeTensors::deserialize(bytes).unwrap();
    let mut tables: BTreeMap<String, Table> = file
        .iter()
        .map(|(name, view)| {
            let values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            (name.to_owned(), Table::new(view.shape()[0], view.shape()[1], values).unwrap())
        })
        .collect();
    let counts = tables.remove("counts").unwrap().values().iter().map(|x| *x as u64).collect();
    (tables, counts)
}

fn close(found: f64, expected: &Value, tolerance: f64, what: &str) {
    let expected = expected.as_f64().unwrap_or_else(|| panic!("{what}: no number"));
    assert!((found - expected).abs() <= tolerance * expected.abs().max(1.0), "{what}: {found} instead of {expected}");
}

fn check_scores(source: &Table, target: &Table, rows: &Rows, expected: &Value, settings: &Value, what: &str) {
    let expected = expected.as_object().unwrap();
    let options = Options {
        metrics: Metric::ALL.into_iter().filter(|m| expected.contains_key(m.name())).collect(),
        permutations: settings["permutations"].as_u64().unwrap() as usize,
        seed: settings["seed"].as_u64().unwrap(),
        ..Options::default()
    };
    let found = align(source, target, rows.clone(), options).unwrap().scores;
    assert_eq!(found.len(), expected.len(), "{what}");
    for (metric, score) in found {
        let expected = &expected[metric.name()];
        let near = |found: Option<f64>, key: &str| {
            close(found.unwrap(), &expected[key], SCORE, &format!("{what} {} {key}", metric.name()));
        };
        near(Some(score.value), "value");
        near(score.null, "null");
        near(score.null_sd, "null_sd");
        near(score.null_freq, "null_freq");
        near(score.null_freq_sd, "null_freq_sd");
        assert_eq!(score.terciles.is_some(), expected["terciles"].is_array(), "{what} {}", metric.name());
        for (t, tercile) in score.terciles.iter().flatten().enumerate() {
            let what = format!("{what} {} tercile {t}", metric.name());
            close(tercile.value, &expected["terciles"][t], SCORE, &what);
            close(tercile.null.unwrap(), &expected["null_terciles"][t], SCORE, &what);
        }
        for (i, decile) in score.distribution.iter().flat_map(|d| d.deciles).enumerate() {
            close(decile, &expected["deciles"][i], 10.0 * SCORE, &format!("{what} {} decile {i}", metric.name()));
        }
    }
}

fn check_single(table: &Table, rows: &Rows, expected: &Value, what: &str) {
    let (shape, norms) = (geometry(table, rows).unwrap(), norm_frequency(table, rows).unwrap());
    for (key, found) in [
        ("mean_cosine", shape.mean_cosine),
        ("effective_rank", Some(shape.effective_rank)),
        ("isoscore", shape.isoscore),
        ("partition_isotropy", Some(shape.partition_isotropy)),
        ("mean_norm", Some(shape.mean_norm)),
        ("spearman", norms.spearman),
        ("pearson", norms.pearson),
        ("slope", norms.slope),
    ] {
        close(found.unwrap(), &expected[key], EXACT, &format!("{what} {key}"));
    }
}

fn check_drift(now: &Table, before: &Table, rows: &Rows, expected: &Value) {
    let found = Drift::between(now, before, rows).unwrap();
    close(found.mean, &expected["mean"], EXACT, "drift");
    for (i, decile) in found.deciles.iter().enumerate() {
        close(*decile, &expected["deciles"][i], EXACT, "decile of drift");
    }
}

#[test]
fn tables_from_a_formula() {
    let all = fixture();
    let expected = &all["formula"];
    let (n, d) = (expected["rows"].as_u64().unwrap() as usize, expected["columns"].as_u64().unwrap() as usize);
    let (tables, rows) = (formula_tables(n, d), Rows::seen(&counts(n)).unwrap());
    assert_eq!(rows.len(), n);
    for case in expected["cases"].as_array().unwrap() {
        let [source, target] = ["source", "target"].map(|key| case[key].as_str().unwrap());
        let what = format!("{source} to {target}");
        check_scores(&tables[source], &tables[target], &rows, &case["scores"], expected, &what);
    }
    for (name, table) in &tables {
        check_single(table, &rows, &expected["single"][name], name);
    }
    check_drift(&tables["mixed"], &tables["a"], &rows, &expected["drift"]);
    let learned = |name: &str| learned_part(&tables[name], &tables["a"]).unwrap();
    check_scores(&learned("mixed"), &learned("stranger"), &rows, &expected["learned"], expected, "learned");
}

#[test]
fn trained_tables() {
    let all = fixture();
    let expected = &all["trained"];
    let (tables, counts) = trained();
    let rows = Rows::seen(&counts).unwrap();
    assert!(rows.len() < rows.vocabulary(), "some ids are never seen");
    for case in expected["cases"].as_array().unwrap() {
        let [source, target] = ["source", "target"].map(|key| case[key].as_str().unwrap());
        let what = format!("{source} to {target}");
        check_scores(&tables[source], &tables[target], &rows, &case["scores"], expected, &what);
    }
    for name in ["input", "output", "tied"] {
        check_single(&tables[name], &rows, &expected["single"][name], name);
        check_drift(&tables[name], &tables[&format!("{name}_initial")], &rows, &expected["drift"][name]);
    }
}

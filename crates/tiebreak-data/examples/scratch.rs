use std::time::Instant;
use tiebreak_data::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args[1] == "ws" {
        let text = " ".repeat(3_000_000) + "x";
        for t in [Tokenizer::gpt2(), { let d: Vec<Document> = synthetic_documents(); Tokenizer::train(&d, 400).unwrap() }] {
            let s = Instant::now();
            let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| t.try_encode(&text).map(|v| v.len())));
            println!("{:?} {:?}", r.map_err(|_| "panic"), s.elapsed());
        }
        return;
    }
    if args[1] == "sample" { println!("{}", synthetic_documents()[3].text); return; }
    let config = DataConfig { corpus: args[1].clone(), tokenizer: args[2].clone(), ..Default::default() };
    let s = Instant::now();
    match prepare(&config) { Ok(_) => {}, Err(e) => { println!("{e:?}"); return } }
    println!("prepare {:?}", s.elapsed());
    let s = Instant::now();
    println!("cached {:?}", prepared_if_cached(&config).unwrap().is_some());
    println!("second {:?}", s.elapsed());
    let s = Instant::now();
    println!("{:#?}", inspect(&config).unwrap());
    println!("inspect {:?}", s.elapsed());
}

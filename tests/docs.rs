//! What documents quote is what the code says.

use std::path::Path;

/// Every Rust block of docs/ADD_A_HEAD_MODE.md begins with a comment that names its file, and stands in that file word for word; the
/// first is a whole file, so a mode that compiles and that every test over `ModeKind::ALL` covers.
#[test]
fn the_documented_head_mode_is_one_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = std::fs::read_to_string(root.join("docs/ADD_A_HEAD_MODE.md")).unwrap();
    let blocks: Vec<&str> = text.split("```rust\n").skip(1).map(|b| b.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 4, "{} blocks", blocks.len());
    for (index, block) in blocks.into_iter().enumerate() {
        let (name, code) = block.split_once('\n').unwrap();
        let file = name.strip_prefix("// ").unwrap_or_else(|| panic!("a block without a file: {name}"));
        let source = std::fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        if index == 0 {
            assert_eq!(source, code, "{file}");
        }
        for part in code.split("// ...\n") {
            assert!(source.contains(part), "{file} does not hold:\n{part}");
        }
    }
}

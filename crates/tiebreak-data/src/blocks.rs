//! Cutting a long text into blocks that together are exactly that text.

/// Where a block may end.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum CutAt {
    /// After a blank line; where none comes within twice the size, after a line end; failing that, as `Whitespace`.
    BlankLine,
    /// Before a whitespace character (the blank then begins a word, as byte-level tokenizers like it).
    Whitespace,
}

/// Blocks of `size` to about `1.5 size` bytes, the last one `size / 2` or more; a text of less than `1.5 size` is one block. A
/// text without any fitting place is cut between two characters at `2 size`.
pub(crate) fn cut(text: &str, size: usize, at: CutAt) -> Vec<&str> {
    let size = size.max(1);
    let mut blocks = Vec::new();
    let mut rest = text;
    while rest.len() >= size + size / 2 {
        let place = end_of_block(rest, size, at);
        if place >= rest.len() {
            break;
        }
        let (block, tail) = rest.split_at(place);
        blocks.push(block);
        rest = tail;
    }
    if !rest.is_empty() {
        blocks.push(rest);
    }
    blocks
}

fn end_of_block(text: &str, size: usize, at: CutAt) -> usize {
    let from = text.ceil_char_boundary(size);
    let window = &text[from..text.ceil_char_boundary(2 * size)];
    if at == CutAt::BlankLine {
        let line_end = window.find('\n').map(|i| i + 1);
        let mut line = line_end;
        while let Some(start) = line {
            let Some(length) = window[start..].find('\n') else { break };
            if window[start..start + length].trim().is_empty() {
                return from + start + length + 1;
            }
            line = Some(start + length + 1);
        }
        if let Some(end) = line_end {
            return from + end;
        }
    }
    match window.char_indices().find(|(_, c)| c.is_whitespace()) {
        Some((i, _)) => from + i,
        None => from + window.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_the_text_and_have_the_size() {
        let text = "some words of text ".repeat(1000);
        for at in [CutAt::Whitespace, CutAt::BlankLine] {
            let blocks = cut(&text, 500, at);
            assert_eq!(blocks.concat(), text);
            assert!(blocks.iter().all(|b| (250..=750).contains(&b.len())));
            assert!(blocks[1..].iter().all(|b| b.starts_with(' ')));
        }
    }

    #[test]
    fn blank_lines_come_first() {
        let text = format!("{}\nb\n \nc{}", "a".repeat(100), "d\n".repeat(100));
        let blocks = cut(&text, 100, CutAt::BlankLine);
        assert_eq!(blocks[0], format!("{}\nb\n \n", "a".repeat(100)));
        assert_eq!(blocks.concat(), text);
    }

    #[test]
    fn text_without_whitespace_is_cut_between_characters() {
        let text = "語".repeat(1000);
        let blocks = cut(&text, 100, CutAt::Whitespace);
        assert_eq!(blocks.concat(), text);
        assert!(blocks.len() > 10);
    }
}

//! Patterns of names: `*` stands for any run of characters, `?` for one.
#![deny(unsafe_code)]

/// Whether the pattern matches the whole name.
pub fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    // Whether each beginning of the pattern matches what was read of the name.
    let mut here = vec![false; pattern.len() + 1];
    here[0] = true;
    pass_stars(&pattern, &mut here);
    for letter in name.chars() {
        let mut next = vec![false; here.len()];
        for (at, &one) in pattern.iter().enumerate() {
            match one {
                '*' => next[at] |= here[at],
                '?' => next[at + 1] |= here[at],
                _ => next[at + 1] |= here[at] && one == letter,
            }
        }
        pass_stars(&pattern, &mut next);
        here = next;
    }
    here[pattern.len()]
}

/// A star may stand for nothing.
fn pass_stars(pattern: &[char], here: &mut [bool]) {
    for (at, &one) in pattern.iter().enumerate() {
        here[at + 1] |= one == '*' && here[at];
    }
}

/// Of these names at most `count` that are nearest to a pattern that matches none of them, and near enough to be what was meant:
/// no more than a third of the pattern's letters differ.
pub fn nearest<'a>(
    pattern: &str,
    names: impl IntoIterator<Item = &'a str>,
    count: usize,
) -> Vec<&'a str> {
    let pattern: Vec<char> = pattern.chars().collect();
    let letters = pattern.iter().filter(|one| !matches!(one, '*' | '?'));
    let most = letters.count().div_ceil(3);
    let mut all: Vec<(usize, &str)> = names
        .into_iter()
        .map(|name| (distance(&pattern, name), name))
        .filter(|(distance, _)| *distance <= most)
        .collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().take(count).map(|(_, name)| name).collect()
}

/// How many characters have to be put in, taken out or replaced; what a star stands for costs nothing.
fn distance(pattern: &[char], name: &str) -> usize {
    let mut above: Vec<usize> = vec![0; pattern.len() + 1];
    for (at, &one) in pattern.iter().enumerate() {
        above[at + 1] = above[at] + usize::from(one != '*');
    }
    for letter in name.chars() {
        let mut row = vec![above[0] + 1; above.len()];
        for (at, &one) in pattern.iter().enumerate() {
            row[at + 1] = match one {
                '*' => row[at].min(above[at + 1]),
                _ => {
                    let same = usize::from(one != letter && one != '?');
                    (above[at] + same).min(row[at] + 1).min(above[at + 1] + 1)
                }
            };
        }
        above = row;
    }
    above[pattern.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_run_and_a_question_mark_is_one_character() {
        let rows = [
            ("lm_head.*", "lm_head.weight", true),
            ("lm_head.*", "lm_head", false),
            ("layers.?.w", "layers.1.w", true),
            ("layers.?.w", "layers.10.w", false),
            ("layers.?.w", "layers..w", false),
            ("*", "", true),
            ("*", "anything", true),
            ("**", "anything", true),
            ("*.weight", "a.weight.weight", true),
            ("*.weight", "a.weight.bias", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("w", "w", true),
            ("w", "w2", false),
            ("", "", true),
            ("?", "é", true),
            ("w.[0]", "w.[0]", true),
        ];
        for (pattern, name, expected) in rows {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn near_names_come_first() {
        let names = ["lm_head.weight", "layers.0.weight", "layers.1.weight"];
        let near = |pattern: &str| nearest(pattern, names, 2);
        assert_eq!(near("lmhead.*"), ["lm_head.weight"]);
        assert_eq!(near("layers.1.bias")[0], "layers.1.weight");
        assert_eq!(near("layer.1.*")[0], "layers.1.weight");
        assert!(nearest("x", [], 3).is_empty());
    }

    #[test]
    fn a_name_that_nobody_meant_is_not_near() {
        let names = ["lm_head.weight", "_lifted_tensor_constant11", "w"];
        assert_eq!(nearest("lm_hed*", names, 3), ["lm_head.weight"]);
        assert_eq!(nearest("*.lm_heed.*", names, 3), ["lm_head.weight"]);
        for pattern in ["experts.*", "encoder.layers.0.weight", "?????????"] {
            assert!(nearest(pattern, names, 3).is_empty(), "{pattern}");
        }
    }
}

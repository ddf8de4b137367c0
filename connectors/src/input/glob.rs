//! Globs over paths: `*` is any run without `/`, `**` any run, `?` one character but `/`.

/// Whether `name` matches `pattern`.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    read(pattern.as_bytes(), name.as_bytes())[pattern.len()]
}

/// Whether a folder above the file `name`, or the file itself, matches `pattern`: a folder stands for all that is below it.
pub(crate) fn selects(pattern: &str, name: &str) -> bool {
    let matched = |end| matches(pattern, &name[..end]);
    name.match_indices('/').any(|(end, _)| matched(end)) || matched(name.len())
}

/// Whether anything below the folder `name` can match `pattern`.
pub(crate) fn reaches(pattern: &str, name: &str) -> bool {
    read(pattern.as_bytes(), format!("{name}/").as_bytes()).contains(&true)
}

/// One flag per place in the pattern: which prefixes of it match all of `name`. Linear in pattern x name.
fn read(pattern: &[u8], name: &[u8]) -> Vec<bool> {
    let closure = |at: &mut Vec<bool>| {
        for p in 0..pattern.len() {
            if at[p] && pattern[p] == b'*' {
                at[p + 1] = true;
                // `**/` also stands for no folder at all.
                if pattern[p..].starts_with(b"**/") && (p == 0 || pattern[p - 1] == b'/') {
                    at[p + 3] = true;
                }
            }
        }
    };
    let mut at = vec![false; pattern.len() + 1];
    at[0] = true;
    closure(&mut at);
    for &c in name {
        let mut next = vec![false; pattern.len() + 1];
        for p in 0..pattern.len() {
            if !at[p] {
                continue;
            }
            match pattern[p] {
                b'*' => {
                    let spans = pattern.get(p + 1) == Some(&b'*') || (p > 0 && pattern[p - 1] == b'*');
                    next[p] |= spans || c != b'/';
                }
                b'?' => next[p + 1] |= c != b'/',
                literal => next[p + 1] |= literal == c,
            }
        }
        closure(&mut next);
        at = next;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, name, matches) in [
            ("a/*.parquet", "a/x.parquet", true),
            ("a/*.parquet", "a/b/x.parquet", false),
            ("a/**/*.parquet", "a/b/c/x.parquet", true),
            ("a/**/*.parquet", "a/x.parquet", true),
            ("a/**", "a/b/c", true),
            ("a/part-??", "a/part-07", true),
            ("a/part-??", "a/part-7", false),
            ("a/*", "a/", true),
            ("*a*b", "xxaxxab", true),
            ("*a*b", "xxaxxba", false),
        ] {
            assert_eq!(super::matches(pattern, name), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn a_folder_that_matches_stands_for_all_below_it() {
        for (pattern, name, selects) in [
            ("logs/day=2*", "logs/day=2/hour=3/a", true),
            ("logs/day=2*", "logs/day=1/hour=2/a", false),
            ("logs/*/a", "logs/day=2/a", true),
            ("logs/*/a", "logs/day=2/a/b", true),
            ("logs/*/a", "logs/day=2/b", false),
        ] {
            assert_eq!(super::selects(pattern, name), selects, "{pattern} {name}");
        }
    }

    #[test]
    fn a_folder_is_entered_if_a_file_below_it_may_match() {
        for (pattern, folder, enters) in [
            ("a/day=*/*.parquet", "a/day=1", true),
            ("a/day=*/*.parquet", "a/week=1", false),
            ("a/day=*/*.parquet", "a/day=1/hour=2", false),
            ("a/day=2026-1?/**", "a/day=2026-11", true),
            ("a/day=2026-1?/**", "a/day=2026-11/x/y", true),
            ("a/day=2026-1?/**", "a/day=2026-09", false),
            ("**/x", "a/b", true),
            ("*", "a", false),
        ] {
            assert_eq!(reaches(pattern, folder), enters, "{pattern} {folder}");
        }
    }
}

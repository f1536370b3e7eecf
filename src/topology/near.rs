//! Suggestions for names that are nearly right.

/// The most characters of a name that is worth comparing.
const LONG: usize = 40;

/// `did you mean ...?` with the names nearest to `name`; empty where none is near.
pub(super) fn suggestion<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let name = name.to_lowercase();
    if name.is_empty() || name.chars().count() > LONG {
        return String::new();
    }
    let allowed = 1 + name.chars().count() / 4;
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .filter_map(|candidate| {
            let distance =
                if candidate.starts_with(&name) && name.len() > 1 { 0 } else { distance(&name, candidate) };
            (distance <= allowed).then_some((distance, candidate))
        })
        .collect();
    near.sort();
    let least = near.first().map_or(0, |(distance, _)| *distance);
    let names: Vec<String> = near
        .iter()
        .take_while(|(distance, _)| *distance == least)
        .take(3)
        .map(|(_, name)| format!("`{name}`"))
        .collect();
    match names.split_last() {
        None => String::new(),
        Some((only, [])) => format!("did you mean {only}?"),
        Some((last, rest)) => format!("did you mean {} or {last}?", rest.join(", ")),
    }
}

/// [`suggestion`] for kinds of devices, which knows how else people call them.
pub(super) fn kind<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match name.to_lowercase().as_str() {
        "gpu" | "nvidia" => "did you mean `cuda`?".to_owned(),
        "x86" | "x86_64" | "arm" | "host" | "processor" => "did you mean `cpu`?".to_owned(),
        other => suggestion(other, known),
    }
}

/// Levenshtein's edit distance, one row at a time.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, &b) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested() {
        let known = ["memory", "flops", "a100-40g", "a100-80g"];
        assert_eq!(suggestion("memroy", known), "did you mean `memory`?");
        assert_eq!(suggestion("a100", known), "did you mean `a100-40g` or `a100-80g`?");
        assert_eq!(suggestion("zebra", known), "");
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}

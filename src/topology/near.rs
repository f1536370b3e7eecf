//! Suggestions for names that are nearly right: of devices, presets, keys, nodes, arrays.

use strsim::levenshtein;

/// The most characters of a name that is worth comparing.
const LONG: usize = 64;
/// The most names that are compared: an error is to come at once in a graph of a million nodes too.
const MOST: usize = 20_000;

/// `did you mean ...?` with the names nearest to `name`; empty where none is near.
/// O(names x characters^2), of the first names only.
pub(crate) fn suggestion<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    asked(&nearest(name, known))
}

/// Names that are listed in a message.
#[cfg(feature = "run")]
const LISTED: usize = 8;

/// What to use in place of `name`: the names nearest to it, then `words` and the first of those that there are.
/// O(names x characters^2), of the first names only.
#[cfg(feature = "run")]
pub(crate) fn instead(name: &str, words: &str, known: &[impl AsRef<str>]) -> String {
    let known = || known.iter().map(AsRef::as_ref);
    let near = suggestion(name, known());
    let listed: Vec<&str> = known().take(LISTED).collect();
    let more = match known().len() - listed.len() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let listed = format!("{words} {}{more}", listed.join(", "));
    if near.is_empty() { listed } else { format!("{near} {listed}") }
}

/// [`suggestion`] for kinds of devices, which knows how else people call them: `4090` is part of a name, and
/// `RTX 4090` another way of writing it.
pub(super) fn kind<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match name.to_lowercase().as_str() {
        "gpu" | "nvidia" => "did you mean `cuda`?".to_owned(),
        "x86" | "x86_64" | "arm" | "host" | "processor" => "did you mean `cpu`?".to_owned(),
        other => {
            let known: Vec<&str> = known.into_iter().collect();
            let plain = |text: &str| -> String { text.chars().filter(char::is_ascii_alphanumeric).collect() };
            let part = plain(other);
            let holds = |kind: &&str| part.len() >= 2 && plain(kind).contains(&part);
            let mut holding: Vec<&str> = known.iter().copied().filter(holds).collect();
            holding.truncate(3);
            if holding.is_empty() { suggestion(other, known) } else { asked(&holding) }
        }
    }
}

/// `did you mean ...?` with names that a pattern with `*` and `?` nearly matches; empty where none is near.
/// Where no whole name is, parts of names are compared, which patterns are mostly made of. O(names x
/// characters^2), of the first names only.
pub(crate) fn pattern(pattern: &str, names: &[&str]) -> String {
    let whole: String = pattern.chars().filter(|c| !matches!(c, '*' | '?')).collect();
    let near = suggestion(&whole, names.iter().copied());
    if !near.is_empty() {
        return near;
    }
    let longest = pattern.split(['*', '?']).max_by_key(|part| part.len()).unwrap_or_default();
    let is_end = |c: char| matches!(c, '/' | '.' | ':');
    let part = longest.split(is_end).max_by_key(|part| part.len()).unwrap_or_default();
    let parts = names.iter().take(MOST).flat_map(|name| name.split(is_end));
    let found: Vec<String> =
        nearest(part, parts).iter().map(|found| pattern.replacen(part, found, 1)).collect();
    asked(&found.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The names nearest to `name`, three at most; none where none is near.
fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let name = name.to_lowercase();
    if name.is_empty() || name.chars().count() > LONG {
        return Vec::new();
    }
    // As many edits as there are characters make any name of any other.
    let count = name.chars().count();
    let allowed = (1 + count / 4).min(count - 1);
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .take(MOST)
        .filter(|candidate| candidate.len() <= 4 * LONG)
        .filter_map(|candidate| {
            let folded = candidate.to_lowercase();
            let distance =
                if folded.starts_with(&name) && name.len() > 1 { 0 } else { levenshtein(&name, &folded) };
            (distance <= allowed).then_some((distance, candidate))
        })
        .collect();
    near.sort_unstable();
    near.dedup();
    let least = near.first().map_or(0, |(distance, _)| *distance);
    near.into_iter().take_while(|(distance, _)| *distance == least).take(3).map(|(_, name)| name).collect()
}

fn asked(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        None => String::new(),
        Some((only, [])) => format!("did you mean {only}?"),
        Some((last, rest)) => format!("did you mean {} or {last}?", rest.join(", ")),
    }
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
        assert_eq!(suggestion("dense_1", ["Dense_1", "Dense_7"]), "did you mean `Dense_1`?");
    }

    #[test]
    fn what_there_is_is_listed_after_what_is_near() {
        let many: Vec<String> = (0..20).map(|number| format!("w{number}")).collect();
        assert_eq!(instead("ww", "it has", &["w", "b"]), "did you mean `w`? it has w, b");
        assert_eq!(instead("zebra", "it has", &many), "it has w0, w1, w2, w3, w4, w5, w6, w7 and 12 more");
    }

    #[test]
    fn parts_of_kinds_are_enough() {
        let known = ["rtx3090-24g", "rtx4090-24g", "t4-16g", "l4-24g"];
        assert_eq!(kind("4090", known), "did you mean `rtx4090-24g`?");
        assert_eq!(kind("RTX 4090", known), "did you mean `rtx4090-24g`?");
        assert_eq!(kind("rtx4090_24g", known), "did you mean `rtx4090-24g`?");
        assert_eq!(kind("gpu", known), "did you mean `cuda`?");
    }

    #[test]
    fn patterns_are_compared_by_their_parts() {
        let names = ["encoder/layer_0/dense", "encoder/layer_1/dense", "head"];
        assert_eq!(pattern("encodr/*", &names), "did you mean `encoder/*`?");
        assert_eq!(pattern("*/dnese", &names), "did you mean `*/dense`?");
        assert_eq!(pattern("haed", &names), "did you mean `head`?");
        assert_eq!(pattern("*", &names), "");
        assert_eq!(pattern("zebra*", &names), "");
    }
}

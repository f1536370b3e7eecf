//! What published files call a network's arrays: with or without the prefix of a head, the names of
//! TensorFlow's norms, layers that are tied and written twice, and buffers that nothing reads.

use super::family::Family;
use super::net::Net;

/// Buffers of all families: causal masks, rotary frequencies, positions.
const BUFFERS: &[&str] = &[
    "*.attn.bias",
    "*.attn.masked_bias",
    "*rotary_emb.inv_freq",
    "*embeddings.position_ids",
    "*embeddings.token_type_ids",
];

/// Adds what files may call the arrays of the parameters that were written.
pub(super) fn collect(net: &mut Net, family: &Family, prefix: &str, tied: bool) {
    let params: Vec<String> = net.param_names().map(str::to_owned).collect();
    let mut unread: Vec<String> = BUFFERS.iter().map(ToString::to_string).collect();
    let mut aliases = Vec::new();
    let mut held: Vec<(String, Option<String>)> = Vec::new();
    for param in &params {
        let mut names = other_prefixes(param, prefix, family);
        let again = if tied { copies(param, prefix, family) } else { Vec::new() };
        let of_library = again.iter().cloned().chain(renamed(param, family));
        held.extend(of_library.map(|name| (name, Some(param.clone()))));
        names.extend(again);
        let both: Vec<String> =
            std::iter::once(param).chain(&names).filter_map(|name| of_tensorflow(name)).collect();
        names.extend(both);
        names.extend(renamed(param, family));
        if !names.is_empty() {
            aliases.push((param.clone(), names));
        }
    }
    if !tied {
        unread.extend(family.idle.iter().map(ToString::to_string));
    }
    let of_none: &[&str] = if tied { &[] } else { family.idle };
    let bare = if prefix == family.bare_prefix && prefix != family.prefix { family.bare } else { &[] };
    held.extend(of_none.iter().chain(bare).map(|name| ((*name).to_owned(), None)));
    let arrays = net.array_names();
    arrays.held.extend(held);
    arrays.aliases.extend(aliases);
    arrays.unread.extend(unread);
}

/// The names that the same parameter has in files of models with another head.
fn other_prefixes(param: &str, prefix: &str, family: &Family) -> Vec<String> {
    let Some(rest) = param.strip_prefix(prefix) else { return Vec::new() };
    // Where blocks have no prefix, what belongs to a head cannot be told from them, and has no other name.
    let usual = [family.prefix, family.bare_prefix];
    usual.iter().filter(|other| **other != prefix).map(|other| format!("{other}{rest}")).collect()
}

/// What files of other versions of the library call a parameter's array.
fn renamed(param: &str, family: &Family) -> Option<String> {
    let pieces = family.renamed.iter().filter(|(piece, _)| param.contains(piece));
    let other = pieces.fold(param.to_owned(), |name, (piece, other)| name.replace(piece, other));
    (other != param).then_some(other)
}

/// Arrays that hold a tied parameter again.
fn copies(param: &str, prefix: &str, family: &Family) -> Vec<String> {
    let of = |target: &str| match target.strip_prefix('.') {
        Some(rest) => format!("{prefix}{rest}") == param,
        None => target == param,
    };
    family.copies.iter().filter(|(_, target)| of(target)).map(|(array, _)| (*array).to_owned()).collect()
}

/// What TensorFlow calls the factors and summands of a norm.
fn of_tensorflow(name: &str) -> Option<String> {
    let gamma = name.strip_suffix("LayerNorm.weight").map(|start| format!("{start}LayerNorm.gamma"));
    gamma.or_else(|| name.strip_suffix("LayerNorm.bias").map(|start| format!("{start}LayerNorm.beta")))
}

//! B-trees of version 1: names of a group's members, chunks of a dataset.

use super::bytes::{Fields, File};
use super::damaged;
use crate::error::Result;

/// Name and header of every member of a group with this symbol table message.
pub(super) fn symbols(file: &File, table: &[u8]) -> Result<Vec<(String, u64)>> {
    let mut fields = Fields::new(table, file);
    let (tree, heap) = (fields.address()?, fields.address()?);
    let names = local_heap(file, heap)?;
    file.charge(names.len())?;
    let mut members = Vec::new();
    for leaf in leaves(file, tree, 0, file.length_width())? {
        symbol_node(file, leaf.child, &names, &mut members)?;
    }
    Ok(members)
}

/// The names of a group's members, each ended by a zero.
fn local_heap(file: &File, address: u64) -> Result<Vec<u8>> {
    let start = file.bytes(address, 32.min(file.size() as usize))?;
    let mut fields = Fields::new(&start, file);
    if fields.take(4)? != b"HEAP" {
        return Err(damaged(format!("no names at {address}")));
    }
    fields.skip(4)?;
    let size = fields.length()?;
    fields.length()?;
    let data = fields.address()?;
    file.bytes(data, usize::try_from(size).map_err(|_| damaged("a group has too many names"))?)
}

fn symbol_node(file: &File, address: u64, names: &[u8], members: &mut Vec<(String, u64)>) -> Result<()> {
    let start = file.bytes(address, 8)?;
    let mut fields = Fields::new(&start, file);
    if fields.take(4)? != b"SNOD" {
        return Err(damaged(format!("no members at {address}")));
    }
    fields.skip(2)?;
    let count = fields.uint(2)? as usize;
    let entry = 2 * file.address_width() + 24;
    let bytes = file.bytes(address.saturating_add(8), count * entry)?;
    file.charge(8 + bytes.len())?;
    let mut fields = Fields::new(&bytes, file);
    for _ in 0..count {
        let at = fields.address()?;
        let header = fields.address()?;
        fields.skip(24)?;
        let name = usize::try_from(at).ok().and_then(|at| names.get(at..));
        let name = name.and_then(|name| name.split(|&byte| byte == 0).next());
        let name = name.ok_or_else(|| damaged("a name is beyond its heap"))?;
        file.charge(name.len())?;
        members.push((String::from_utf8_lossy(name).into_owned(), header));
    }
    Ok(())
}

/// A child of the lowest level of a tree, and the bytes of the key before it.
pub(super) struct Leaf {
    pub(super) key: Vec<u8>,
    pub(super) child: u64,
}

/// The leaves of a tree, in order. `kind` is 0 for groups, 1 for chunks; `key` is the length of a key.
/// O(nodes), which together are no longer than the file.
pub(super) fn leaves(file: &File, root: u64, kind: u8, key: usize) -> Result<Vec<Leaf>> {
    let mut found = Vec::new();
    if root == u64::MAX {
        return Ok(found);
    }
    let head = 8 + 2 * file.address_width();
    let entry = key + file.address_width();
    let mut left = file.size();
    let mut open = vec![(root, None::<u8>)];
    while let Some((address, above)) = open.pop() {
        let start = file.bytes(address, head)?;
        let mut fields = Fields::new(&start, file);
        if fields.take(4)? != b"TREE" || fields.byte()? != kind {
            return Err(damaged(format!("no tree at {address}")));
        }
        let level = fields.byte()?;
        if above.is_some_and(|above| level >= above) {
            return Err(damaged("a tree's levels do not descend"));
        }
        let used = fields.uint(2)? as usize;
        left = left
            .checked_sub((head + used * entry) as u64)
            .ok_or_else(|| damaged("the nodes of a tree are longer than the file"))?;
        let bytes = file.bytes(address.saturating_add(head as u64), used * entry)?;
        let mut fields = Fields::new(&bytes, file);
        let mut children = Vec::new();
        for _ in 0..used {
            let key = fields.take(key)?.to_vec();
            children.push(Leaf { key, child: fields.address()? });
        }
        match level {
            0 => found.extend(children),
            _ => open.extend(children.into_iter().rev().map(|leaf| (leaf.child, Some(level)))),
        }
    }
    Ok(found)
}

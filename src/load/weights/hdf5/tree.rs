//! B-trees of version 1: names of a group's members, chunks of a dataset.

use super::bytes::{Fields, File};
use super::damaged;
use crate::error::Result;

/// Name and header of every member of a group with this symbol table message.
pub(super) fn symbols(file: &File, table: &[u8]) -> Result<Vec<(String, u64)>> {
    let mut fields = Fields::new(table, file);
    let (tree, heap) = (fields.address()?, fields.address()?);
    let names = local_heap(file, heap)?;
    let mut members = Vec::new();
    for leaf in leaves(file, tree, 0, &mut |fields| fields.length().map(|_| ()))? {
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
    let mut fields = Fields::new(&bytes, file);
    for _ in 0..count {
        let at = fields.address()?;
        let header = fields.address()?;
        fields.skip(24)?;
        let name = usize::try_from(at).ok().and_then(|at| names.get(at..));
        let name = name.and_then(|name| name.split(|&byte| byte == 0).next());
        let name = name.ok_or_else(|| damaged("a name is beyond its heap"))?;
        members.push((String::from_utf8_lossy(name).into_owned(), header));
    }
    Ok(())
}

/// A child of the lowest level of a tree, and the bytes of the key before it.
pub(super) struct Leaf {
    pub(super) key: Vec<u8>,
    pub(super) child: u64,
}

/// The leaves of a tree, in order. `kind` is 0 for groups, 1 for chunks; `key` reads one key.
/// O(nodes), of which there are no more than the file has room for.
pub(super) fn leaves(
    file: &File,
    root: u64,
    kind: u8,
    key: &mut dyn FnMut(&mut Fields<'_>) -> Result<()>,
) -> Result<Vec<Leaf>> {
    let mut found = Vec::new();
    if root == u64::MAX {
        return Ok(found);
    }
    let head = 8 + 2 * file.address_width();
    let mut room = file.size() / head as u64;
    let mut open = vec![(root, None::<u8>)];
    while let Some((address, above)) = open.pop() {
        room = room.checked_sub(1).ok_or_else(|| damaged("a tree has more nodes than the file"))?;
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
        // Keys are no longer than for 32 axes.
        let most = (used + 1) * (8 + 33 * 8 + file.address_width());
        let at = address.saturating_add(head as u64);
        let left = file.size().saturating_sub(at) as usize;
        let bytes = file.bytes(at, most.min(left))?;
        let mut fields = Fields::new(&bytes, file);
        let mut children = Vec::new();
        for _ in 0..used {
            let before = fields.rest();
            key(&mut fields)?;
            let own = before[..before.len() - fields.rest().len()].to_vec();
            children.push(Leaf { key: own, child: fields.address()? });
        }
        match level {
            0 => found.extend(children),
            _ => open.extend(children.into_iter().rev().map(|leaf| (leaf.child, Some(level)))),
        }
    }
    Ok(found)
}

//! Event files of TensorBoard, read by a parser of the test's own: frames, checksums, messages.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use partition::unstable::plan::Plan;
use partition::unstable::report::Events;

/// The fields of a message: number, and a varint's or fixed number's bits or bytes.
#[derive(Debug, Clone, PartialEq)]
enum Wire {
    Number(u64),
    Bytes(Vec<u8>),
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Wire)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                break;
            }
        }
        value
    }
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let mut take = |count: usize| {
            let (taken, rest) = bytes.split_at(count);
            bytes = rest;
            taken.to_vec()
        };
        let number = |taken: Vec<u8>| taken.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
        let value = match key & 7 {
            0 => Wire::Number(varint(&mut bytes)),
            1 => Wire::Number(number(take(8))),
            5 => Wire::Number(number(take(4))),
            2 => {
                let count = varint(&mut bytes) as usize;
                let (taken, rest) = bytes.split_at(count);
                bytes = rest;
                Wire::Bytes(taken.to_vec())
            }
            other => panic!("wire type {other}"),
        };
        all.push((key >> 3, value));
    }
    all
}

fn bytes(fields: &[(u64, Wire)], number: u64) -> Vec<Vec<u8>> {
    let own = fields.iter().filter(|(one, _)| *one == number);
    own.map(|(_, value)| if let Wire::Bytes(bytes) = value { bytes.clone() } else { panic!("no bytes") })
        .collect()
}

fn text(fields: &[(u64, Wire)], number: u64) -> String {
    String::from_utf8(bytes(fields, number).remove(0)).unwrap()
}

fn number(fields: &[(u64, Wire)], number: u64) -> u64 {
    let found = fields.iter().find(|(one, _)| *one == number).unwrap();
    if let Wire::Number(value) = found.1 { value } else { panic!("no number") }
}

/// CRC-32C, bit by bit.
fn sum(bytes: &[u8]) -> u32 {
    let mut sum = !0u32;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
        }
    }
    (!sum).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The messages of an event file; panics where a checksum is wrong.
fn events(mut bytes: &[u8]) -> Vec<Vec<(u64, Wire)>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(sum(&bytes[..8]).to_le_bytes(), bytes[8..12]);
        let event = &bytes[12..12 + length];
        assert_eq!(sum(event).to_le_bytes(), bytes[12 + length..16 + length]);
        all.push(fields(event));
        bytes = &bytes[16 + length..];
    }
    all
}

/// A network over three devices.
fn small_plan(dir: &Path) -> Plan {
    let path = dir.join("plan.json");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/weights/net.json");
    let done = Command::new(env!("CARGO_BIN_EXE_partition"))
        .arg(model)
        .args(["-d", "3xcpu", "--use", "3", "--batch", "2", "-q", "-o"])
        .arg(&path)
        .status();
    assert!(done.unwrap().success());
    Plan::load(&path).unwrap()
}

#[test]
fn scalars_and_the_plan_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let plan = small_plan(dir.path());
    let mut writer = Events::create(dir.path()).unwrap();
    writer.graph(&plan).unwrap();
    writer.scalars(7, &[("loss", 0.5), ("val/accuracy", 1.0)]).unwrap();
    writer.scalars(1 << 40, &[("loss", f64::NAN)]).unwrap();
    let again = Events::create(dir.path()).unwrap();
    assert_ne!(writer.path(), again.path());

    let all = events(&std::fs::read(writer.path()).unwrap());
    assert_eq!(all.len(), 4);
    assert_eq!(text(&all[0], 3), "brain.Event:2");
    assert!(f64::from_bits(number(&all[0], 1)) > 1.6e9);
    assert_eq!((number(&all[2], 2), number(&all[3], 2)), (7, 1 << 40));
    let values: Vec<(String, f32)> = bytes(&fields(&bytes(&all[2], 5)[0]), 1)
        .iter()
        .map(|value| fields(value))
        .map(|value| (text(&value, 1), f32::from_bits(number(&value, 2) as u32)))
        .collect();
    assert_eq!(values, [("loss".to_owned(), 0.5), ("val/accuracy".to_owned(), 1.0)]);

    let graph = fields(&bytes(&all[1], 4)[0]);
    let nodes: Vec<_> = bytes(&graph, 1).iter().map(|node| fields(node)).collect();
    let launches =
        plan.steps.iter().filter(|step| matches!(step.action, partition::unstable::plan::Action::Launch(_)));
    assert_eq!(nodes.len(), launches.count());
    let devices: BTreeMap<String, String> = nodes.iter().map(|node| (text(node, 1), text(node, 4))).collect();
    assert_eq!(devices.len(), nodes.len(), "names are unique");
    let used: std::collections::BTreeSet<&String> = devices.values().collect();
    assert!(used.len() > 1, "{used:?}");
    let inputs: Vec<String> =
        nodes.iter().flat_map(|node| bytes(node, 3)).map(|name| String::from_utf8(name).unwrap()).collect();
    assert!(inputs.len() >= nodes.len() - 1);
    assert!(inputs.iter().all(|input| devices.contains_key(input)));
}

/// Opening and closing tags of a page, in order; attributes left out.
fn tags(page: &str) -> Vec<(bool, String)> {
    let mut tags = Vec::new();
    for part in page.split('<').skip(1) {
        let (tag, _) = part.split_once('>').expect("a tag ends");
        let closes = tag.starts_with('/');
        let name: String =
            tag.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
        if !tag.ends_with('/') && !matches!(name.as_str(), "" | "meta" | "input") {
            tags.push((closes, name));
        }
    }
    tags
}

#[test]
fn the_report_of_a_plan_is_one_whole_page() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/weights/net.json");
    let out = Command::new(env!("CARGO_BIN_EXE_partition"))
        .arg(model)
        .args(["-d", "3xcpu", "--use", "3", "--batch", "2", "--emit", "html"])
        .output()
        .unwrap();
    assert!(out.status.success());
    let page = String::from_utf8(out.stdout).unwrap();
    let body = page.split("<script>").next().unwrap();
    let mut open = Vec::new();
    for (closes, name) in tags(body) {
        match closes {
            false => open.push(name),
            true => assert_eq!(open.pop(), Some(name)),
        }
    }
    assert_eq!(open, ["html", "body"], "what the script is in");
    for expected in
        ["cpu0", "cpu1", "cpu2", "Timeline", "Memory over the step", "<td>p_a</td>", "<rect", "<path"]
    {
        assert!(page.contains(expected), "{expected}");
    }
    assert!(!page.contains("http"), "it needs nothing from elsewhere");
}

//! Input of training: the same records in the same order however they are read, in every format; what
//! is malformed is told with its place, or skipped and counted; no bytes make a reader panic.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use partition::unstable::data::{
    Batch, Field, Last, OnBad, Options, Order, Part, Position, Role, Source, crc32c, masked_crc32c,
};
use partition::unstable::error::Result;
use partition::unstable::ir::{DType, Tensor};
use partition::unstable::load::weights::write_npz;
use partition::unstable::units::Bytes;
use proptest::prelude::*;

fn batches(spec: &str, options: &Options) -> Result<Vec<Batch>> {
    Source::open(spec, &[])?.batches(options)?.collect()
}

/// All numbers of the first input, in the order of the records.
fn inputs(spec: &str, options: &Options) -> Vec<f64> {
    let all = batches(spec, options).unwrap_or_else(|error| panic!("{spec}: {error}"));
    all.iter().flat_map(|batch| batch.inputs[0].1.to_f64()).collect()
}

fn targets(spec: &str) -> Vec<f64> {
    let all = batches(spec, &Options::default()).unwrap_or_else(|error| panic!("{spec}: {error}"));
    all.iter().flat_map(|batch| batch.targets[0].1.to_f64()).collect()
}

/// A file of this folder as the start of a specification.
fn file(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

/// The frame of a TFRecord message.
fn frame(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let mut out = length.to_vec();
    out.extend(masked_crc32c(&length).to_le_bytes());
    out.extend(message);
    out.extend(masked_crc32c(message).to_le_bytes());
    out
}

/// A protobuf field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length > 127 {
        out.push(length as u8 | 128);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(bytes);
    out
}

/// A `tf.train.Example` of floats `x` and one integer `label`, encoded by hand.
fn example(x: &[f32], label: u8) -> Vec<u8> {
    let floats: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
    let entry = |key: &str, list: u8, packed: &[u8]| {
        field(1, &[field(1, key.as_bytes()), field(2, &field(list, &field(1, packed)))].concat())
    };
    field(1, &[entry("x", 2, &floats), entry("label", 3, &[label])].concat())
}

/// The same records, in each format, as specifications.
fn formats(dir: &Path, rows: &[([f32; 3], u8)]) -> BTreeMap<&'static str, String> {
    let csv: String = rows.iter().map(|(x, y)| format!("{},{},{},{y}\n", x[0], x[1], x[2])).collect();
    let records: Vec<u8> = rows.iter().flat_map(|(x, y)| frame(&example(x, *y))).collect();
    let raw: Vec<u8> = rows
        .iter()
        .flat_map(|(x, y)| x.iter().flat_map(|value| value.to_le_bytes()).chain([*y]).collect::<Vec<u8>>())
        .collect();
    let x: Vec<f32> = rows.iter().flat_map(|(x, _)| *x).collect();
    let y: Vec<u8> = rows.iter().map(|(_, y)| *y).collect();
    let count = rows.len() as u64;
    let arrays = vec![
        ("x_train".to_owned(), Tensor::from_f32(vec![count, 3], &x).unwrap()),
        ("y_train".to_owned(), Tensor::new(DType::U8, vec![count], y).unwrap()),
    ];
    write_npz(&dir.join("a.npz"), &arrays).unwrap();
    BTreeMap::from([
        ("csv", file(dir, "a.csv", format!("p,q,r,label\n{csv}"))),
        ("gzip", {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            std::io::Write::write_all(&mut out, format!("p,q,r,label\n{csv}").as_bytes()).unwrap();
            file(dir, "b.csv.gz", out.finish().unwrap())
        }),
        ("npz", dir.join("a.npz").display().to_string()),
        ("tfrecord", file(dir, "a.tfrecord", records)),
        ("raw", file(dir, "a.bin", raw) + ":record=x:f32[3]+label:u8"),
    ])
}

fn rows(count: usize) -> Vec<([f32; 3], u8)> {
    (0..count).map(|row| ([row as f32, row as f32 / 4.0, -1.5], (row % 7) as u8)).collect()
}

#[test]
fn every_format_gives_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    let rows = rows(100);
    let x: Vec<f64> = rows.iter().flat_map(|(x, _)| x.map(f64::from)).collect();
    let y: Vec<f64> = rows.iter().map(|(_, y)| f64::from(*y)).collect();
    for (format, spec) in formats(dir.path(), &rows) {
        assert_eq!(inputs(&spec, &Options::default()), x, "{format}");
        assert_eq!(targets(&spec), y, "{format}");
        let wanted = [
            Field::new("image", Role::Input, DType::F32, &[3, 1]),
            Field::new("class", Role::Target, DType::I64, &[]),
        ];
        let source = Source::open(&spec, &wanted).unwrap();
        let batch = source.batches(&Options { batch: 10, ..Options::default() }).unwrap().next();
        let batch = batch.unwrap().unwrap();
        assert_eq!((batch.inputs[0].0.as_str(), batch.inputs[0].1.dims()), ("image", &[10, 3, 1][..]));
        assert_eq!((batch.targets[0].1.dtype(), batch.targets[0].1.dims()), (DType::I64, &[10][..]));
    }
}

#[test]
fn the_order_is_the_same_for_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    for (format, spec) in formats(dir.path(), &rows(3000)) {
        let order = Order::Shuffle { seed: 3, window: Some(500) };
        let read = |threads, prefetch| {
            inputs(
                &spec,
                &Options { threads, prefetch, order, batch: 7, epochs: Some(2), ..Options::default() },
            )
        };
        let one = read(1, 1);
        assert_eq!(one.len(), 2 * 3 * 3000);
        assert_ne!(one[..9000], one[9000..], "{format}: each epoch has an order of its own");
        for (threads, prefetch) in [(2, 1), (5, 3), (16, 8)] {
            assert!(read(threads, prefetch) == one, "{format}: {threads} threads give another order");
        }
        let other = Order::Shuffle { seed: 4, window: Some(500) };
        assert_ne!(inputs(&spec, &Options { order: other, ..Options::default() })[..300], one[..300]);
    }
}

#[test]
fn a_reader_resumes_at_any_batch() {
    let dir = tempfile::tempdir().unwrap();
    let spec = &formats(dir.path(), &rows(50))["csv"];
    let order = Order::Shuffle { seed: 1, window: None };
    let options = Options { batch: 8, order, epochs: Some(3), ..Options::default() };
    let all = batches(spec, &options).unwrap();
    assert_eq!(all.len(), 3 * 7);
    assert_eq!(all.iter().filter(|batch| batch.ends_epoch).count(), 3);
    for (done, batch) in all.iter().enumerate() {
        let rest = batches(spec, &Options { start: batch.next, ..options.clone() }).unwrap();
        assert_eq!(rest, all[done + 1..]);
    }
    assert_eq!(all[7].at, Position { epoch: 1, batch: 0 });
}

#[test]
fn validation_and_training_share_the_records() {
    let dir = tempfile::tempdir().unwrap();
    let spec = &formats(dir.path(), &rows(1000))["npz"];
    for validation in [0.2, 0.1, 0.333] {
        let take = |part| {
            let options = Options { part, validation, ..Options::default() };
            inputs(spec, &options).chunks(3).map(|record| record[0] as u64).collect::<Vec<u64>>()
        };
        let (train, held) = (take(Part::Train), take(Part::Validation));
        assert_eq!(held.len(), (1000.0 * validation) as usize);
        let mut all = [train, held].concat();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<u64>>());
    }
}

#[test]
fn the_last_batch_is_kept_dropped_or_filled() {
    let spec = "ones:records=10,shape.input=2";
    let sizes = |last| {
        let all = batches(spec, &Options { batch: 4, last, ..Options::default() }).unwrap();
        all.iter().map(|batch| (batch.samples, batch.inputs[0].1.dims()[0])).collect::<Vec<_>>()
    };
    assert_eq!(sizes(Last::Keep), [(4, 4), (4, 4), (2, 2)]);
    assert_eq!(sizes(Last::Drop), [(4, 4), (4, 4)]);
    assert_eq!(sizes(Last::Fill), [(4, 4), (4, 4), (2, 4)]);
    let none = batches(spec, &Options { batch: 11, last: Last::Drop, ..Options::default() });
    assert!(none.unwrap_err().to_string().contains("10 records do not fill a batch of 11"));
}

#[test]
fn records_of_different_lengths_are_padded_to_the_longest_of_their_batch() {
    let dir = tempfile::tempdir().unwrap();
    let name = file(dir.path(), "t.csv", "tokens,label\n1 2 3,0\n4,1\n5 6,0\n7 8,1\n");
    let spec = format!("{name}:input=tokens,list.input=space,pad.input=-1,type.input=i64");
    let all = batches(&spec, &Options { batch: 2, ..Options::default() }).unwrap();
    assert_eq!(all[0].inputs[0].1.dims(), [2, 3]);
    assert_eq!(all[0].inputs[0].1.to_i64().unwrap(), [1, 2, 3, 4, -1, -1]);
    assert_eq!(all[1].inputs[0].1.to_i64().unwrap(), [5, 6, 7, 8]);
    // A network of fixed sizes: padded to those, and what is longer is malformed.
    let wanted = |length| {
        [
            Field::new("tokens", Role::Input, DType::I64, &[length]),
            Field::new("label", Role::Target, DType::F32, &[1]),
        ]
    };
    let spec = format!("{name}:list.tokens=space,pad.tokens=9");
    let source = Source::open(&spec, &wanted(4)).unwrap();
    let batch = source.batches(&Options { batch: 4, ..Options::default() }).unwrap().next().unwrap().unwrap();
    assert_eq!(batch.inputs[0].1.to_i64().unwrap()[..8], [1, 2, 3, 9, 4, 9, 9, 9]);
    let source = Source::open(&spec, &wanted(2)).unwrap();
    let error = source.batches(&Options::default()).unwrap().next().unwrap().unwrap_err();
    assert!(error.to_string().contains("line 2 (byte 13): tokens: 3 elements, not 2"), "{error}");
}

#[test]
fn a_target_is_known_by_the_name_of_its_output_too() {
    let dir = tempfile::tempdir().unwrap();
    let name = file(dir.path(), "t.csv", "a,b,c\n1,2,3\n4,5,6\n");
    let wanted = [
        Field::new("x", Role::Input, DType::F32, &[1]),
        Field::new("target_mean", Role::Target, DType::F32, &[1]),
        Field::new("target_spread", Role::Target, DType::F32, &[1]),
    ];
    for spec in [
        format!("{name}:input=a,target.mean=c,target.spread=b,scale.mean=2"),
        format!("{name}:input=a,target.target_mean=c,target.target_spread=b,scale.target_mean=2"),
    ] {
        let source = Source::open(&spec, &wanted).unwrap();
        let batch =
            source.batches(&Options { batch: 2, ..Options::default() }).unwrap().next().unwrap().unwrap();
        let values: Vec<Vec<f64>> = batch.targets.iter().map(|(_, values)| values.to_f64()).collect();
        assert_eq!(values, [[6.0, 12.0], [2.0, 5.0]], "{spec}");
    }
    let error = Source::open(&format!("{name}:input=a,target.other=c"), &wanted).unwrap_err().to_string();
    assert!(error.contains("the network has no target other"), "{error}");
}

#[test]
fn a_malformed_record_is_told_with_its_place_or_skipped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let csv = "a,b,y\n1,2,0\n\n1,\"x\ny\",0\n3,4,1\n5,6\n7,8,0\n";
    let csv = file(dir.path(), "bad.csv", csv);
    let mut records = frame(&example(&[1.0], 0));
    let second = records.len();
    records.extend(frame(&example(&[2.0], 1)));
    let third = records.len();
    records.extend(frame(&example(&[3.0], 0)));
    records[second + 15] ^= 1;
    let tfrecord = file(dir.path(), "bad.tfrecord", &records);
    let mut cut = records.clone();
    cut[third] ^= 1;
    let cut = file(dir.path(), "cut.tfrecord", &cut);
    let raw = file(dir.path(), "bad.bin", [1, 0, 2, 1, 3]) + ":record=x:u8+y:u8";
    let tf_byte = format!("byte {second} (record 1): the checksum of its data is wrong");
    let cases = [
        (&csv, "line 4 (byte 13): column b: \"x\\ny\" is no number", 2, vec![1., 2., 3., 4., 7., 8.]),
        (&tfrecord, tf_byte.as_str(), 1, vec![1., 3.]),
        (&cut, tf_byte.as_str(), 2, vec![1.]),
        (&raw, "byte 4: the last record has 1 bytes of 2", 1, vec![1., 2.]),
    ];
    for (spec, told, skipped, rest) in cases {
        let error = batches(spec, &Options::default()).unwrap_err().to_string();
        assert!(error.contains(told), "{error}\n{told}");
        let source = Source::open(spec, &[]).unwrap();
        let options = Options { on_bad: OnBad::Skip, epochs: Some(2), ..Options::default() };
        let mut reading = source.batches(&options).unwrap();
        let first = reading.next().unwrap().unwrap();
        assert_eq!(first.inputs[0].1.to_f64(), rest, "{spec}");
        assert_eq!(reading.by_ref().map(Result::unwrap).count(), 1);
        assert_eq!(reading.stats().skipped, 2 * skipped, "{spec}");
        assert!(reading.stats().faults[0].contains(told.split(':').next().unwrap()));
    }
}

#[test]
fn names_and_ranges_choose_columns() {
    let dir = tempfile::tempdir().unwrap();
    let name = file(dir.path(), "iris.csv", "a,b,c,kind\n1,2,3,dog\n4,5,6,cat\n");
    let spec = format!("{name}:input=a..b,target=kind,classes.target=cat+dog,onehot.target=2,scale.input=2");
    assert_eq!(inputs(&spec, &Options::default()), [2., 4., 8., 10.]);
    assert_eq!(targets(&spec), [0., 1., 1., 0.]);
    let fault = |options: &str| Source::open(&format!("{name}:{options}"), &[]).unwrap_err().to_string();
    assert!(fault("input=d").contains("there is no column d (there are a, b, c, kind)"));
    assert!(fault("type.inptu=f32").contains("there is no such input or target"));
    let wanted = [Field::new("x", Role::Input, DType::F32, &[5])];
    let error = Source::open(&format!("{name}:input=a..c"), &wanted).unwrap_err().to_string();
    assert!(error.contains("a record has sizes [3], the network takes [5]"), "{error}");
    let error = Source::open("nowhere.csv", &[]).unwrap_err().to_string();
    assert!(error.starts_with("nowhere.csv: "), "{error}");
}

#[test]
fn random_numbers_follow_from_seed_field_and_record() {
    let spec = "random:records=4,seed=7,shape.input=3,type.target=i64,below.target=10";
    let read = |batch| inputs(spec, &Options { batch, ..Options::default() });
    let all = read(4);
    assert_eq!(all, read(1));
    assert!(all.iter().all(|value| (0.0..1.0).contains(value)));
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    // The type that most networks take is made by a way of its own: the same numbers, rounded.
    let wide = inputs(&format!("{spec},type.input=f64"), &Options { batch: 4, ..Options::default() });
    assert_eq!(all, wide.iter().map(|&value| f64::from(value as f32)).collect::<Vec<_>>());
}

#[test]
fn a_slow_consumer_is_never_kept_waiting_and_memory_stays_bounded() {
    let source = Source::open("random:records=2000,shape.input=50", &[]).unwrap();
    let options = Options { batch: 100, prefetch: 2, memory: Bytes(1 << 20), ..Options::default() };
    let mut reading = source.batches(&options).unwrap();
    for batch in &mut reading {
        assert_eq!(batch.unwrap().samples, 100);
        // Far longer than making a batch takes.
        std::thread::sleep(std::time::Duration::from_millis(40));
    }
    let stats = reading.stats();
    assert_eq!((stats.batches, stats.samples), (20, 2000));
    // A machine that is busy with other tests may hold it up now and then.
    assert!(stats.waits <= 5, "{}", stats.line());
}

#[test]
fn a_pipeline_that_is_dropped_ends_its_threads() {
    let source = Source::open("zeros:records=1000000000000,shape.input=10", &[]).unwrap();
    let mut reading = source.batches(&Options { epochs: None, ..Options::default() }).unwrap();
    assert!(reading.next().unwrap().is_ok());
    drop(reading);
}

#[test]
fn checksums_of_records_are_masked_as_their_readers_expect() {
    // Made by hand from the definition: rotate right by 15, add a constant.
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(masked_crc32c(b"123456789"), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn damaged_files_never_panic(
        which in 0usize..5,
        at in 0.0..1.0f64,
        cut in any::<bool>(),
        byte in any::<u8>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let specs = formats(dir.path(), &rows(12));
        let spec = specs.values().nth(which).unwrap();
        let path = spec.split(':').next().unwrap();
        let mut bytes = fs::read(path).unwrap();
        let at = (at * bytes.len() as f64) as usize;
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        fs::write(path, bytes).unwrap();
        for on_bad in [OnBad::Fail, OnBad::Skip] {
            if let Ok(all) = batches(spec, &Options { on_bad, ..Options::default() }) {
                prop_assert!(all.iter().map(|batch| batch.samples).sum::<usize>() <= 13);
            }
        }
    }
}

/// Rates of reading alone: `cargo test --release --test suite data::rates -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement: cargo test --release --test suite data::rates -- --ignored --nocapture"]
fn rates() {
    let dir = tempfile::tempdir().unwrap();
    let made = "random:records=20000,shape.input=784,below.target=10,type.target=i64";
    let options = Options { batch: 1000, ..Options::default() };
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for batch in batches(made, &options).unwrap() {
        x.extend(batch.inputs[0].1.to_f32().unwrap());
        y.extend(batch.targets[0].1.to_i64().unwrap());
    }
    let records: Vec<(&[f32], i64)> = x.chunks(784).zip(y.iter().copied()).collect();
    let csv: String = records
        .iter()
        .map(|(x, y)| x.iter().map(|value| format!("{value:.4},")).collect::<String>() + &format!("{y}\n"))
        .collect();
    let tfrecord: Vec<u8> = records.iter().flat_map(|(x, y)| frame(&example(x, *y as u8))).collect();
    let raw: Vec<u8> = records
        .iter()
        .flat_map(|(x, y)| {
            x.iter().flat_map(|value| value.to_le_bytes()).chain([*y as u8]).collect::<Vec<u8>>()
        })
        .collect();
    let arrays = vec![
        ("x".to_owned(), Tensor::from_f32(vec![20000, 784], &x).unwrap()),
        ("y".to_owned(), Tensor::from_i64(vec![20000], &y).unwrap()),
    ];
    write_npz(&dir.path().join("r.npz"), &arrays).unwrap();
    let specs = [
        ("csv", file(dir.path(), "r.csv", csv)),
        ("npz", dir.path().join("r.npz").display().to_string()),
        ("tfrecord", file(dir.path(), "r.tfrecord", tfrecord)),
        ("raw", file(dir.path(), "r.bin", raw) + ":record=x:f32[784]+label:u8"),
        ("made up", made.to_owned()),
    ];
    for (name, spec) in &specs {
        let path = Path::new(spec.split(':').next().unwrap_or_default());
        let bytes = fs::metadata(path).map_or(20000 * 784 * 4, |there| there.len());
        for (order, how) in
            [(Order::Fifo, "in order"), (Order::Shuffle { seed: 1, window: None }, "shuffled")]
        {
            let source = Source::open(spec, &[]).unwrap();
            let start = std::time::Instant::now();
            let options = Options { batch: 128, order, ..Options::default() };
            let count: usize = source.batches(&options).unwrap().map(|batch| batch.unwrap().samples).sum();
            let seconds = start.elapsed().as_secs_f64();
            let (rate, mega) = (count as f64 / seconds, bytes as f64 / seconds / 1e6);
            println!("{name} {how}: {rate:.0} records/s, {mega:.0} MB/s");
        }
    }
}

/// Records of a text that overlap, begin apart from one another, and are read in several chunks.
#[test]
fn raw_records_are_windows_of_a_text() {
    let dir = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    let path = file(dir.path(), "a.txt", bytes.clone());
    for (window, stride) in [(8usize, 3usize), (8, 8), (8, 9), (8, 20), (7, 1000), (1000, 150)] {
        let spec = format!(
            "{path}:format=raw,record=input:u8[{window}]+target:u8[{window}]@1,stride={stride},type.input=f32,type.target=f32"
        );
        let starts = (0..).map(|row| row * stride).take_while(|start| start + window < bytes.len());
        let starts: Vec<usize> = starts.take(5000).collect();
        let wanted = |from: usize| -> Vec<f64> {
            starts.iter().flat_map(|at| &bytes[at + from..][..window]).map(|byte| f64::from(*byte)).collect()
        };
        let count = starts.len() * window;
        assert_eq!(inputs(&spec, &Options::default())[..count], wanted(0), "{window} every {stride}");
        assert_eq!(targets(&spec)[..count], wanted(1), "{window} every {stride}");
    }
    // A file without a whole record has none.
    let short =
        file(dir.path(), "b.txt", [1u8, 2, 3]) + ":format=raw,record=input:u8[3]+target:u8[3]@1,stride=1";
    assert_eq!(Source::open(&short, &[]).unwrap().records().unwrap(), Some(0));
}

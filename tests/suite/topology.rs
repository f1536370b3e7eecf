//! Device specs and files: what they become, and how bad ones are refused.

use std::fmt::Write as _;

use partition::unstable::error::Error;
use partition::unstable::topology::{
    Communication, Contention, Description, DeviceGroup, LinkGroup, MAX_PHYSICALS, PRESETS, Role, Route,
    Topology,
};
use partition::unstable::units::{Bytes, Nanos, Rate};
use proptest::prelude::*;

fn snapshot(name: &str, text: &str) {
    insta::with_settings!({
        snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots"),
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, { insta::assert_snapshot!(name, text) });
}

fn spec(text: &str) -> Topology {
    Topology::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The error in full, as a terminal would show it.
fn refusal(result: Result<Topology, Error>) -> String {
    let error = result.expect_err("a refusal");
    let mut text = format!("{error}\n");
    for line in error.details() {
        let _ = writeln!(text, "    {line}");
    }
    text
}

/// `[channel channel, bandwidth, latency] then [...] via name`.
fn way(topology: &Topology, route: &Route) -> String {
    let hops = route.hops.iter().map(|hop| {
        let names: Vec<&str> =
            hop.channels.iter().map(|channel| topology.channels[channel.index()].name.as_str()).collect();
        format!("[{}, {}, {}]", names.join(" "), hop.bandwidth, hop.latency)
    });
    let hops = hops.collect::<Vec<_>>().join(" then ");
    match &route.via {
        Some(via) => format!("{hops} via {via}"),
        None => hops,
    }
}

/// The summary, and the route between each two physical devices.
pub(crate) fn full(topology: &Topology) -> String {
    let mut text = topology.summary().join("\n");
    text.push('\n');
    let count = topology.physicals.len();
    for (index, route) in topology.routes.iter().enumerate().filter(|(_, route)| !route.hops.is_empty()) {
        let (from, to) = (&topology.physicals[index / count].name, &topology.physicals[index % count].name);
        let _ = writeln!(text, "  {from} -> {to}: {}", way(topology, route));
    }
    text
}

fn route_of(topology: &Topology, from: &str, to: &str) -> String {
    let [from, to] = [from, to].map(|name| topology.find(name).unwrap_or_else(|| panic!("no device {name}")));
    way(topology, topology.route(from, to))
}

/// A device file in full, or what is wrong with it.
pub(crate) fn loaded(name: &str, text: &str) -> String {
    load(name, text).map_or_else(|refusal| refusal, |topology| full(&topology))
}

/// Writes `text` into a file of this name and loads it; paths in errors are made the same everywhere.
fn load(name: &str, text: &str) -> Result<Topology, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let strip = |text: String| text.replace(&format!("{}/", folder.path().display()), "");
    Topology::load(path).map_err(|error| strip(refusal(Err(error))))
}

const FILE: &str = r#"
[[device]]
kind = "cpu"
memory = "64GB"

[[device]]
name = "fast"
kind = "a100-80g"
count = 2
communication = "added"
link = "none"

[[device]]
kind = "l4-24g"
slices = ["10GB", "2x1GiB"]

[[device]]
name = "board"
kind = "npu"
memory = 8000000000
flops = "10TFLOP/s"
bandwidth = "100GB/s"
host = "other"

[[link]]
between = ["fast*", "cuda2"]
bandwidth = "10GB/s"
latency = "7us"
shared = "switch"

[[link]]
between = ["fast0", "fast1"]
bandwidth = "12GB/s"
latency = "0ns"
contention = "none"
via = "cpu0"

[[link]]
between = ["h0", "other"]
bandwidth = "400Gbit/s"
"#;

#[test]
fn files() {
    let topology = load("devices.toml", FILE).unwrap();
    let text = format!("{}\n{}", full(&topology), topology.description().to_toml());
    snapshot("topology_file", &text);
    let json = serde_json::to_string(&topology).unwrap();
    assert_eq!(load("devices.json", &json).unwrap(), topology);
    assert_eq!(load("devices", &json).unwrap(), topology);
    assert_eq!(load("again.toml", &topology.description().to_toml()).unwrap(), topology);
    let sized =
        |memory: &str| load("sized.toml", &format!("[[device]]\nkind = \"cpu\"\nmemory = {memory}\n"));
    assert_eq!(sized("1.5e9").unwrap(), sized("\"1.5GB\"").unwrap());
}

/// The examples of the manual are read, and are what it says.
#[test]
fn the_manual_s_examples() {
    let manual = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/devices.md")).unwrap();
    let specs: Vec<&str> = manual
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(spec, _)| spec)
        .collect();
    let specs: Vec<&str> = specs.into_iter().filter(|text| text.contains(['x', '['])).collect();
    let sizes: Vec<usize> = specs.iter().map(|text| spec(text).len()).collect();
    assert_eq!(sizes, [4, 13, 12, 4, 16]);
    let (_, file) = manual.split_once("```toml\n").unwrap();
    let topology = load("devices.toml", file.split_once("```").unwrap().0).unwrap();
    assert_eq!(topology.len(), 8);
    assert_eq!(
        route_of(&topology, "cuda0.0", "cuda1.1"),
        "[cuda0->cpu0, 12 GB/s, 5 us] then [cpu0->cuda1, 12 GB/s, 5 us] via cpu0"
    );
    assert_eq!(route_of(&topology, "board", "cpu0"), "[bus0, 4 GB/s, 3 us]");
}

#[test]
fn files_that_nest_too_deep_are_refused() {
    let deep = "[".repeat(100_000);
    assert!(loaded("devices.toml", &format!("device = {deep}")).starts_with("devices.toml"));
    assert!(loaded("devices.json", &deep).starts_with("devices.json"));
}

#[test]
fn a_file_that_is_absent_or_no_text_is_an_error() {
    for path in ["absent.toml", "absent.json"] {
        assert!(matches!(Topology::load(path), Err(Error::Io { .. })));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("binary.toml");
    std::fs::write(&path, [0xff, 0xfe, 0]).unwrap();
    assert!(matches!(Topology::load(path.to_str().unwrap()), Err(Error::Spec(_))));
    assert!(Topology::load(folder.path().to_str().unwrap()).is_err());
}

#[test]
fn what_no_file_is_named_is_a_spec() {
    assert_eq!(Topology::load("cpu[3x1MB]").unwrap(), spec("cpu[3x1MB]"));
}

#[test]
fn roles_follow_what_else_there_is() {
    let role = |text: &str, name: &str| {
        let topology = spec(text);
        topology.device(topology.find(name).unwrap()).role
    };
    assert_eq!(role("cpu", "cpu0"), Role::Compute);
    assert_eq!(role("cpu+a100-80g", "cpu0"), Role::Host);
    assert_eq!(role("cpu+a100-80g", "cuda0"), Role::Compute);
    assert_eq!(role("cpu:use=compute+a100-80g", "cpu0"), Role::Compute);
    assert_eq!(role("cpu+cpu:use=host", "cpu1"), Role::Host);
}

#[test]
fn what_is_given_replaces_a_presets_memory() {
    let topology = spec("8xa100-80g:memory=1PB");
    assert!(topology.devices.iter().all(|device| device.memory == Bytes(1_000_000_000_000_000)));
    assert_eq!(topology.physicals[0].memory, Some(Bytes(1_000_000_000_000_000)));
    assert_eq!(spec("a100-80g[2x60GB]:memory=120GB").len(), 2);
    assert!(Topology::parse("a100-80g[2x60GB]").is_err());
}

#[test]
fn a_plans_topology_may_have_keys_of_a_later_version() {
    let json = r#"{"device":[{"kind":"a100-80g","count":2,"colour":"green"}],"rack":{"height":2},
        "link":[{"between":["cuda0","cuda1"],"bandwidth":"50GB/s","lanes":4}]}"#;
    let topology: Topology = serde_json::from_str(json).unwrap();
    assert_eq!((topology.len(), topology.description().links.len()), (2, 1));
    let error = Description::from_json(json).unwrap_err().to_string();
    assert!(error.contains("unknown key `colour`"), "{error}");
    let wrong = json.replace("50GB/s", "fast");
    assert!(serde_json::from_str::<Topology>(&wrong).is_err());
}

#[test]
fn slices_share_what_their_device_has() {
    let topology = spec("2xa100-80g[2x1GB]:link=100GB/s,latency=5us");
    let id = |name: &str| topology.find(name).unwrap();
    assert_eq!(route_of(&topology, "cuda0.0", "cuda0.1"), "[cuda0, 1.01 TB/s, 4 us]");
    assert_eq!(route_of(&topology, "cuda0.0", "cuda1.1"), "[cuda0->cuda1, 100 GB/s, 5 us]");
    let same = topology.route(id("cuda0.0"), id("cuda1.1")) == topology.route(id("cuda0.1"), id("cuda1.0"));
    assert!(same, "slices share their device's links");
    assert_eq!(topology.copy_time(id("cuda0.0"), id("cuda1.0"), Bytes(100_000)), Nanos(6_000));
    assert_eq!(topology.copy_time(id("cuda0.0"), id("cuda0.0"), Bytes(100_000)), Nanos::ZERO);
    assert_eq!(topology.physical(id("cuda0.0")).memory, Some(Bytes(80_000_000_000)));
}

/// What meets in a switch, or goes over the same few links, is sent and received at one rate to all.
#[test]
fn devices_send_and_receive_to_all_others_at_once() {
    let topology = spec("4xh100-80g");
    assert_eq!(route_of(&topology, "cuda0", "cuda1"), "[cuda0->peers peers->cuda1, 450 GB/s, 3 us]");
    assert_eq!(route_of(&topology, "cuda0", "cuda2"), "[cuda0->peers peers->cuda2, 450 GB/s, 3 us]");
    let topology = spec("4xmi300x-192g");
    assert_eq!(route_of(&topology, "cuda0", "cuda1"), "[cuda0->cuda1, 64 GB/s, 3 us]", "a link for each two");
    let topology = spec("4xh100-80g:link=100GB/s");
    assert_eq!(route_of(&topology, "cuda0", "cuda1"), "[cuda0->cuda1, 100 GB/s, 3 us]", "as stated");
    let group =
        |keys: &str| load("ports.toml", &format!("[[device]]\nkind = \"h100-80g\"\ncount = 4\n{keys}"));
    let stated = group("link = \"100GB/s\"\nport = \"150GB/s\"").unwrap();
    let way = "[cuda0->peers peers->cuda1 cuda0->cuda1, 100 GB/s, 3 us]";
    assert_eq!(route_of(&stated, "cuda0", "cuda1"), way, "the link, and what all links of a device share");
    let free = group("port = \"none\"").unwrap();
    assert_eq!(route_of(&free, "cuda0", "cuda1"), "[cuda0->cuda1, 450 GB/s, 3 us]");
    assert_reads_back(&stated);
    assert_reads_back(&free);
    let refused = group("link = \"none\"\nport = \"150GB/s\"").unwrap_err();
    assert!(refused.contains("port: a port for links that there are not"), "{refused}");
}

#[test]
fn contention_none_frees_all_channels_of_a_group() {
    let topology = spec("2xa100-80g[2x1GB]:contention=none+cpu");
    let of_cpu = |name: &str| name.contains("cpu0");
    for channel in &topology.channels {
        let expected = if of_cpu(&channel.name) { Contention::Link } else { Contention::None };
        assert_eq!(channel.contention, expected, "{}", channel.name);
    }
}

/// The star of a placement workload: one upload by the sender however many receivers, one download
/// by each.
#[test]
fn a_staged_star_in_code() {
    let gigabyte = Rate(1_000_000_000);
    let accelerators = (1..=3).map(|number| DeviceGroup {
        name: Some(format!("acc{number}")),
        memory: Some(Bytes(1_000_000)),
        communication: Communication::Added,
        ..DeviceGroup::new("cuda")
    });
    let mut description = Description { devices: accelerators.collect(), links: Vec::new() };
    description.devices.push(DeviceGroup { role: Some(Role::Compute), ..DeviceGroup::new("cpu") });
    let star = LinkGroup::new("acc*", "*", gigabyte);
    description.links.push(LinkGroup { latency: Some(Nanos::ZERO), via: Some("cpu0".into()), ..star });
    let topology = description.build().unwrap();
    assert_eq!(
        route_of(&topology, "acc1", "acc3"),
        "[acc1->cpu0, 1 GB/s, 0 ns] then [cpu0->acc3, 1 GB/s, 0 ns] via cpu0"
    );
    assert_eq!(route_of(&topology, "acc2", "cpu0"), "[acc2->cpu0, 1 GB/s, 0 ns]");
    let upload = |to: &str| {
        let [from, to] = ["acc1", to].map(|name| topology.find(name).unwrap());
        topology.route(from, to).hops[0].channels.clone()
    };
    assert_eq!(upload("acc2"), upload("acc3"));
    assert_eq!(upload("acc2"), upload("cpu0"));
    assert!(topology.devices[..3].iter().all(|device| device.communication == Communication::Added));
}

/// Devices that are joined to no host are reached over the links there are, fastest first.
#[test]
fn relays_take_the_fastest_way() {
    let lone = |name: &str| DeviceGroup {
        name: Some(name.into()),
        memory: Some(Bytes(1_000_000)),
        host_link: Some(Rate(0)),
        ..DeviceGroup::new("cuda")
    };
    let link = |from: &str, to: &str, rate| LinkGroup {
        latency: Some(Nanos(1000)),
        ..LinkGroup::new(from, to, Rate(rate))
    };
    let mut description = Description {
        devices: ["a", "b", "c", "d"].map(lone).to_vec(),
        links: vec![
            link("a", "b", 10_000_000_000),
            link("b", "d", 10_000_000_000),
            link("a", "c", 1_000_000_000),
            link("c", "d", 100_000_000_000),
        ],
    };
    let topology = description.build().unwrap();
    assert_eq!(route_of(&topology, "a", "d"), "[a->b, 10 GB/s, 1 us] then [b->d, 10 GB/s, 1 us] via b");
    assert_eq!(
        route_of(&topology, "a", "c"),
        "[a->c, 1 GB/s, 1 us]",
        "a stated link is taken, although the way round is faster"
    );
    description.links.retain(|link| !link.between.contains(&"a".to_owned()));
    let error = description.build().unwrap_err().to_string();
    assert_eq!(error, "nothing joins `a` to `b` (add a link between them, or give both a `host_link`)");
}

#[test]
fn every_preset_is_a_spec() {
    for preset in PRESETS {
        let text =
            if preset.memory.is_some() { preset.name.to_owned() } else { format!("{}[1GB]", preset.name) };
        let topology = spec(&text);
        assert_eq!(topology.devices[0].kind, preset.name);
        assert_eq!(topology.physicals[0].half_flops, preset.half_flops);
    }
}

#[test]
fn the_largest_topologies_are_built() {
    let direct = spec(&format!("{MAX_PHYSICALS}xa100-80g[64x1GB]"));
    assert_eq!((direct.len(), direct.routes.len()), (65_536, MAX_PHYSICALS * MAX_PHYSICALS));
    let hosts: Vec<String> = (0..256).map(|host| format!("4xl4-24g:host=n{host}")).collect();
    let far = spec(&hosts.join("+"));
    assert_eq!(route_of(&far, "cuda3", "n255/cuda0").split(' ').count(), 8);
}

/// What parses is sound: ids in range, names unique, memory above zero, all pairs joined.
fn assert_sound(topology: &Topology) {
    let count = topology.physicals.len();
    assert_eq!(topology.routes.len(), count * count);
    let mut names: Vec<&str> = topology.devices.iter().map(|device| device.name.as_str()).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    for device in &topology.devices {
        assert!(device.memory > Bytes::ZERO && (device.physical as usize) < count);
    }
    for (index, route) in topology.routes.iter().enumerate() {
        assert!(!route.hops.is_empty() || index / count == index % count);
        for hop in &route.hops {
            let rates = hop.channels.iter().map(|channel| topology.channels[channel.index()].bandwidth);
            assert!(hop.bandwidth > Rate(0) && rates.min() >= Some(hop.bandwidth));
        }
    }
}

fn assert_reads_back(topology: &Topology) {
    let json = serde_json::to_string(topology).unwrap();
    assert_eq!(&serde_json::from_str::<Topology>(&json).unwrap(), topology);
    let toml = topology.description().to_toml();
    assert_eq!(&Description::from_toml(&toml).unwrap().build().unwrap(), topology, "{toml}");
}

/// Pieces of specs, so that random strings get far into the parser.
fn spec_like() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "cpu",
        "cuda",
        "a100-80g",
        "2x",
        "x",
        "[",
        "]",
        "1GB",
        "2x1MB",
        ",",
        ":",
        "memory=",
        "cores=",
        "link=",
        "use=",
        "host=",
        "latency=",
        "=",
        "+",
        "5us",
        "1GB/s",
        "0",
        "99999999999",
        "h1",
        "compute",
        "none",
        " ",
        ".",
        "é",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// Specs that are mostly right.
fn good_spec() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec!["cpu", "a100-80g", "l4-24g", "t4-16g"]);
    let slices = prop::sample::select(vec!["", "[3x1MB]", "[1GB,2GB]", "[2x1GiB,17B]"]);
    let keys = prop::sample::select(vec![
        "",
        ":link=10GB/s",
        ":latency=9us",
        ":link=none",
        ":contention=none",
        ":host=h1",
        ":host=h2,flops=1TFLOP/s",
    ]);
    let group =
        (1..4u32, kind, slices, keys).prop_map(|(n, kind, slices, keys)| format!("{n}x{kind}{slices}{keys}"));
    prop::collection::vec(group, 1..5).prop_map(|groups| groups.join("+"))
}

/// Rules for links that are mostly right.
fn links() -> impl Strategy<Value = Vec<LinkGroup>> {
    let pattern =
        || prop::sample::select(vec!["*", "cuda*", "cuda0", "cuda1", "cpu0", "cpu*", "h0", "h1", "cuda?"]);
    let shared = prop::sample::select(vec![None, Some("bus")]);
    let via = prop::sample::select(vec![None, None, Some("cpu0"), Some("cuda1")]);
    let rate = prop::option::of(1..4u64);
    let link =
        (pattern(), pattern(), shared, via, rate).prop_map(|(from, to, shared, via, rate)| LinkGroup {
            bandwidth: rate.map(Rate),
            shared: shared.map(str::to_owned),
            via: via.map(str::to_owned),
            ..LinkGroup::new(from, to, Rate(1))
        });
    prop::collection::vec(link, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_string_makes_the_parser_panic(text in prop_oneof![any::<String>(), spec_like()]) {
        match Topology::parse(&text) {
            Ok(topology) => assert_sound(&topology),
            Err(error) => {
                prop_assert!(!error.to_string().contains('\n'));
                prop_assert_eq!(error.details().len(), 2);
                prop_assert!(error.details()[1].trim_start().starts_with('^'));
            }
        }
    }

    #[test]
    fn good_specs_are_sound_and_read_back(text in good_spec()) {
        let topology = Topology::parse(&text).expect("a good spec");
        assert_sound(&topology);
        assert_reads_back(&topology);
    }

    #[test]
    fn any_links_are_sound_or_refused(links in links(), text in good_spec()) {
        let mut description = Topology::parse(&text).expect("a good spec").description().clone();
        description.links = links;
        if let Ok(topology) = description.build() {
            assert_sound(&topology);
            assert_reads_back(&topology);
        }
    }
}

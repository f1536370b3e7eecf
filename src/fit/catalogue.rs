//! The catalogue: which kinds of device are on offer, how many, at what price, linked how.
//!
//! A TOML file (`examples/catalogue.toml`): `[[device]]` has the keys of a device file beside `price`, `available`,
//! `per_host` and `lot`; `[network]` those of the links between hosts. A host has devices of one kind.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::price::Price;
use crate::error::{Error, Report, Result};
use crate::topology::{
    DEVICE_KEYS, Description, DeviceGroup, LinkGroup, MAX_HOSTS, MAX_PHYSICALS, Topology, keys_instead,
};

/// Bytes of the longest catalogue that is read.
const LONGEST: u64 = 1 << 20;

/// Kinds of a catalogue at most: bounds are kept for each subset of them.
const MOST_KINDS: usize = 16;

/// Keys of a link that hosts have.
const NETWORK_KEYS: [&str; 4] = ["bandwidth", "latency", "contention", "shared"];

/// Keys of a device that the search sets.
const OWN_KEYS: [&str; 3] = ["count", "host", "name"];

/// Keys of a device that a catalogue adds.
const TERM_KEYS: [&str; 4] = ["price", "available", "per_host", "lot"];

/// A kind of device on offer.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) kind: String,
    price: Price,
    /// How many there are.
    pub(super) available: usize,
    /// How many are sold together.
    pub(super) lot: usize,
    /// How many one host has.
    per_host: usize,
    /// One device.
    group: DeviceGroup,
}

/// What is on offer.
#[derive(Clone, Debug)]
pub struct Catalogue {
    currency: String,
    offers: Vec<Offer>,
    /// The link between two hosts, where the catalogue says.
    network: Option<LinkGroup>,
}

impl Catalogue {
    /// Reads a catalogue.
    ///
    /// Errors: the file cannot be read; [`Error::Spec`] names it, the line or table, and the key.
    pub fn load(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let size = std::fs::metadata(path).map_err(|source| Error::io(&name, source))?.len();
        if size > LONGEST {
            return Err(fault("", format!("longer than {LONGEST} bytes")).within(&name));
        }
        let bytes = crate::files::read(path)?;
        let text =
            String::from_utf8(bytes).map_err(|_| fault("", "not a text file (UTF-8)").within(&name))?;
        Self::parse(&text).map_err(|error| error.within(&name))
    }

    /// Reads the text of a catalogue. Errors: as for [`Catalogue::load`], without the file.
    pub fn parse(text: &str) -> Result<Self> {
        let Value::Object(mut tables) = read_toml(text)? else { return Err(fault("", "expected tables")) };
        let currency = match tables.remove("currency") {
            None => "$".to_owned(),
            Some(Value::String(currency)) if is_currency(&currency) => currency,
            Some(_) => {
                return Err(fault("currency", "expected a sign or a short name, such as \"$\" or \"EUR\""));
            }
        };
        let network = tables.remove("network").map(network).transpose()?;
        let devices = match tables.remove("device") {
            Some(Value::Array(devices)) => devices,
            _ => return Err(fault("", "no [[device]] is on offer").with_help(EXAMPLE)),
        };
        if let Some(key) = tables.keys().next() {
            return Err(
                fault("", format!("unknown key `{key}`")).with_help("known are device, network and currency")
            );
        }
        if devices.len() > MOST_KINDS {
            return Err(fault("", format!("more than {MOST_KINDS} [[device]] tables")));
        }
        let catalogue = Self { currency, offers: offers(devices)?, network };
        catalogue.check()?;
        Ok(catalogue)
    }

    /// Errors: more devices or hosts than a topology has; one kind with two rates.
    fn check(&self) -> Result<()> {
        let devices: usize = self.offers.iter().map(|offer| offer.available).sum();
        let hosts: usize = self.offers.iter().map(|offer| offer.available.div_ceil(offer.per_host)).sum();
        if devices > MAX_PHYSICALS || hosts > MAX_HOSTS {
            let message = format!("{devices} devices in {hosts} hosts are on offer");
            return Err(fault("", message).with_help(format!("at most {MAX_PHYSICALS} in {MAX_HOSTS}")));
        }
        for at in 0..self.offers.len() {
            self.topology(&self.one(at)).map_err(|error| error.within(&self.place(at)))?;
        }
        let (first, every) = self.one_of_each()?;
        for (at, &device) in first.iter().enumerate() {
            if every.kind_keys()[device] != self.offers[at].kind {
                let message = "this kind is on offer above with other rates";
                return Err(fault(&self.place(at), message).with_help("give it a kind of its own"));
            }
        }
        Ok(())
    }

    pub(super) fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// Where an offer stands.
    pub(super) fn place(&self, at: usize) -> String {
        format!("device {} ({})", at + 1, self.offers[at].kind)
    }

    /// A set of one device.
    pub(super) fn one(&self, at: usize) -> Vec<usize> {
        (0..self.offers.len()).map(|other| usize::from(other == at)).collect()
    }

    /// One device of each offer; and by offer, the position of its first.
    pub(super) fn one_of_each(&self) -> Result<(Vec<usize>, Topology)> {
        let every = self.topology(&vec![1; self.offers.len()])?;
        let slices = self.offers.iter().map(|offer| offer.group.slices.len().max(1));
        let first = slices.scan(0, |next, slices| Some(std::mem::replace(next, *next + slices)));
        Ok((first.collect(), every))
    }

    /// So many devices of each kind. Hosts are filled one after the other, so that a set is a part of one that has no
    /// less of any kind.
    ///
    /// Errors: keys that do not go together.
    pub(super) fn topology(&self, counts: &[usize]) -> Result<Topology> {
        let mut description = Description::default();
        for (offer, &count) in self.offers.iter().zip(counts) {
            for first in (0..count).step_by(offer.per_host) {
                let here = (count - first).min(offer.per_host);
                let host = format!("h{}", description.devices.len());
                let count = u32::try_from(here).ok();
                description.devices.push(DeviceGroup { count, host: Some(host), ..offer.group.clone() });
            }
        }
        if let Some(network) = &self.network {
            let hosts = description.devices.len();
            for (a, b) in (0..hosts).flat_map(|b| (0..b).map(move |a| (a, b))) {
                let between = [a, b].map(|host| format!("h{host}"));
                description.links.push(LinkGroup { between, ..network.clone() });
            }
        }
        description.build()
    }

    /// What so many devices of each kind cost.
    pub(super) fn price(&self, counts: &[usize]) -> Price {
        self.offers.iter().zip(counts).map(|(offer, &count)| offer.price.times(count)).sum()
    }

    /// A set in words: `2xh100-80g + 1xl4-24g`.
    pub fn name(&self, counts: &[usize]) -> String {
        let parts = self.offers.iter().zip(counts).filter(|(_, count)| **count > 0);
        parts.map(|(offer, count)| format!("{count}x{}", offer.kind)).collect::<Vec<_>>().join(" + ")
    }

    /// A price in the catalogue's currency.
    pub fn priced(&self, price: Price) -> String {
        format!("{}{price}", self.currency)
    }

    /// Reads a price that has the catalogue's currency, or none. Error: what is expected.
    pub fn budget(&self, text: &str) -> Result<Price, String> {
        match Price::parse(text)? {
            (price, currency) if currency.is_empty() || currency == self.currency => Ok(price),
            (_, currency) => {
                Err(format!("the catalogue's prices are in {}, not in {currency}", self.currency))
            }
        }
    }
}

/// Where to see how it is done.
const EXAMPLE: &str = "examples/catalogue.toml shows one";

fn fault(place: &str, message: impl Into<String>) -> Error {
    Error::Spec(Report::new(place, message))
}

fn is_currency(text: &str) -> bool {
    (1..=8).contains(&text.chars().count()) && !text.chars().any(|c| c.is_ascii_digit() || ".-+ ".contains(c))
}

fn read_toml(text: &str) -> Result<Value> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map(|before| before.bytes().filter(|&byte| byte == b'\n').count() + 1);
        fault(&line.map_or(String::new(), |line| format!("line {line}")), error.message()).with_help(EXAMPLE)
    })
}

/// The link between two hosts.
fn network(table: Value) -> Result<LinkGroup> {
    let Value::Object(mut link) = table else { return Err(fault("network", "expected a table, [network]")) };
    if let Some(key) = link.keys().find(|key| !NETWORK_KEYS.contains(&key.as_str())) {
        let known = NETWORK_KEYS.join(", ");
        return Err(fault("network", format!("unknown key `{key}`")).with_help(format!("keys are {known}")));
    }
    if !link.contains_key("bandwidth") {
        return Err(fault("network: bandwidth", "missing").with_help("say `bandwidth = \"12.5GB/s\"`"));
    }
    link.insert("between".into(), json!(["h0", "h1"]));
    let mut read =
        Description::from_json(&json!({ "link": [link] }).to_string()).map_err(|error| match error {
            Error::Spec(report) => {
                let place = report.place.replace("link 1 (h0 - h1)", "network");
                Error::Spec(Report { place, ..report })
            }
            other => other,
        })?;
    read.links.pop().ok_or_else(|| Error::Internal("a link was read and is not there".into()))
}

/// What is sold of a kind, and for how much.
struct Terms {
    price: Price,
    available: usize,
    lot: usize,
    per_host: usize,
}

/// The offers of the tables: terms, and what is left as keys of devices.
fn offers(tables: Vec<Value>) -> Result<Vec<Offer>> {
    let mut terms = Vec::new();
    let mut devices = Vec::new();
    for (at, table) in tables.into_iter().enumerate() {
        let Value::Object(mut table) = table else {
            return Err(fault("device", "expected tables, [[device]]"));
        };
        let kind =
            table.get("kind").and_then(Value::as_str).map_or(String::new(), |kind| format!(" ({kind})"));
        terms.push(
            Terms::take(&mut table).map_err(|error| error.within(&format!("device {}{kind}", at + 1)))?,
        );
        devices.push(table);
    }
    let read = Description::from_json(&json!({ "device": devices }).to_string())?;
    let offer = |(group, Terms { price, available, lot, per_host }): (DeviceGroup, Terms)| Offer {
        kind: group.kind.clone(),
        price,
        available,
        lot,
        per_host,
        group,
    };
    Ok(read.devices.into_iter().zip(terms).map(offer).collect())
}

impl Terms {
    /// Takes what is no key of a device. Errors: the key, and what is wrong with it.
    fn take(table: &mut Map<String, Value>) -> Result<Self> {
        if let Some(key) = OWN_KEYS.into_iter().find(|key| table.contains_key(*key)) {
            let message = "the search says how many devices there are, and in which hosts";
            return Err(fault(key, message).with_help("available, per_host and lot say what is on offer"));
        }
        Self::are_known(table)?;
        let price = match table.remove("price") {
            Some(Value::Number(price)) => Price::parse(&price.to_string()).map(|(price, _)| price),
            Some(Value::String(_)) => {
                Err("expected a number without quotes, of the catalogue's currency".into())
            }
            Some(_) => Err("expected a number".into()),
            None => Err("missing: what one device costs for an hour".into()),
        };
        let price = price.map_err(|message| fault("price", message))?;
        let available = Self::count(table, "available", 1)?;
        let lot = Self::count(table, "lot", 1)?;
        if !available.is_multiple_of(lot) {
            let message = format!("{available} are available, which are no lots of {lot}");
            return Err(fault("lot", message));
        }
        Ok(Self { price, available, lot, per_host: Self::count(table, "per_host", available)? })
    }

    fn are_known(table: &Map<String, Value>) -> Result<()> {
        let devices = DEVICE_KEYS.into_iter().filter(|key| !OWN_KEYS.contains(key));
        let known = TERM_KEYS.into_iter().chain(devices);
        match table.keys().find(|key| !known.clone().any(|known| known == *key)) {
            Some(key) => Err(fault("", format!("unknown key `{key}`")).with_help(keys_instead(key, known))),
            None => Ok(()),
        }
    }

    fn count(table: &mut Map<String, Value>, key: &str, default: usize) -> Result<usize> {
        let Some(value) = table.remove(key) else { return Ok(default) };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        count.filter(|count| (1..=MAX_PHYSICALS).contains(count)).ok_or_else(|| {
            fault(key, format!("expected a whole number from 1 to {MAX_PHYSICALS}, found {value}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "[[device]]\nkind = \"h100-80g\"\nprice = 2.5\navailable = 4\nper_host = 2\nlink = \"450GB/s\"\n\
                       [[device]]\nkind = \"l4-24g\"\nprice = 0.7\n[network]\nbandwidth = \"50GB/s\"\n";

    #[test]
    fn a_set_has_a_price_a_name_and_hosts_that_are_filled_in_order() {
        let catalogue = Catalogue::parse(TWO).unwrap();
        assert_eq!(catalogue.priced(catalogue.price(&[3, 1])), "$8.20/h");
        assert_eq!(catalogue.name(&[3, 1]), "3xh100-80g + 1xl4-24g");
        let topology = catalogue.topology(&[3, 1]).unwrap();
        let names: Vec<String> = topology.ids().map(|id| topology.device(id).name.clone()).collect();
        assert_eq!(names, ["cuda0", "cuda1", "h1/cuda0", "h2/cuda0"]);
        let ids: Vec<_> = topology.ids().collect();
        let rate = |from: usize, to: usize| topology.route(ids[from], ids[to]).hops[0].bandwidth.0;
        assert_eq!((rate(0, 1), rate(0, 2)), (450_000_000_000, 50_000_000_000));
        assert_eq!(catalogue.budget("$3/h").map(|price| price.amount()), Ok(3.0));
        assert!(catalogue.budget("€3").unwrap_err().contains("in $, not in €"));
    }

    #[test]
    fn what_is_no_catalogue_says_where_it_is_wrong() {
        let h100 = "[[device]]\nkind = \"h100-80g\"\n";
        for (text, parts) in [
            ("", &["no [[device]] is on offer", "catalogue.toml"][..]),
            ("[[device]]\nkind = ", &["line 2"]),
            ("[[offer]]\nprice = 1", &["no [[device]]"]),
            ("device = 3", &["no [[device]]"]),
            ("device = [3]", &["expected tables"]),
            (&format!("colour = 1\n{h100}price = 1"), &["unknown key `colour`"]),
            (&format!("currency = \"1 $\"\n{h100}price = 1"), &["currency"]),
            ("[[device]]\nprice = 1", &["device 1: kind"]),
            (h100, &["device 1 (h100-80g): price: missing"]),
            (&format!("{h100}price = -1"), &["device 1 (h100-80g): price: expected"]),
            (&format!("{h100}price = nan"), &["price"]),
            (&format!("{h100}price = \"$3\""), &["price: expected a number without quotes"]),
            (&format!("{h100}price = 1\navailable = 0"), &["available: expected a whole number"]),
            (&format!("{h100}price = 1\navailable = 3\nlot = 2"), &["lot: 3 are available"]),
            (&format!("{h100}price = 1\ncount = 2"), &["count: the search says"]),
            (&format!("{h100}price = 1\nlonk = 2"), &["device 1 (h100-80g)", "`lonk`", "link"]),
            (&format!("{h100}price = 1\nprize = 2"), &["unknown key `prize`", "price"]),
            (&format!("{h100}price = 1\ncolour = 2"), &["keys are price, available, per_host, lot, kind"]),
            (&format!("{h100}price = 1\nmemory = \"80\""), &["device 1 (h100-80g): memory"]),
            ("[[device]]\nkind = \"nothing-1g\"\nprice = 1", &["device 1 (nothing-1g)", "memory"]),
            (&format!("{h100}price = 1\navailable = 1000\nper_host = 1"), &["1000 devices in 1000 hosts"]),
            (
                &format!("{h100}price = 1\n{h100}price = 1\nflops = \"1TFLOP/s\""),
                &["device 2", "other rates"],
            ),
            (&format!("network = 3\n{h100}price = 1"), &["network: expected a table"]),
            (&format!("{h100}price = 1\n[network]\nvia = \"cpu0\""), &["network: unknown key `via`"]),
            (&format!("{h100}price = 1\n[network]\nlatency = \"5us\""), &["network: bandwidth: missing"]),
            (&format!("{h100}price = 1\n[network]\nbandwidth = \"5us\""), &["network: bandwidth:"]),
        ] {
            let error = Catalogue::parse(text).unwrap_err();
            let message = error.to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{text}: {message}");
            assert_eq!(error.exit_code(), 2, "{message}");
        }
    }
}

//! Reads quantities with units: `1.5GB`, `512MiB`, `100Gbit/s`, `19.5TFLOP/s`, `5us`.
//!
//! Numbers are decimal and read exactly, in integers: `1.5GB` is 1,500,000,000 bytes, and
//! a quantity that is not a whole number of bytes (or nanoseconds) is an error, as is one that
//! does not fit.

use std::str::FromStr;

use super::{Bytes, Flops, Nanos, Rate};

const KILO: u128 = 1000;
const KIBI: u128 = 1024;

/// A decimal number: `digits` / 10^`decimals`.
struct Decimal {
    digits: u128,
    decimals: u32,
}

impl Decimal {
    /// The number times `unit` over `divisor`, where that is whole and fits.
    fn scaled(&self, unit: u128, divisor: u128, what: &str) -> Result<u64, String> {
        let too_large = || format!("too large: the most is {} {what}", u64::MAX);
        let scaled = self.digits.checked_mul(unit).ok_or_else(too_large)?;
        let below = 10u128.checked_pow(self.decimals).and_then(|power| power.checked_mul(divisor));
        let below = below.ok_or("too many decimal places")?;
        if !scaled.is_multiple_of(below) {
            return Err(format!("not a whole number of {what}"));
        }
        u64::try_from(scaled / below).map_err(|_| too_large())
    }
}

/// Splits `text` into its number and its unit.
fn number(text: &str, example: &str) -> Result<(Decimal, String), String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(format!("expected a number and a unit, like {example}"));
    }
    if fraction.contains('.') {
        return Err("two decimal points in one number".to_owned());
    }
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if fraction.len() > 18 {
        return Err("too many decimal places".to_owned());
    }
    let digits = if digits.is_empty() { Ok(0) } else { digits.parse() };
    let digits = digits.map_err(|_| "too large".to_owned())?;
    Ok((Decimal { digits, decimals: fraction.len() as u32 }, unit.trim().to_owned()))
}

/// The scale that a prefix stands for, and what follows it. `k`, `M`, `G`, `T` and `P` are decimal,
/// with an `i` after them binary; case does not matter.
fn prefix(unit: &str) -> (u128, &str) {
    let Some(first) = unit.chars().next() else { return (1, unit) };
    let Some(power) = "kmgtp".find(first.to_ascii_lowercase()) else { return (1, unit) };
    let power = power as u32 + 1;
    let rest = &unit[first.len_utf8()..];
    match rest.strip_prefix(['i', 'I']) {
        Some(rest) => (KIBI.pow(power), rest),
        None => (KILO.pow(power), rest),
    }
}

/// Reads `1000MB`, `1.5GiB`, `80G` (decimal), `17B`. `Gb` are gigabits to most, and are refused. The error says what is wrong
/// with it.
impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXAMPLE: &str = "`1000MB` or `1.5GiB`";
        let (number, unit) = number(text, EXAMPLE)?;
        if unit.is_empty() {
            return Err(format!("a size needs a unit, like {EXAMPLE} (`B` for bytes)"));
        }
        let (scale, rest) = prefix(&unit);
        if !(rest.eq_ignore_ascii_case("b") || rest.is_empty()) {
            return Err(format!(
                "`{unit}` is not a unit of size: expected B, kB, MB, GB, TB, PB, KiB, MiB, ..."
            ));
        }
        if rest == "b" && unit.starts_with(['K', 'M', 'G', 'T', 'P']) {
            let bytes = unit.replace('b', "B");
            return Err(format!("`{unit}` may be bits: {bytes} are bytes"));
        }
        number.scaled(scale, 1, "bytes").map(Self)
    }
}

/// Reads `100GB/s`, `12.5GiB/s`, `100Gbit/s`, `25GBps`, and `unlimited`. `Gb/s` are bits; `gb/s` may be meant as either, and
/// is refused.
impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "unlimited" {
            return Ok(Self::INFINITE);
        }
        let (number, unit) = number(text, "`100GB/s` or `100Gbit/s`")?;
        let (scale, rest) = prefix(&unit);
        let is_unclear = matches!(rest, "b/s" | "bps") && unit.starts_with(['m', 'g', 't', 'p']);
        let bits = match rest {
            _ if is_unclear => {
                let scale = unit[..1].to_ascii_uppercase();
                return Err(format!(
                    "`{unit}` may be bytes or bits: {scale}B/s are bytes, {scale}bit/s bits"
                ));
            }
            "B/s" | "Bps" => 1,
            "bit/s" | "bits/s" | "bps" | "b/s" => 8,
            _ => {
                return Err(if unit.is_empty() {
                    "a rate needs a unit, like `100GB/s` or `100Gbit/s`".to_owned()
                } else {
                    format!("`{unit}` is not a unit of bandwidth: expected GB/s, MiB/s, Gbit/s, ...")
                });
            }
        };
        number.scaled(scale, bits, "bytes per second").map(Self)
    }
}

/// Reads `19.5TFLOP/s`, `19.5TFLOPS` and `19.5T`: operations per second.
impl FromStr for Flops {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = number(text, "`19.5TFLOP/s`")?;
        let (scale, rest) = prefix(&unit);
        let known = ["flop/s", "flops/s", "flops"];
        if !(known.iter().any(|known| rest.eq_ignore_ascii_case(known)) || (rest.is_empty() && scale != 1)) {
            return Err(if unit.is_empty() {
                "a rate of compute needs a unit, like `19.5TFLOP/s`".to_owned()
            } else {
                format!("`{unit}` is not a unit of compute: expected GFLOP/s, TFLOP/s, PFLOP/s, ...")
            });
        }
        number.scaled(scale, 1, "operations per second").map(Self)
    }
}

/// Reads `500ns`, `5us`, `1.5ms`, `2s`.
impl FromStr for Nanos {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = number(text, "`5us`")?;
        let scale = match unit.as_str() {
            "ns" => 1,
            "us" | "µs" | "μs" => 1000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "" => return Err("a time needs a unit: ns, us, ms or s".to_owned()),
            _ => return Err(format!("`{unit}` is not a unit of time: expected ns, us, ms or s")),
        };
        number.scaled(scale, 1, "nanoseconds").map(Self)
    }
}

/// `value` in the largest of `units` that divides it: it reads back exactly.
fn exact(value: u64, units: &[(u64, &str)]) -> String {
    let fits = |&&(scale, _): &&(u64, &str)| value != 0 && value.is_multiple_of(scale);
    let (scale, unit) = units.iter().find(fits).or(units.last()).copied().unwrap_or((1, ""));
    format!("{}{unit}", value / scale)
}

impl Bytes {
    /// The size as it reads back exactly: `1500MB`, `60MiB`, `17B`.
    pub fn exact(self) -> String {
        const UNITS: [(u64, &str); 9] = [
            (1_000_000_000_000_000, "PB"),
            (1_000_000_000_000, "TB"),
            (1_000_000_000, "GB"),
            (1 << 30, "GiB"),
            (1_000_000, "MB"),
            (1 << 20, "MiB"),
            (1000, "kB"),
            (1 << 10, "KiB"),
            (1, "B"),
        ];
        exact(self.0, &UNITS)
    }
}

impl Rate {
    /// The rate as it reads back exactly: `2039GB/s`, `unlimited`.
    pub fn exact(self) -> String {
        const UNITS: [(u64, &str); 4] =
            [(1_000_000_000, "GB/s"), (1_000_000, "MB/s"), (1000, "kB/s"), (1, "B/s")];
        if self == Self::INFINITE { "unlimited".to_owned() } else { exact(self.0, &UNITS) }
    }
}

impl Flops {
    /// The rate, per second, as it reads back exactly: `19500GFLOP/s`.
    pub fn exact(self) -> String {
        const UNITS: [(u64, &str); 5] = [
            (1_000_000_000_000, "TFLOP/s"),
            (1_000_000_000, "GFLOP/s"),
            (1_000_000, "MFLOP/s"),
            (1000, "kFLOP/s"),
            (1, "FLOP/s"),
        ];
        exact(self.0, &UNITS)
    }
}

impl Nanos {
    /// The time as it reads back exactly: `5us`, `1500ns`.
    pub fn exact(self) -> String {
        exact(self.0, &[(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us"), (1, "ns")])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_exactly() {
        let cases = [
            ("1000MB", 1_000_000_000),
            ("1000MiB", 1_048_576_000),
            ("80G", 80_000_000_000),
            ("1.5GB", 1_500_000_000),
            (".5kB", 500),
            ("0.1GB", 100_000_000),
            ("17B", 17),
            ("1P", 1_000_000_000_000_000),
            ("2PiB", 2 << 50),
            ("18446744073709551615B", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn rates_and_times_are_read_exactly() {
        assert_eq!("100GB/s".parse(), Ok(Rate(100_000_000_000)));
        assert_eq!("100Gbit/s".parse(), Ok(Rate(12_500_000_000)));
        assert_eq!("1KiB/s".parse(), Ok(Rate(1024)));
        assert_eq!("unlimited".parse(), Ok(Rate::INFINITE));
        assert_eq!("19.5TFLOP/s".parse(), Ok(Flops(19_500_000_000_000)));
        assert_eq!("1gflops".parse(), Ok(Flops(1_000_000_000)));
        assert_eq!("5us".parse(), Ok(Nanos(5000)));
        assert_eq!("1.5ms".parse(), Ok(Nanos(1_500_000)));
        assert_eq!("0ns".parse(), Ok(Nanos(0)));
    }

    #[test]
    fn what_is_not_a_quantity_is_an_error() {
        for text in [
            "",
            "GB",
            "1.2.3GB",
            "1",
            "-1GB",
            "1XB",
            "1.5B",
            "99999999999P",
            "1e9B",
            "0.00000000000000000001PB",
        ] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        for unclear in ["64Gb", "64Gib", "1Kb"] {
            let error = unclear.parse::<Bytes>().unwrap_err();
            assert!(error.contains("may be bits: "), "{error}");
        }
        assert_eq!("64gb".parse(), Ok(Bytes(64_000_000_000)));
        for text in ["1GB", "1", "1Gbit", "1/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        assert!("9".repeat(50).parse::<Bytes>().is_err());
        assert!("1b/s".parse::<Rate>().is_err());
        for unclear in ["8gb/s", "8gbps", "100mb/s"] {
            let error = unclear.parse::<Rate>().unwrap_err();
            assert!(error.contains("bytes or bits"), "{error}");
        }
        assert_eq!("8Gb/s".parse(), Ok(Rate(1_000_000_000)));
        assert_eq!("8kb/s".parse(), Ok(Rate(1_000)));
        assert!("1.5ns".parse::<Nanos>().is_err());
        assert!("1h".parse::<Nanos>().is_err());
    }

    #[test]
    fn the_exact_form_reads_back() {
        for value in [0, 1, 999, 1000, 1024, 1_048_576, 1_500_000_000, 3 << 30, u64::MAX - 1] {
            assert_eq!(Bytes(value).exact().parse(), Ok(Bytes(value)));
            assert_eq!(Rate(value).exact().parse(), Ok(Rate(value)));
            assert_eq!(Flops(value).exact().parse(), Ok(Flops(value)));
            assert_eq!(Nanos(value).exact().parse(), Ok(Nanos(value)));
        }
        assert_eq!(Rate::INFINITE.exact().parse(), Ok(Rate::INFINITE));
        assert_eq!(Bytes(60 << 20).exact(), "60MiB");
    }
}

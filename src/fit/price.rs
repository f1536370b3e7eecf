//! Prices: what a device costs for an hour, in millionths of the catalogue's currency.

use std::iter::Sum;

/// Millionths of a currency, for an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price(u64);

/// Parts of a unit of currency.
const PARTS: u64 = 1_000_000;

/// Units of currency that no price reaches.
const MOST: u64 = 1_000_000;

impl Price {
    /// The price of this many.
    #[must_use]
    pub fn times(self, count: usize) -> Self {
        Self(self.0.saturating_mul(count as u64))
    }

    /// In units of currency.
    pub fn amount(self) -> f64 {
        self.0 as f64 / PARTS as f64
    }

    /// True where this is at least `percent` of the other.
    pub(super) fn is_at_least(self, percent: u64, other: Self) -> bool {
        u128::from(self.0) * 100 >= u128::from(other.0) * u128::from(percent)
    }

    /// Reads `12`, `12.5/h`, and with a currency before it `$12`. The currency comes with it, empty where there is none.
    ///
    /// Error: what is expected.
    pub fn parse(text: &str) -> Result<(Self, &str), String> {
        let text = text.trim();
        let amount =
            text.find(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+')).unwrap_or(text.len());
        let (currency, amount) = text.split_at(amount);
        let amount = amount.strip_suffix("/h").unwrap_or(amount);
        Ok((Self::amount_of(amount.trim())?, currency.trim()))
    }

    /// Reads a decimal number, exactly.
    fn amount_of(text: &str) -> Result<Self, String> {
        let expected = || "expected a price for an hour, such as 12 or 2.99".to_owned();
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
        if !(is_number(whole) && is_number(fraction)) || whole.is_empty() && fraction.is_empty() {
            return Err(expected());
        }
        let fraction = fraction.trim_end_matches('0');
        if fraction.len() > 6 {
            return Err("a price has at most six decimal places".to_owned());
        }
        let parts = format!("{fraction:0<6}").parse::<u64>().map_err(|_| expected())?;
        match format!("0{whole}").parse::<u64>() {
            Ok(whole) if whole < MOST => Ok(Self(whole * PARTS + parts)),
            _ => Err(format!("a price is below {MOST}")),
        }
    }
}

impl Sum for Price {
    fn sum<I: Iterator<Item = Self>>(prices: I) -> Self {
        Self(prices.fold(0, |sum: u64, price| sum.saturating_add(price.0)))
    }
}

/// Prints with two decimal places, or as many as it has: `2.99/h`.
impl std::fmt::Display for Price {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = format!("{:06}", self.0 % PARTS);
        let digits = parts.trim_end_matches('0').len().max(2);
        write!(f, "{}.{}/h", self.0 / PARTS, &parts[..digits])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_exactly_and_printed() {
        for (text, currency, printed) in [
            ("12", "", "12.00/h"),
            ("$12/h", "$", "12.00/h"),
            (" 2.990 ", "", "2.99/h"),
            ("€ .123456/h", "€", "0.123456/h"),
            ("0", "", "0.00/h"),
        ] {
            let (price, own) = Price::parse(text).unwrap();
            assert_eq!((price.to_string().as_str(), own), (printed, currency));
        }
        for wrong in
            ["", "$", "-1", "1e3", "1.2.3", "1.2345678", "1000000", "99999999999999999999", "1/s", "NaN"]
        {
            assert!(Price::parse(wrong).is_err(), "{wrong}");
        }
    }
}

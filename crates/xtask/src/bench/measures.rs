//! Figures of several runs, and what is said of them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The figures of one run, by what they measure.
pub(super) type Sample = BTreeMap<&'static str, f64>;

/// The same measure over several runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Series(pub(super) Vec<f64>);

impl Series {
    pub(super) fn of(samples: &[Sample], measure: &str) -> Self {
        Self(samples.iter().filter_map(|sample| sample.get(measure).copied()).collect())
    }

    /// Of each pair, the second by the first.
    pub(super) fn ratio(first: &Self, second: &Self) -> Self {
        let pairs = first.0.iter().zip(&second.0);
        Self(pairs.filter(|(first, _)| **first != 0.0).map(|(first, second)| second / first).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    pub(super) fn median(&self) -> f64 {
        let sorted = self.sorted();
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }

    pub(super) fn min(&self) -> f64 {
        self.sorted().first().copied().unwrap_or(f64::NAN)
    }

    pub(super) fn max(&self) -> f64 {
        self.sorted().last().copied().unwrap_or(f64::NAN)
    }

    /// `median (min–max)`, or the one figure.
    pub(super) fn text(&self) -> String {
        match self.0.as_slice() {
            [] => "-".to_owned(),
            [one] => figure(*one),
            _ => format!("{} ({}–{})", figure(self.median()), figure(self.min()), figure(self.max())),
        }
    }

    pub(super) fn json(&self) -> Value {
        if self.is_empty() {
            return Value::Null;
        }
        json!({ "median": self.median(), "min": self.min(), "max": self.max(), "samples": self.0 })
    }
}

/// Three digits that count.
pub(super) fn figure(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "-".to_owned()
    } else if size >= 10_000.0 {
        let digits = format!("{value:.0}");
        let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |digits| ("-", digits));
        let mut grouped = String::new();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        format!("{sign}{grouped}")
    } else if size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 1.0 || value == 0.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

/// A number in a JSON document; not a number where it is none.
pub(super) fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_has_median_minimum_and_maximum() {
        let series = Series(vec![3.0, 1.0, 2.0, 10.0]);
        assert_eq!((series.median(), series.min(), series.max()), (2.5, 1.0, 10.0));
        assert_eq!(series.text(), "2.50 (1.00–10.0)");
        assert_eq!(Series(vec![]).text(), "-");
    }

    #[test]
    fn ratios_are_of_pairs_and_not_of_medians() {
        let ratio = Series::ratio(&Series(vec![1.0, 2.0, 0.0]), &Series(vec![2.0, 2.0, 5.0]));
        assert_eq!(ratio.0, [2.0, 1.0]);
    }

    #[test]
    fn figures_have_the_digits_that_count() {
        let texts: Vec<String> =
            [1_234_567.8, 123.4, 12.34, 1.234, 0.1234, 0.0].into_iter().map(figure).collect();
        assert_eq!(texts, ["1,234,568", "123", "12.3", "1.23", "0.123", "0.00"]);
        assert_eq!(figure(f64::NAN), "-");
    }
}

//! The objects `latency` and `requests` that a script's `done` receives.

use std::rc::Rc;

use mlua::{Function, Lua, Value};
use oroshi_stats::Latency;

use crate::summary::{Figures, percentile_us};

/// A set of values: latencies in microseconds, or rates in requests per second.
#[derive(Debug)]
pub(crate) struct Stats {
    figures: Figures,
    values: Values,
    /// Each distinct value, in whole units and ascending, with its count.
    distinct: Vec<(f64, u64)>,
}

#[derive(Debug)]
enum Values {
    Latency(Box<Latency>),
    /// Ascending.
    Samples(Vec<f64>),
}

impl Stats {
    pub(crate) fn of_latency(latency: Latency) -> Self {
        let mut distinct: Vec<(f64, u64)> = Vec::new();
        for bucket in latency.histogram().iter_recorded() {
            let ns = bucket.value_iterated_to().clamp(latency.min(), latency.max());
            count(&mut distinct, (ns / 1000) as f64, bucket.count_since_last_iteration());
        }
        Self { figures: Figures::of_latency(&latency), values: Values::Latency(Box::new(latency)), distinct }
    }

    pub(crate) fn of_samples(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let mut distinct = Vec::new();
        samples.iter().for_each(|&sample| count(&mut distinct, sample, 1));
        Self { figures: Figures::of_samples(&samples), values: Values::Samples(samples), distinct }
    }

    /// Makes the Lua object; `constructor` is the API's function for that.
    pub(crate) fn into_lua(self, lua: &Lua, constructor: &Function) -> mlua::Result<Value> {
        let figures = lua.create_table()?;
        let Figures { min, max, mean, stdev, .. } = self.figures;
        for (name, figure) in [("min", min), ("max", max), ("mean", mean), ("stdev", stdev)] {
            figures.raw_set(name, figure)?;
        }
        let length = self.distinct.len();
        let stats = Rc::new(self);
        let at = {
            let stats = Rc::clone(&stats);
            lua.create_function(move |_, index: f64| Ok(stats.at(index)))?
        };
        let percentile = lua.create_function(move |_, percent: f64| Ok(stats.percentile(percent)))?;
        constructor.call((figures, length, at, percentile))
    }

    /// Returns the percentile; `percent` is from 0 to 100.
    fn percentile(&self, percent: f64) -> f64 {
        match &self.values {
            Values::Latency(latency) => percentile_us(latency, percent),
            Values::Samples(samples) => {
                // Decimal fractions are not exact in binary: the deduction keeps the rank.
                let rank = (percent * samples.len() as f64 / 100.0 - 1e-9).ceil().max(1.0) as usize;
                samples.get(rank - 1).copied().unwrap_or(0.0)
            }
        }
    }

    /// Returns the i-th distinct value, from 1, with its count; zeros beyond the last.
    fn at(&self, index: f64) -> (f64, u64) {
        let found = (index >= 1.0).then(|| self.distinct.get(index as usize - 1)).flatten();
        found.copied().unwrap_or((0.0, 0))
    }
}

/// Adds `n` of a value, at least as great as the last one.
fn count(distinct: &mut Vec<(f64, u64)>, value: f64, n: u64) {
    match distinct.last_mut() {
        Some(last) if last.0 == value => last.1 += n,
        _ => distinct.push((value, n)),
    }
}

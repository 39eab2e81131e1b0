//! Envoy's custom metrics: one value per name over all VMs, handed out to each VM under ids of
//! its own.

use crate::status;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    pub kind: Kind,
    pub value: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Metrics(pub BTreeMap<String, Metric>);

/// The ids of one VM: the kind in the two low bits, as in Envoy.
#[derive(Debug, Default)]
pub(crate) struct MetricIds(Vec<String>);

const ID_STEP: u32 = 4;

impl MetricIds {
    fn name(&self, id: u32) -> Option<&str> {
        let index = (id / ID_STEP).checked_sub(1)?;
        self.0.get(index as usize).map(String::as_str)
    }
}

impl Metrics {
    /// A name defined twice gets two ids on one value.
    pub fn define(&mut self, ids: &mut MetricIds, kind: u32, name: &str) -> Result<u32, u32> {
        let known = match kind {
            0 => Kind::Counter,
            1 => Kind::Gauge,
            2 => Kind::Histogram,
            _ => return Err(status::BAD_ARGUMENT),
        };
        self.0.entry(name.to_owned()).or_insert(Metric {
            kind: known,
            value: 0,
        });
        ids.0.push(name.to_owned());
        Ok((ids.0.len() as u32) * ID_STEP + kind)
    }

    fn at(&mut self, ids: &MetricIds, id: u32) -> Option<&mut Metric> {
        self.0.get_mut(ids.name(id)?)
    }

    /// A counter refuses an offset that is not positive.
    pub fn increment(&mut self, ids: &MetricIds, id: u32, offset: i64) -> u32 {
        match self.at(ids, id) {
            None => status::NOT_FOUND,
            Some(Metric {
                kind: Kind::Counter,
                ..
            }) if offset <= 0 => status::BAD_ARGUMENT,
            Some(Metric {
                kind: Kind::Histogram,
                ..
            }) => status::BAD_ARGUMENT,
            Some(metric) => {
                metric.value = metric.value.wrapping_add_signed(offset);
                status::OK
            }
        }
    }

    /// Adds to a counter, sets a gauge.
    pub fn record(&mut self, ids: &MetricIds, id: u32, value: u64) -> u32 {
        match self.at(ids, id) {
            None => status::NOT_FOUND,
            Some(metric) => {
                metric.value = match metric.kind {
                    Kind::Counter => metric.value.wrapping_add(value),
                    Kind::Gauge | Kind::Histogram => value,
                };
                status::OK
            }
        }
    }

    pub fn get(&mut self, ids: &MetricIds, id: u32) -> Result<u64, u32> {
        match self.at(ids, id) {
            None => Err(status::NOT_FOUND),
            Some(Metric {
                kind: Kind::Histogram,
                ..
            }) => Err(status::BAD_ARGUMENT),
            Some(metric) => Ok(metric.value),
        }
    }
}

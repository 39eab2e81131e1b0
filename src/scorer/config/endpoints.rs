//! Where the engines are, and how polls reach them.

use super::{MAX_ENDPOINTS, Target};
use crate::config::{ConfigError, Field, Json, Place, is_header_name, is_path, object};
use std::net::SocketAddr;

const MAX_CLUSTER_NAME: usize = 512;

/// What Envoy's ORIGINAL_DST cluster reads unless told otherwise
/// (`original_dst_lb_config.http_header_name`).
const DEFAULT_DESTINATION_HEADER: &str = "x-envoy-original-dst-host";

const ADDRESS_RULE: &str =
    "\"ip:port\" (IPv6 as \"[::1]:8000\"), or {\"address\":\"ip:port\",\"cluster\":\"name\"}";
pub(super) const CLUSTER_RULE: &str = "the name of an Envoy cluster";
pub(super) const TARGET_RULE: &str = "a path that starts with / and has no # or space";
pub(super) const OR_NULL_RULE: &str = "a path that starts with / and has no # or space, or null";

pub(super) fn endpoints(
    field: &Field<'_>,
) -> Result<Vec<(SocketAddr, Option<String>)>, ConfigError> {
    let mut found: Vec<(SocketAddr, Option<String>)> = Vec::new();
    for (i, item) in field
        .list(0..=MAX_ENDPOINTS, "endpoints")?
        .iter()
        .enumerate()
    {
        let place = field.place.element(field.key, i);
        let (address, cluster) = match item {
            Json::Text(text) => {
                let wrong = || ConfigError::value(place.itself(), item, ADDRESS_RULE);
                (address(text).ok_or_else(wrong)?, None)
            }
            Json::Object(_) => with_cluster(&place, item)?,
            _ => return Err(ConfigError::value(place.itself(), item, ADDRESS_RULE)),
        };
        if found.iter().any(|(other, _)| *other == address) {
            let rule = "each endpoint may be given once";
            return Err(ConfigError::conflict(place.itself(), item, rule));
        }
        found.push((address, cluster));
    }
    Ok(found)
}

fn with_cluster(place: &Place, item: &Json) -> Result<(SocketAddr, Option<String>), ConfigError> {
    let (mut found, mut cluster) = (None, None);
    for (key, value) in object(place, place.itself(), item.clone())? {
        let field = Field {
            place,
            key: &key,
            value: &value,
        };
        match key.as_str() {
            "address" => {
                let text = field.text(|text| address(text).is_some(), "\"ip:port\"")?;
                found = address(&text);
            }
            "cluster" => cluster = Some(field.text(is_cluster, CLUSTER_RULE)?),
            _ => {
                let allowed = ["address", "cluster"];
                return Err(ConfigError::unknown(place.member(&key), &allowed));
            }
        }
    }
    let found =
        found.ok_or_else(|| ConfigError::missing(place.member("address"), "\"ip:port\""))?;
    Ok((found, cluster))
}

pub(super) fn scrape(field: &Field<'_>) -> Result<Target, ConfigError> {
    let place = field.place.inside(field.key);
    let (mut cluster, mut header) = (None, DEFAULT_DESTINATION_HEADER.to_owned());
    for (key, value) in object(&place, place.itself(), field.value.clone())? {
        let field = Field {
            place: &place,
            key: &key,
            value: &value,
        };
        match key.as_str() {
            "cluster" => cluster = Some(field.text(is_cluster, CLUSTER_RULE)?),
            "destinationHeader" => {
                header = field
                    .text(
                        is_destination_header,
                        "a header name, not host or content-length",
                    )?
                    .to_ascii_lowercase();
            }
            _ => {
                let allowed = ["cluster", "destinationHeader"];
                return Err(ConfigError::unknown(place.member(&key), &allowed));
            }
        }
    }
    let cluster = cluster.ok_or_else(|| {
        ConfigError::missing(
            place.member("cluster"),
            "the name of an ORIGINAL_DST cluster",
        )
    })?;
    Ok(Target {
        cluster: cluster.into(),
        destination_header: Some(header.into()),
    })
}

/// `ip:port`, the port not 0.
pub(in crate::scorer) fn address(text: &str) -> Option<SocketAddr> {
    text.parse().ok().filter(|a: &SocketAddr| a.port() != 0)
}

pub(super) fn is_cluster(name: &str) -> bool {
    (1..=MAX_CLUSTER_NAME).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// A path and perhaps a query.
pub(super) fn is_request_target(target: &str) -> bool {
    target.split('?').next().is_some_and(is_path)
        && target.bytes().all(|b| b.is_ascii_graphic() && b != b'#')
}

fn is_destination_header(name: &str) -> bool {
    let taken = ["host", "content-length", "transfer-encoding", "connection"];
    is_header_name(name) && !taken.iter().any(|t| t.eq_ignore_ascii_case(name))
}

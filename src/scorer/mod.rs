//! The companion scorer's pure half: metrics text, endpoints, lease.

//! Shared-data records, contract version 1 (DESIGN 7; docs/shared-data.md).

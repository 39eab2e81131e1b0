//! The module that Envoy loads: what `plugin` exports, linked and optimised as a whole.

use selective_kv as _;

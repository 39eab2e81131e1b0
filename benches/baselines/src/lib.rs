//! What selective-kv is compared with, in one module; its plugin configuration is the name of one
//! [`Variant`]. Written as filters usually are: with the proxy-wasm SDK and serde_json.

pub mod raw_value;
pub mod round_trip;

// It needs a host, and a native program has none.
#[cfg(target_arch = "wasm32")]
#[allow(clippy::disallowed_methods)]
// The SDK's wrappers, as usual; the benches leave them no status to panic on.
mod filter;

/// What the module does with a request's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// Nothing.
    Noop,
    /// Copies each chunk into the module and drops it.
    Copy,
    /// The same without `content-length`, which whoever may edit a body that streams has to take away.
    CopyUnsized,
    /// Lets Envoy buffer the body, finds `kv_transfer_params` with a visitor and splices.
    RawValue,
    /// Lets Envoy buffer the body, parses it to a tree, and prints the tree.
    RoundTrip,
}

impl Variant {
    pub const ALL: [Self; 5] = [
        Self::Noop,
        Self::Copy,
        Self::CopyUnsized,
        Self::RawValue,
        Self::RoundTrip,
    ];

    /// As the plugin configuration has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noop => "noop",
            Self::Copy => "copy",
            Self::CopyUnsized => "copy_unsized",
            Self::RawValue => "raw_value",
            Self::RoundTrip => "round_trip",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variant| variant.name() == name)
    }
}

const PARAMS: &str = "kv_transfer_params";
const MAX_LOAD_TOKENS: &str = "max_load_tokens";

//! The optional bearer token: `tokenFile` of a configuration, `authorization` of a request.

use super::http::{Answer, plain};
use super::named;
use hyper::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Request, StatusCode};
use std::io;
use std::path::Path;

/// Longest bearer token (bytes).
const MAX_TOKEN: usize = 4096;

/// None admits everybody.
pub struct Token(Option<String>);

impl Token {
    pub async fn read(path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else {
            return Ok(Self(None));
        };
        let what = format!("tokenFile: {}", path.display());
        let text = tokio::fs::read_to_string(path)
            .await
            .map_err(|error| named(&what, &error))?;
        let token = text.trim();
        if token.is_empty()
            || token.len() > MAX_TOKEN
            || !token.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(io::Error::other(format!(
                "{what}: must hold one token of 1 to {MAX_TOKEN} visible ASCII characters"
            )));
        }
        Ok(Self(Some(token.to_owned())))
    }

    pub fn admits<B>(&self, request: &Request<B>) -> bool {
        let Some(token) = &self.0 else {
            return true;
        };
        let given = request
            .headers()
            .get(AUTHORIZATION)
            .map(HeaderValue::as_bytes)
            .unwrap_or_default();
        let given = match given.split_at_checked("Bearer ".len()) {
            Some((scheme, given)) if scheme.eq_ignore_ascii_case(b"Bearer ") => given,
            _ => return false,
        };
        same(given, token.as_bytes())
    }

    pub fn refusal() -> Answer {
        let mut answer = plain(StatusCode::UNAUTHORIZED, "a bearer token is needed");
        answer
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        answer
    }
}

/// Takes as long for every token of one length.
fn same(given: &[u8], token: &[u8]) -> bool {
    given.len() == token.len()
        && given
            .iter()
            .zip(token)
            .fold(0, |differs, (a, b)| differs | (a ^ b))
            == 0
}

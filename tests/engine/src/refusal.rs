//! What vLLM answers instead of serving, in its own shapes (testdata/engine/refusals.json; where
//! only the status is known, the message is ours).

use crate::json::{self, Value};
use serde_json::json;

#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub status: u16,
    pub body: serde_json::Value,
}

impl Refusal {
    fn error(status: u16, kind: &str, param: Option<&str>, message: &str) -> Self {
        Self {
            status,
            body: json!({"error": {"message": message, "type": kind, "param": param, "code": status}}),
        }
    }

    /// The request failed its schema: `loc` is `body.` and the path of the member.
    pub fn schema(kind: &str, loc: &str, message: &str, input: &Value) -> Self {
        let text = format!(
            "1 validation error:\n  {{'type': '{kind}', 'loc': '{loc}', 'msg': '{message}', 'input': {}}}",
            input.repr()
        );
        Self::error(400, "Bad Request", Some(loc), &text)
    }

    /// The request passed its schema and makes no sense.
    pub fn bad_request(message: &str) -> Self {
        Self::error(400, "BadRequestError", None, message)
    }

    pub fn not_json(error: &json::Error) -> Self {
        match error {
            json::Error::Syntax { position, message } => {
                let text = format!(
                    "1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{position}', 'msg': 'JSON decode error', 'input': {{}}, 'ctx': {{'error': {}}}}}",
                    Value::Str(message.clone()).repr()
                );
                Self::error(400, "Bad Request", Some(&format!("body.{position}")), &text)
            }
            json::Error::Unreadable => Self::error(
                400,
                "Bad Request",
                None,
                "There was an error parsing the body",
            ),
        }
    }

    pub fn media_type() -> Self {
        let text =
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
        Self::error(400, "Bad Request", None, text)
    }

    pub fn unknown_model(model: &str) -> Self {
        let text = format!("The model `{model}` does not exist.");
        Self::error(404, "NotFoundError", Some("model"), &text)
    }

    pub fn scale_out() -> Self {
        let text = "this endpoint needs --enable-scale-out";
        Self::error(403, "Forbidden", None, text)
    }

    pub fn internal(message: &str) -> Self {
        Self::error(500, "Internal Server Error", None, message)
    }

    pub fn not_found() -> Self {
        Self {
            status: 404,
            body: json!({"detail": "Not Found"}),
        }
    }

    pub fn method() -> Self {
        Self {
            status: 405,
            body: json!({"detail": "Method Not Allowed"}),
        }
    }
}

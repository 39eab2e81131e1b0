//! The text that Prometheus reads.

use std::fmt::{Display, Write};

/// Metrics of one program, whose names all begin alike.
pub struct Text {
    prefix: &'static str,
    out: String,
}

impl Text {
    pub fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            out: String::new(),
        }
    }

    /// Begins a family.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        let _ = writeln!(
            self.out,
            "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}"
        );
    }

    /// `labels` as they stand between the braces; nothing in them may need an escape.
    pub fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let prefix = self.prefix;
        let _ = if labels.is_empty() {
            writeln!(self.out, "{prefix}{name} {value}")
        } else {
            writeln!(self.out, "{prefix}{name}{{{labels}}} {value}")
        };
    }

    /// A family of one value.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.line(name, "", value);
    }

    /// A counter with one label.
    pub fn by(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.head(name, "counter", help);
        for (of, value) in values {
            self.line(name, &format!("{label}=\"{of}\""), value);
        }
    }

    pub fn finish(self) -> String {
        self.out
    }
}

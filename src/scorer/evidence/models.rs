//! Which model a request means, at one endpoint.
//!
//! Names are compared as vLLM compares them: byte by byte, case included. What an engine says of itself
//! counts before what is configured, and of one name's two meanings there the adapter's: vLLM looks for
//! an adapter first.

use super::EngineFacts;
use crate::scorer::config::EvidenceConfig;

/// What a request's `model` is at an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served<'a> {
    Base,
    /// A LoRA adapter, by the name that it has at the engine.
    Adapter(&'a str),
}

/// `model` is the request's; none or an empty one means the engine's first, which is its base model.
/// `None`: the endpoint does not serve it, as far as is known.
pub fn resolve<'a>(
    config: &'a EvidenceConfig,
    facts: &'a EngineFacts,
    model: Option<&'a str>,
) -> Option<Served<'a>> {
    let Some(asked) = model.filter(|name| !name.is_empty()) else {
        return Some(Served::Base);
    };
    // Once: an alias is what comes in, never what another alias stands for.
    let name = config.aliases.get(asked).map_or(asked, String::as_str);
    if facts.adapters.iter().any(|adapter| adapter == name) {
        return Some(Served::Adapter(name));
    }
    if facts.model.as_deref() == Some(name) || facts.aliases.iter().any(|alias| alias == name) {
        return Some(Served::Base);
    }
    if config.adapters.contains_key(name) {
        return Some(Served::Adapter(name));
    }
    (config.model.as_deref() == Some(name)).then_some(Served::Base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorer::evidence::tests::config;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|&text| text.to_owned()).collect()
    }

    /// An engine that serves `served` under these names, with these adapters.
    fn engine(model: Option<&str>, aliases: &[&str], adapters: &[&str]) -> EngineFacts {
        EngineFacts {
            model: model.map(str::to_owned),
            aliases: texts(aliases),
            adapters: texts(adapters),
            ..EngineFacts::default()
        }
    }

    #[test]
    fn a_name_is_what_the_engine_says_it_is() {
        let mut config = config();
        config.model = Some("configured".to_owned());
        for (alias, name) in [
            ("gpt-x", "org/base"),
            ("gpt-lora", "sql"),
            ("gpt-late", "late"),
            ("gpt-nothing", "nobody"),
            ("gpt-twice", "gpt-x"),
            // Shadows a name of the engine's.
            ("second", "sql"),
        ] {
            config.aliases.insert(alias.to_owned(), name.to_owned());
        }
        for adapter in ["late", "org/base"] {
            config.adapters.insert(adapter.to_owned(), None);
        }
        let known = engine(Some("org/base"), &["second", "third"], &["sql", "third"]);
        let unknown = engine(None, &[], &[]);
        use Served::{Adapter, Base};
        let table = [
            // The request's model, at an engine whose names are known, and at one that has said nothing.
            (None, Some(Base), Some(Base)),
            (Some(""), Some(Base), Some(Base)),
            (Some("org/base"), Some(Base), Some(Adapter("org/base"))),
            (Some("ORG/base"), None, None),
            (Some("org/base "), None, None),
            (Some("org"), None, None),
            (Some("sql"), Some(Adapter("sql")), None),
            (Some("SQL"), None, None),
            (Some("third"), Some(Adapter("third")), None),
            (Some("late"), Some(Adapter("late")), Some(Adapter("late"))),
            (Some("configured"), Some(Base), Some(Base)),
            (Some("Configured"), None, None),
            (Some("gpt-x"), Some(Base), Some(Adapter("org/base"))),
            (Some("GPT-X"), None, None),
            (Some("gpt-lora"), Some(Adapter("sql")), None),
            (
                Some("gpt-late"),
                Some(Adapter("late")),
                Some(Adapter("late")),
            ),
            (Some("gpt-nothing"), None, None),
            (Some("gpt-twice"), None, None),
            (Some("second"), Some(Adapter("sql")), None),
        ];
        for (model, at_known, at_unknown) in table {
            assert_eq!(resolve(&config, &known, model), at_known, "{model:?}");
            assert_eq!(resolve(&config, &unknown, model), at_unknown, "{model:?}");
        }
    }

    #[test]
    fn without_a_word_about_models_only_the_default_one_is_known() {
        let (config, facts) = (config(), engine(None, &[], &[]));
        assert_eq!(resolve(&config, &facts, None), Some(Served::Base));
        for name in ["", "m"] {
            let expected = name.is_empty().then_some(Served::Base);
            assert_eq!(resolve(&config, &facts, Some(name)), expected, "{name:?}");
        }
    }
}

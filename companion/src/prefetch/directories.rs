//! Which directories of the connector there are: the one that is configured, or those found below
//! `rootDir`, looked at again and again.

use super::config::{Config, SetSizes};
use super::connector::Connector;
use super::counts::Counts;
use super::layout::{CONFIG_DIGITS, Layout, Sizes, is_config_digest, safe_model};
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// Longest `config.json` (bytes): it names every layer of the model.
const MAX_CONFIG: u64 = 4 << 20;
/// Directories of one model that are promoted from; the newest count.
pub const MAX_LAYOUTS: usize = 8;
/// Names below `rootDir` that are looked at.
const MAX_NAMES: usize = 100_000;
/// Different warnings that are remembered, so that each is said once.
const MAX_SAID: usize = 1000;
const CONFIG_FILE: &str = "config.json";

/// A directory that is read from, and what its `config.json` says.
#[derive(Clone, Debug)]
pub struct Directory {
    pub layout: Arc<Layout>,
    /// None: there is none, or none that can be read.
    pub connector: Option<Connector>,
}

/// What tells that a file is still the same.
type Stamp = (u64, u64, Option<SystemTime>);

struct Found {
    stamp: Stamp,
    /// Digest in the name of the directory; of a file in `rootDir` itself there is none.
    named: Option<String>,
    connector: Option<Connector>,
}

pub struct Directories {
    root: PathBuf,
    model: String,
    digest: Option<String>,
    sizes: SetSizes,
    counts: Arc<Counts>,
    found: BTreeMap<PathBuf, Found>,
    current: Vec<Directory>,
    said: HashSet<String>,
}

impl Directories {
    pub fn new(config: &Config, counts: Arc<Counts>) -> Self {
        Self {
            root: config.root.clone(),
            model: config.model.clone(),
            digest: config.digest.clone(),
            sizes: config.sizes,
            counts,
            found: BTreeMap::new(),
            current: Vec::new(),
            said: HashSet::new(),
        }
    }

    /// Looks again. Returns what there is now if that is something else than before. Blocks while the
    /// file system does.
    pub fn look(&mut self) -> Option<Vec<Directory>> {
        match self.candidates() {
            Ok(candidates) => self.read(candidates),
            // What was known stays: a mount may be away for a moment.
            Err(error) => self.say(format!("rootDir: {}: {error}", self.root.display())),
        }
        let now = self.resolve();
        let same = now.len() == self.current.len()
            && now.iter().zip(&self.current).all(|(new, old)| {
                new.layout.digest == old.layout.digest
                    && new.layout.sizes == old.layout.sizes
                    && new.connector == old.connector
            });
        if same {
            return None;
        }
        for directory in &now {
            let layout = &directory.layout;
            tracing::info!(
                directory = %layout.base().display(),
                ranks = layout.sizes.ranks,
                groups = layout.sizes.groups,
                blocks_per_file = layout.sizes.blocks_per_file,
                config = directory.connector.is_some(),
                "files are looked for here"
            );
        }
        self.current.clone_from(&now);
        Some(now)
    }

    /// Every `config.json` that may be this model's, with its directory's digest.
    fn candidates(&self) -> io::Result<Vec<(PathBuf, Option<String>)>> {
        let mut candidates = vec![(self.root.join(CONFIG_FILE), None)];
        let prefix = format!("{}_", safe_model(&self.model));
        for entry in fs::read_dir(&self.root)?.take(MAX_NAMES) {
            let name = entry?.file_name();
            let digest = name.to_str().and_then(|name| name.strip_prefix(&prefix));
            if let Some(digest) = digest.filter(|digest| is_config_digest(digest)) {
                let file = self.root.join(&name).join(CONFIG_FILE);
                candidates.push((file, Some(digest.to_owned())));
            }
        }
        Ok(candidates)
    }

    fn read(&mut self, candidates: Vec<(PathBuf, Option<String>)>) {
        let mut before = std::mem::take(&mut self.found);
        for (path, named) in candidates {
            // Opening a pipe would wait for its writer.
            let Some(metadata) = fs::metadata(&path).ok().filter(fs::Metadata::is_file) else {
                continue;
            };
            let stamp = (metadata.len(), metadata.ino(), metadata.modified().ok());
            let found = match before.remove(&path) {
                Some(found) if found.stamp == stamp => found,
                _ => {
                    let connector = match load(&path) {
                        Ok(connector) if connector.model == self.model => Some(connector),
                        Ok(other) => {
                            self.say(format!(
                                "{}: it is of model_name {:?}, and modelName is {:?}",
                                path.display(),
                                other.model,
                                self.model
                            ));
                            None
                        }
                        Err(error) => {
                            self.say(format!("{}: {error}", path.display()));
                            None
                        }
                    };
                    Found {
                        stamp,
                        named,
                        connector,
                    }
                }
            };
            self.found.insert(path, found);
        }
    }

    fn resolve(&mut self) -> Vec<Directory> {
        let mut newest: Vec<(Option<SystemTime>, String, Connector)> = Vec::new();
        let mut say = Vec::new();
        for (path, found) in &self.found {
            let Some(connector) = &found.connector else {
                continue;
            };
            // The files are beside the directory that has the name, whatever its content says.
            let digest = found.named.as_ref().unwrap_or(&connector.digest);
            if *digest != connector.digest {
                say.push(format!(
                    "{}: its content has the digest {}: it was changed, or a connector of another version computes it otherwise; the directory's name counts",
                    path.display(),
                    connector.digest
                ));
            }
            if newest.iter().all(|(_, known, _)| known != digest) {
                newest.push((found.stamp.2, digest.clone(), connector.clone()));
            }
        }
        newest.sort_by(|(a, ..), (b, ..)| b.cmp(a));
        let directories = match &self.digest {
            Some(configured) => {
                let at = newest
                    .iter()
                    .position(|(_, digest, _)| digest == configured);
                let found = at.and_then(|at| newest.get(at));
                match (found, newest.first()) {
                    (None, Some(_)) => {
                        let there: Vec<&str> =
                            newest.iter().map(|(_, it, _)| it.as_str()).collect();
                        say.push(format!(
                            "digest: {configured}: no such directory of this model in rootDir, but {}: is it of an engine before its last change?",
                            there.join(", ")
                        ));
                    }
                    // Files of an engine before its last change stay, and so does their directory.
                    (Some((written, ..)), Some((last, newer, _))) if last > written => {
                        say.push(format!(
                            "digest: {configured}: {newer} is a newer directory of this model in rootDir: is the digest of an engine before its last change?"
                        ));
                    }
                    _ => {}
                }
                let connector = found.map(|(.., connector)| connector.clone());
                vec![self.directory(configured, connector, &mut say)]
            }
            None => {
                if newest.len() > MAX_LAYOUTS {
                    say.push(format!(
                        "rootDir: {} directories of this model: the {MAX_LAYOUTS} newest are read from",
                        newest.len()
                    ));
                }
                newest.truncate(MAX_LAYOUTS);
                if newest.is_empty() {
                    say.push(format!(
                        "rootDir: {}: no {}_<{CONFIG_DIGITS} digits>/{CONFIG_FILE} yet: nothing is read until there is one",
                        self.root.display(),
                        safe_model(&self.model)
                    ));
                }
                newest
                    .into_iter()
                    .map(|(_, digest, connector)| {
                        self.directory(&digest, Some(connector), &mut say)
                    })
                    .collect()
            }
        };
        for line in say {
            self.say(line);
        }
        directories
    }

    fn directory(
        &self,
        digest: &str,
        connector: Option<Connector>,
        say: &mut Vec<String>,
    ) -> Directory {
        let told = connector.as_ref().map(|connector| connector.sizes);
        let mut pick = |field: &str, set: Option<u32>, told: Option<u32>| match (set, told) {
            (Some(set), Some(told)) if set != told => {
                say.push(format!(
                    "{field}: {set}: the {CONFIG_FILE} of {digest} says {told}; the agent's configuration counts"
                ));
                set
            }
            (set, told) => set.or(told).unwrap_or(1),
        };
        let ranks = self
            .sizes
            .ranks()
            .and_then(|ranks| u32::try_from(ranks).ok());
        let sizes = Sizes {
            ranks: pick(
                "tpSize · ppSize · pcpSize · dcpSize",
                ranks,
                told.map(|told| told.ranks),
            ),
            groups: pick(
                "kvCacheGroupCount",
                self.sizes.groups,
                told.map(|told| told.groups),
            ),
            blocks_per_file: pick(
                "gpuBlocksPerFile",
                self.sizes.blocks_per_file,
                told.map(|told| told.blocks_per_file),
            ),
        };
        let counts = self.counts.digest(digest);
        Directory {
            layout: Arc::new(Layout::new(&self.root, &self.model, digest, sizes, counts)),
            connector,
        }
    }

    /// Once, as long as the program runs.
    fn say(&mut self, line: String) {
        if self.said.len() < MAX_SAID && !self.said.contains(&line) {
            tracing::warn!("{line}");
            self.said.insert(line);
        }
    }
}

fn load(path: &Path) -> Result<Connector, String> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_CONFIG + 1).read_to_end(&mut text))
        .map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_CONFIG {
        return Err(format!("longer than {MAX_CONFIG} bytes"));
    }
    Connector::parse(&text)
}

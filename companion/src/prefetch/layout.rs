//! Where llm-d's fs-connector and vLLM's own `fs` tier put a block's files:
//! `<rootDir>/<model>_<digest>_r<rank>/<hhh>/<hh>_g<group>/<block digest>.bin`.

use super::counts::DigestCounts;
use super::digest::Digest;
use super::message::Block;
use super::pool::Job;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Hexadecimal digits of a digest of the connector's configuration.
pub const CONFIG_DIGITS: usize = 12;
/// Files of one block: ranks times groups.
pub const MAX_FAN_OUT: u64 = 4096;

/// The sizes that decide which files a block has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Worker ranks: tp · pp · pcp · dcp.
    pub ranks: u32,
    pub groups: u32,
    /// GPU blocks in one file, which has the name of the last.
    pub blocks_per_file: u32,
}

/// One directory of the connector.
#[derive(Debug)]
pub struct Layout {
    pub digest: Arc<str>,
    base: OsString,
    pub sizes: Sizes,
    pub counts: Arc<DigestCounts>,
}

/// A model's name as part of a directory's.
pub fn safe_model(name: &str) -> String {
    name.replace('/', "_")
}

/// Of a configuration, not of a block.
pub fn is_config_digest(text: &str) -> bool {
    text.len() == CONFIG_DIGITS
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl Layout {
    pub fn new(
        root: &Path,
        model: &str,
        digest: &str,
        sizes: Sizes,
        counts: Arc<DigestCounts>,
    ) -> Self {
        let base = root.join(format!("{}_{digest}", safe_model(model)));
        Self {
            digest: digest.into(),
            base: base.into_os_string(),
            sizes,
            counts,
        }
    }

    /// Where `config.json` is; ranks have directories of their own beside it.
    pub fn base(&self) -> &Path {
        Path::new(&self.base)
    }

    pub fn path(&self, block: Digest, rank: u32, group: u32) -> PathBuf {
        self.path_of(&block.to_string(), rank, group)
    }

    fn path_of(&self, hash: &str, rank: u32, group: u32) -> PathBuf {
        let (first, rest) = hash.split_at_checked(3).unwrap_or((hash, ""));
        let second = rest.get(..2).unwrap_or(rest);
        let mut path = self.base.clone();
        let _ = write!(path, "_r{rank}/{first}/{second}_g{group}/{hash}.bin");
        path.into()
    }

    /// How many [`Self::files`] are.
    pub fn count(&self, blocks: &[Block]) -> u64 {
        let named = blocks
            .iter()
            .filter(|block| ends_file(block, self.sizes.blocks_per_file))
            .count() as u64;
        named * u64::from(self.sizes.ranks) * u64::from(self.sizes.groups)
    }

    /// The files of these blocks, in the order in which an engine needs them. Blocks that end no file
    /// have none of their own.
    pub fn files<'a>(self: &'a Arc<Self>, blocks: &'a [Block]) -> impl Iterator<Item = Job> + 'a {
        let Sizes {
            ranks,
            groups,
            blocks_per_file,
        } = self.sizes;
        blocks
            .iter()
            .filter(move |block| ends_file(block, blocks_per_file))
            .flat_map(move |block| {
                (0..ranks).flat_map(move |rank| {
                    (0..groups).map(move |group| Job {
                        layout: self.clone(),
                        block: block.digest,
                        rank,
                        group,
                    })
                })
            })
    }
}

fn ends_file(block: &Block, blocks_per_file: u32) -> bool {
    (u64::from(block.index) + 1).is_multiple_of(u64::from(blocks_per_file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(root: &str, model: &str, digest: &str, sizes: [u32; 3]) -> Arc<Layout> {
        let [ranks, groups, blocks_per_file] = sizes;
        let sizes = Sizes {
            ranks,
            groups,
            blocks_per_file,
        };
        Arc::new(Layout::new(
            Path::new(root),
            model,
            digest,
            sizes,
            Arc::default(),
        ))
    }

    /// The paths that llm-d's own tests of its router have.
    #[test]
    fn paths_as_the_connector_makes_them() {
        let layout_of = |model, digest| layout("/var/kv", model, digest, [1, 1, 1]);
        let m = layout_of("m", "abcdef123456");
        for (hash, rank, group, expected) in [
            (
                "12345678aabbccdd",
                2,
                0,
                "/var/kv/m_abcdef123456_r2/123/45_g0/12345678aabbccdd.bin",
            ),
            (
                "abcdef0123456789",
                0,
                3,
                "/var/kv/m_abcdef123456_r0/abc/de_g3/abcdef0123456789.bin",
            ),
        ] {
            assert_eq!(m.path_of(hash, rank, group), Path::new(expected));
        }
        assert_eq!(
            layout_of("Qwen/Qwen3-8B", "07d7b166f256").base(),
            Path::new("/var/kv/Qwen_Qwen3-8B_07d7b166f256")
        );
        let whole = "7235f837d217eb40003197e4e27040edecc66c7d7fe49f86f5b600d19aef97ac";
        assert_eq!(
            m.path(Digest::parse(whole).unwrap(), 0, 0),
            PathBuf::from(format!("/var/kv/m_abcdef123456_r0/723/5f_g0/{whole}.bin"))
        );
    }

    /// given: 17 blocks, `blocks_per_file`; then: the blocks whose files there are
    #[test]
    fn every_nth_block_names_a_file() {
        let digest = |n: u32| Digest::parse(&format!("{n:064x}")).unwrap();
        let blocks: Vec<Block> = (0..17)
            .map(|index| Block {
                index,
                digest: digest(index),
            })
            .collect();
        let named = |per_file, blocks: &[Block]| -> Vec<Digest> {
            layout("/", "m", "abcdef123456", [1, 1, per_file])
                .files(blocks)
                .map(|job| job.block)
                .collect()
        };
        let all: Vec<Digest> = (0..17).map(digest).collect();
        assert_eq!(named(1, &blocks), all);
        assert_eq!(named(8, &blocks), [digest(7), digest(15)]);
        assert_eq!(named(17, &blocks), [digest(16)]);
        assert_eq!(named(18, &blocks), []);
        // Only some blocks were sent: the places in the prompt still count.
        assert_eq!(named(8, &blocks[9..]), [digest(15)]);
        let last = Block {
            index: u32::MAX,
            digest: digest(1),
        };
        assert_eq!(named(16, &[last]), [digest(1)]);
    }

    #[test]
    fn a_block_has_a_file_for_each_rank_and_group() {
        let block = Block {
            index: 0,
            digest: Digest::parse(&"a".repeat(64)).unwrap(),
        };
        let layout = layout("/", "m", "abcdef123456", [3, 2, 1]);
        let files: Vec<(u32, u32)> = layout
            .files(&[block])
            .map(|job| (job.rank, job.group))
            .collect();
        assert_eq!(layout.count(&[block]), 6);
        assert_eq!(files, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
    }
}

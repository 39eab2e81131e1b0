//! Reading the head of a file, which makes the file system bring the whole of it back from a colder
//! store, unless it is here already.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// `st_blocks` counts these, whatever the file system's own block is (POSIX leaves it open, Linux does not).
const STAT_BLOCK: u64 = 512;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// So many bytes were read.
    Read(u64),
    Resident,
    Missing,
}

/// How much of a file is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Bytes of one read.
    pub block_size: usize,
    pub block_count: u32,
}

impl Head {
    pub fn bytes(self) -> u64 {
        self.block_size as u64 * u64::from(self.block_count)
    }
}

/// Promotes files; tests put a slow one in its place.
pub trait Promote: Send + Sync + 'static {
    /// May block for as long as the file system takes. `buffer` has room for one read.
    fn promote(&self, path: &Path, head: Head, buffer: &mut [u8]) -> io::Result<Outcome>;
}

/// Of the file system.
pub struct ReadHead;

impl Promote for ReadHead {
    fn promote(&self, path: &Path, head: Head, buffer: &mut [u8]) -> io::Result<Outcome> {
        let found = match fs::symlink_metadata(path) {
            Ok(found) => found,
            Err(error) if is_missing(&error) => return Ok(Outcome::Missing),
            Err(error) => return Err(error),
        };
        // Opening a pipe would wait for its writer; a link may lead anywhere.
        if !found.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        if is_resident(found.len(), found.blocks(), head.bytes()) {
            return Ok(Outcome::Resident);
        }
        match File::open(path) {
            Ok(file) => Ok(Outcome::Read(read(&file, head, buffer)?)),
            Err(error) if is_missing(&error) => Ok(Outcome::Missing),
            Err(error) => Err(error),
        }
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// A file that fits one head is here if all of it is; of a longer one more than a head is (a stub may
/// keep its beginning).
fn is_resident(len: u64, stat_blocks: u64, head: u64) -> bool {
    let allocated = stat_blocks.saturating_mul(STAT_BLOCK);
    if len <= head {
        allocated >= len
    } else {
        allocated > head
    }
}

fn read(file: &File, head: Head, buffer: &mut [u8]) -> io::Result<u64> {
    let mut done = 0;
    while done < head.bytes() {
        let wanted = usize::try_from(head.bytes() - done).unwrap_or(usize::MAX);
        let wanted = wanted.min(buffer.len());
        let Some(room) = buffer.get_mut(..wanted) else {
            break;
        };
        match file.read_at(room, done) {
            Ok(0) => break,
            Ok(count) => done += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// given: logical size, `st_blocks`, bytes of a head
    #[test]
    fn residency_by_allocated_blocks() {
        for (len, blocks, head, resident) in [
            // An empty file has nothing to bring back.
            (0, 0, 1000, true),
            // It fits a head: all of it must be here.
            (1000, 0, 1000, false),
            (1000, 1, 1000, false),
            (1000, 2, 1000, true),
            (512, 1, 1000, true),
            // It does not: more than a head must be here.
            (5000, 0, 1024, false),
            (5000, 2, 1024, false),
            (5000, 3, 1024, true),
            (u64::MAX, u64::MAX, 1024, true),
        ] {
            assert_eq!(
                is_resident(len, blocks, head),
                resident,
                "{len} {blocks} {head}"
            );
        }
    }
}

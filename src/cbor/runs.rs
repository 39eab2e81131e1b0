//! Runs of evidence, `[blocks, [tier, …]]`: a record has hundreds, most of them with one of a few lists of
//! tiers, and comparing is quicker than looking through.

/// The last few lists that were looked through.
#[derive(Default)]
pub struct Runs {
    known: Vec<List>,
    /// The next one to be replaced.
    oldest: usize,
}

/// A list of at most 32 bytes.
struct List {
    /// Its bytes, and which of them count.
    words: [u64; 4],
    masks: [u64; 4],
    len: usize,
}

/// Bytes of the longest run that is known.
const WINDOW: usize = Runs::LONGEST + 4;

/// A run whose list is known.
pub struct Known {
    pub blocks: u16,
    /// The list's place, as [`Runs::learn`] said it.
    pub list: usize,
    /// Bytes of the run.
    pub len: usize,
}

impl Runs {
    pub const KNOWN: usize = 4;
    const LONGEST: usize = 32;

    /// Whether it is worth it to ask for a run here.
    #[inline]
    pub fn may_begin(bytes: &[u8]) -> bool {
        matches!(
            *bytes,
            [0x82, 0..=0x17, 0x80..=0x9f, ..]
                | [0x82, 0x18, _, 0x80..=0x9f, ..]
                | [0x82, 0x19, _, _, 0x80..=0x9f, ..]
        )
    }

    /// The run at the beginning of the bytes.
    pub fn known(&self, bytes: &[u8]) -> Option<Known> {
        let (blocks, behind, words) = match bytes.first_chunk() {
            Some(window) => head(window)?,
            None => head(&padded(bytes)?)?,
        };
        let list = self.known.iter().position(|list| list.begins(&words))?;
        let len = self.known.get(list)?.len.checked_add(behind)?;
        (len <= bytes.len()).then_some(Known { blocks, list, len })
    }

    /// Passes runs, at most so many, up to one whose list is not known: what follows, and how many there
    /// were. `None` for none.
    pub fn pass<'a>(&self, mut bytes: &'a [u8], most: usize) -> Option<(&'a [u8], usize)> {
        let mut passed = 0_usize;
        // Neighbours hardly ever have the same list, and often there are two that take turns.
        let (mut last, mut before) = (self.known.first()?, self.known.last()?);
        while passed < most
            && let Some(window) = bytes.first_chunk()
            && let Some((_, behind, words)) = head(window)
        {
            if before.begins(&words) {
                std::mem::swap(&mut last, &mut before);
            } else if let Some(list) = self.known.iter().find(|list| list.begins(&words)) {
                (last, before) = (list, last);
            } else {
                break;
            }
            bytes = bytes.get(behind..)?.get(last.len..)?;
            passed = passed.saturating_add(1);
        }
        while passed < most
            && bytes.len() < WINDOW
            && let Some(run) = self.known(bytes)
        {
            bytes = bytes.get(run.len..)?;
            passed = passed.saturating_add(1);
        }
        (passed > 0).then_some((bytes, passed))
    }

    /// Keeps a well-formed list: its place, unless it is too long.
    pub fn learn(&mut self, list: &[u8]) -> Option<usize> {
        if list.len() > Self::LONGEST {
            return None;
        }
        let (mut words, mut masks) = ([0; 4], [0; 4]);
        for ((word, mask), bytes) in words.iter_mut().zip(&mut masks).zip(list.chunks(8)) {
            for byte in bytes.iter().rev() {
                *word = (*word << 8) | u64::from(*byte);
                *mask = (*mask << 8) | 0xff;
            }
        }
        let len = list.len();
        let list = List { words, masks, len };
        let place = self.oldest;
        self.oldest = place.wrapping_add(1) % Self::KNOWN;
        match self.known.get_mut(place) {
            Some(oldest) => *oldest = list,
            None => {
                self.known.reserve_exact(Self::KNOWN.saturating_sub(place));
                self.known.push(list);
            }
        }
        Some(place)
    }
}

impl List {
    #[inline]
    fn begins(&self, words: &[u64; 4]) -> bool {
        let [a, b, c, d] = *words;
        let [wa, wb, wc, wd] = self.words;
        let [ma, mb, mc, md] = self.masks;
        ((a & ma) ^ wa) | ((b & mb) ^ wb) | ((c & mc) ^ wc) | ((d & md) ^ wd) == 0
    }
}

/// A run's blocks, where its list begins, and the beginning of that.
#[inline]
fn head(window: &[u8; WINDOW]) -> Option<(u16, usize, [u64; 4])> {
    let [0x82, first, high, low, ..] = *window else {
        return None;
    };
    let (blocks, behind) = match first {
        0..=0x17 => (u16::from(first), 2),
        0x18 => (u16::from(high), 3),
        0x19 => (u16::from_be_bytes([high, low]), 4),
        _ => return None,
    };
    Some((blocks, behind, words(window.get(behind..)?.first_chunk()?)))
}

/// Near the end of a record.
#[cold]
fn padded(bytes: &[u8]) -> Option<[u8; WINDOW]> {
    let mut window = [0; WINDOW];
    window.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(window)
}

#[inline]
fn words(bytes: &[u8; Runs::LONGEST]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

//! Bytes that arrived, aligned for every element type.

/// Bytes in memory that is aligned to 8 bytes, so that a tensor can own them without a copy.
#[derive(Clone, Default, PartialEq, Eq, derive_more::Debug)]
#[debug("Buffer({length} bytes)")]
pub struct Buffer {
    /// The bytes in the order of memory; the last word is padded with zeros.
    words: Vec<u64>,
    length: usize,
}

/// The number of bytes of a word.
const WORD: usize = size_of::<u64>();

impl Buffer {
    /// Reserves memory for `bytes` bytes, without writing to it.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            words: Vec::with_capacity(bytes.div_ceil(WORD)),
            length: 0,
        }
    }

    /// Appends bytes.
    pub fn extend(&mut self, mut bytes: &[u8]) {
        let used = self.length % WORD;
        self.length += bytes.len();
        if used > 0
            && let Some(last) = self.words.last_mut()
        {
            let (now, later) = bytes.split_at(bytes.len().min(WORD - used));
            bytemuck::bytes_of_mut(last)[used..used + now.len()].copy_from_slice(now);
            bytes = later;
        }
        let (words, rest) = bytes.as_chunks::<WORD>();
        let words = words.iter().map(|word| u64::from_ne_bytes(*word));
        self.words.extend(words);
        if !rest.is_empty() {
            let mut word = [0; WORD];
            word[..rest.len()].copy_from_slice(rest);
            self.words.push(u64::from_ne_bytes(word));
        }
    }

    /// Copies several buffers to one.
    pub fn joined(parts: &[impl AsRef<[u8]>]) -> Self {
        let bytes = parts.iter().map(|part| part.as_ref().len());
        let mut whole = Self::with_capacity(bytes.sum());
        parts.iter().for_each(|part| whole.extend(part.as_ref()));
        whole
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the words in the order of memory. The last is padded with zeros to 8 bytes.
    pub fn into_words(self) -> Vec<u64> {
        self.words
    }

    /// Copies the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.as_ref().to_vec()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        Self::joined(&[bytes])
    }
}

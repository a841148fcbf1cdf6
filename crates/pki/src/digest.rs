//! SHA-256 by ring, whose assembler is about twice as fast as portable code on processors without instructions for it. A restore
//! reads every byte several times.

use ring::digest::{Context, SHA256, digest};

/// A digest that is fed in pieces.
#[derive(Clone)]
pub struct Sha256(Context);

pub const SHA256_BYTES: usize = 32;

impl Sha256 {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Sha256(Context::new(&SHA256))
    }

    pub fn update(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.update(bytes.as_ref());
    }

    pub fn finalize(self) -> [u8; SHA256_BYTES] {
        sized(self.0.finish().as_ref())
    }

    /// Of one piece.
    pub fn digest(bytes: impl AsRef<[u8]>) -> [u8; SHA256_BYTES] {
        sized(digest(&SHA256, bytes.as_ref()).as_ref())
    }
}

fn sized(digest: &[u8]) -> [u8; SHA256_BYTES] {
    digest.try_into().expect("a SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_core::text::hex;

    #[test]
    fn pieces_and_the_whole_have_the_published_digest() {
        const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let mut pieces = Sha256::new();
        pieces.update("a");
        pieces.clone().update("x");
        pieces.update(b"bc");
        assert_eq!(hex(&pieces.finalize()), ABC);
        assert_eq!(hex(&Sha256::digest("abc")), ABC);
    }
}

//! Random values for tokens, nonces and serial numbers, from the operating system. Nothing here can work without
//! randomness, so a failure panics instead of adding an error to every signature.

use quorate_core::text::hex;
use ring::rand::{SecureRandom, SystemRandom};

use crate::Secret;

/// A token of 256 random bits in hexadecimal: safe in URLs, files and environment variables.
pub fn random_token() -> Secret {
    Secret::new(random_hex(32))
}

/// `bytes` random bytes, written as twice as many hexadecimal digits.
pub fn random_hex(bytes: usize) -> String {
    let mut buffer = vec![0; bytes];
    fill(&mut buffer);
    hex(&buffer)
}

/// A positive serial number of 126 random bits: no counter to keep, and none that can be guessed.
pub(crate) fn serial_number() -> [u8; 16] {
    let mut serial = [0; 16];
    fill(&mut serial);
    serial[0] = serial[0] & 0x7f | 0x40;
    serial
}

fn fill(buffer: &mut [u8]) {
    SystemRandom::new().fill(buffer).expect("the operating system gives no random bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_plain_and_different() {
        let (one, other) = (random_token(), random_token());
        assert_ne!(one, other);
        assert_eq!(one.expose().len(), 64);
        assert!(one.expose().chars().all(|c| c.is_ascii_hexdigit()));
        assert_eq!(random_hex(0), "");
    }

    #[test]
    fn serial_numbers_are_positive_and_of_full_length() {
        for _ in 0..200 {
            assert!((0x40..0x80).contains(&serial_number()[0]));
        }
    }
}

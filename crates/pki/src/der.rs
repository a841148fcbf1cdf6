//! The few DER functions that the libraries lack: splits a structure into its elements and joins them again. It looks at
//! tags and lengths only, and is used on keys and on certificates that quorate created.

pub(crate) const INTEGER_ZERO: &[u8] = &[0x02, 0x01, 0x00];
pub(crate) const NULL: &[u8] = &[0x05, 0x00];
pub(crate) const RSA_ENCRYPTION: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
pub(crate) const EC_PUBLIC_KEY: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
pub(crate) const ED25519: &[u8] = &[0x06, 0x03, 0x2b, 0x65, 0x70];

pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const SEQUENCE: u8 = 0x30;
/// The explicit tag `[0]`.
pub(crate) const CONTEXT_0: u8 = 0xa0;

/// One element of this tag around these parts.
pub(crate) fn wrap(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut der = vec![tag];
    if content.len() < 0x80 {
        der.push(content.len() as u8);
    } else {
        let length = content.len().to_be_bytes();
        let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
        der.push(0x80 | length.len() as u8);
        der.extend_from_slice(length);
    }
    der.extend(content);
    der
}

/// The elements inside the first element of `der`, each with its tag and length; none where `der` is malformed.
pub(crate) fn inner(der: &[u8]) -> Option<Vec<&[u8]>> {
    let mut rest = content(der)?;
    let mut elements = Vec::new();
    while !rest.is_empty() {
        let (element, after) = rest.split_at(whole_length(rest)?);
        elements.push(element);
        rest = after;
    }
    Some(elements)
}

/// What is inside the first element of `der`, as it stands.
pub(crate) fn content(der: &[u8]) -> Option<&[u8]> {
    let (header, length) = header_and_length(der)?;
    der.get(header..header.checked_add(length)?)
}

fn whole_length(der: &[u8]) -> Option<usize> {
    let (header, length) = header_and_length(der)?;
    header.checked_add(length).filter(|whole| *whole <= der.len())
}

fn header_and_length(der: &[u8]) -> Option<(usize, usize)> {
    let first = usize::from(*der.get(1)?);
    if first < 0x80 {
        return Some((2, first));
    }
    let digits = der.get(2..2 + (first & 0x7f))?;
    if digits.is_empty() || digits.len() > 4 {
        return None;
    }
    Some((2 + digits.len(), digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_content_unwraps_at_every_size_of_the_length_field() {
        for size in [0, 1, 127, 128, 255, 256, 65535, 65536] {
            let text = wrap(OCTET_STRING, &[&vec![7; size]]);
            assert_eq!(content(&text).unwrap().len(), size);
            let pair = wrap(SEQUENCE, &[INTEGER_ZERO, &text]);
            assert_eq!(inner(&pair).unwrap(), [INTEGER_ZERO, &text[..]]);
        }
    }

    #[test]
    fn malformed_input_gives_nothing() {
        for der in [&[][..], &[0x30], &[0x30, 5, 1], &[0x30, 0x80], &[0x30, 0x85, 1, 1, 1, 1, 1], &[0x30, 2, 4, 9]] {
            assert_eq!(inner(der), None, "{der:?}");
        }
    }
}

//! Divides the range of a VPC that quorate creates into eight parts of equal size. The letter of a zone selects its part, so neither the
//! order of zones nor an additional zone moves any of them. The last part is for a NAT gateway.

use std::net::IpAddr;

use crate::spec::AddressRange;

/// AWS takes ranges from 16 to 28 bits, for VPCs as for subnets.
pub(super) const LARGEST: u8 = 16;
const SMALLEST: u8 = 28;
/// The parts are numbered with so many bits.
const BITS: u8 = 3;
/// The longest prefix whose parts AWS takes.
pub(super) const LONGEST: u8 = SMALLEST - BITS;
/// Of zones, by their last letter.
pub(super) const LETTERS: [char; 7] = ['a', 'b', 'c', 'd', 'e', 'f', 'g'];
/// AWS keeps the first four addresses of a subnet and the last one.
const KEPT_FIRST: u32 = 4;
pub(super) const KEPT: u32 = KEPT_FIRST + 1;
/// How many zones are used unless the spec names them: one failure of a zone leaves a majority.
pub const USED_ZONES: usize = 3;

/// The parts of a VPC's range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    first: u32,
    /// Of each part.
    prefix: u8,
}

impl Layout {
    /// None: AWS has no such VPC, or no subnets that are so small.
    pub fn of(range: &AddressRange) -> Option<Self> {
        match range.address {
            IpAddr::V4(first) if (LARGEST..=LONGEST).contains(&range.prefix) => {
                Some(Layout { first: first.to_bits(), prefix: range.prefix + BITS })
            }
            _ => None,
        }
    }

    fn part(&self, number: usize) -> Option<AddressRange> {
        let number = u32::try_from(number).ok()?;
        let first = self.first + (number << (32 - u32::from(self.prefix)));
        Some(AddressRange { address: IpAddr::from(first.to_be_bytes()), prefix: self.prefix })
    }

    /// The subnet of a zone. None: its name does not end with one of the letters.
    pub fn subnet(&self, zone: &str) -> Option<AddressRange> {
        self.part(LETTERS.iter().position(|letter| zone.ends_with(*letter))?)
    }

    /// The subnet of the NAT gateway.
    pub fn gateways(&self) -> Option<AddressRange> {
        self.part(LETTERS.len())
    }

    /// How many machines a subnet has room for.
    pub(super) fn room(&self) -> u32 {
        (1 << (32 - u32::from(self.prefix))) - KEPT
    }

    /// The letter of the zone that an address is in.
    pub(super) fn letter(&self, address: IpAddr) -> Option<char> {
        let is_there = |number: usize| self.part(number).is_some_and(|part| part.contains(address));
        LETTERS.iter().enumerate().find(|(number, _)| is_there(*number)).map(|(_, letter)| *letter)
    }
}

/// Whether AWS keeps an address of a subnet for itself.
pub fn is_reserved(subnet: &AddressRange, address: IpAddr) -> bool {
    let (IpAddr::V4(address), IpAddr::V4(first)) = (address, subnet.address) else { return false };
    let size = 1_u64 << (32 - u32::from(subnet.prefix.min(32)));
    let place = u64::from(address.to_bits().wrapping_sub(first.to_bits()));
    place < u64::from(KEPT_FIRST) || place + 1 == size
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddressRange {
        text.parse().unwrap()
    }

    #[test]
    fn zones_have_the_part_of_their_letter() {
        let layout = Layout::of(&range("10.99.0.0/16")).unwrap();
        let subnet = |zone: &str| layout.subnet(zone).map(|subnet| subnet.to_string());
        assert_eq!(subnet("eu-west-2a").as_deref(), Some("10.99.0.0/19"));
        assert_eq!(subnet("eu-west-2c").as_deref(), Some("10.99.64.0/19"));
        assert_eq!(subnet("us-east-1x"), None);
        assert_eq!(layout.gateways(), Some(range("10.99.224.0/19")));
        assert_eq!(layout.room(), 8187);
        let letter = |text: &str| layout.letter(text.parse().unwrap());
        assert_eq!((letter("10.99.40.7"), letter("10.99.230.1"), letter("10.1.0.9")), (Some('b'), None, None));
    }

    #[test]
    fn ranges_that_aws_does_not_accept_have_no_layout() {
        for (text, is_one) in
            [("10.0.0.0/25", true), ("10.0.0.0/26", false), ("10.0.0.0/15", false), ("fd00::/20", false)]
        {
            assert_eq!(Layout::of(&range(text)).is_some(), is_one, "{text}");
        }
    }

    #[test]
    fn addresses_that_aws_keeps_are_known() {
        let subnet = range("10.0.1.128/25");
        let kept = |text: &str| is_reserved(&subnet, text.parse().unwrap());
        assert!(kept("10.0.1.128") && kept("10.0.1.131") && kept("10.0.1.255"));
        assert!(!kept("10.0.1.132") && !kept("10.0.1.254"));
    }
}

//! Frames: data on a line, as bytes without a zero, ended by one.

/// The most bytes of a stream in one frame.
pub(super) const PAYLOAD: usize = 4096;
/// Number of the stream, kind, and length of what follows.
const HEAD: usize = 8 + 1 + 2;
/// Longer than any frame can be: bytes that continue this long without a zero are not a frame.
pub(super) const LONGEST: usize = HEAD + PAYLOAD + (HEAD + PAYLOAD) / 254 + 2;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    pub(super) stream: u64,
    pub(super) what: What,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// Somebody wants to speak.
    Open,
    /// And is heard.
    Accept,
    Data(Vec<u8>),
    /// This many bytes were read, so as many more may be sent.
    Taken(u32),
    /// Nothing more comes from this side.
    End,
    /// The stream is gone, or was never known.
    Gone,
}

impl Frame {
    /// With the zero at its end.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, payload): (u8, Vec<u8>) = match &self.what {
            What::Open => (0, Vec::new()),
            What::Accept => (1, Vec::new()),
            What::Data(bytes) => (2, bytes.clone()),
            What::Taken(count) => (3, count.to_be_bytes().to_vec()),
            What::End => (4, Vec::new()),
            What::Gone => (5, Vec::new()),
        };
        let mut plain = Vec::with_capacity(HEAD + payload.len());
        plain.extend(self.stream.to_be_bytes());
        plain.push(kind);
        plain.extend((payload.len() as u16).to_be_bytes());
        plain.extend(payload);
        stuff(&plain)
    }

    /// Parses the bytes between two zeros. None: not a complete frame.
    pub(super) fn decode(stuffed: &[u8]) -> Option<Frame> {
        let plain = unstuff(stuffed)?;
        let (head, payload) = plain.split_at_checked(HEAD)?;
        let stream = u64::from_be_bytes(head[..8].try_into().ok()?);
        let length = u16::from_be_bytes(head[9..].try_into().ok()?);
        if usize::from(length) != payload.len() || payload.len() > PAYLOAD {
            return None;
        }
        let what = match (head[8], payload) {
            (0, []) => What::Open,
            (1, []) => What::Accept,
            // An empty frame uses no window, so any number of them would have to be kept.
            (2, bytes @ [_, ..]) => What::Data(bytes.to_vec()),
            (3, count) => What::Taken(u32::from_be_bytes(count.try_into().ok()?)),
            (4, []) => What::End,
            (5, []) => What::Gone,
            _ => return None,
        };
        Some(Frame { stream, what })
    }
}

/// COBS: each block is headed by its length, counting the head; a block shorter than the longest stands for a zero after it.
fn stuff(plain: &[u8]) -> Vec<u8> {
    let mut out = vec![0];
    let mut head = 0;
    for byte in plain {
        if *byte != 0 {
            out.push(*byte);
        }
        if *byte == 0 || out.len() - head == 255 {
            out[head] = (out.len() - head) as u8;
            head = out.len();
            out.push(0);
        }
    }
    out[head] = (out.len() - head) as u8;
    out.push(0);
    out
}

fn unstuff(stuffed: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(stuffed.len());
    let mut rest = stuffed;
    while let [head, others @ ..] = rest {
        let length = usize::from(*head).checked_sub(1)?;
        let (block, after) = others.split_at_checked(length)?;
        plain.extend(block);
        if *head < 255 && !after.is_empty() {
            plain.push(0);
        }
        rest = after;
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_holds_no_zero_but_its_last_byte_and_comes_back() {
        let payloads = [1, 2, 253, 254, 255, 256, 508, 509, PAYLOAD].map(|length| {
            [vec![0; length], vec![7; length], (0..length).map(|at| (at % 256) as u8).collect::<Vec<u8>>()]
        });
        for payload in payloads.into_iter().flatten() {
            let frame = Frame { stream: 0x0100_0000_00ff_0000, what: What::Data(payload) };
            let bytes = frame.encode();
            let (last, stuffed) = bytes.split_last().unwrap();
            assert_eq!(*last, 0);
            assert!(!stuffed.contains(&0) && bytes.len() <= LONGEST, "{} bytes", bytes.len());
            assert_eq!(Frame::decode(stuffed), Some(frame));
        }
        for what in [What::Open, What::Accept, What::Taken(0), What::Taken(u32::MAX), What::End, What::Gone] {
            let frame = Frame { stream: u64::MAX, what };
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes[..bytes.len() - 1]), Some(frame));
        }
    }

    #[test]
    fn data_without_bytes_is_no_frame() {
        let bytes = Frame { stream: 9, what: What::Data(Vec::new()) }.encode();
        assert_eq!(Frame::decode(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn part_of_a_frame_is_none() {
        let frame = Frame { stream: 9, what: What::Data((0..=255).collect()) };
        let bytes = frame.encode();
        let stuffed = &bytes[..bytes.len() - 1];
        for cut in 0..stuffed.len() {
            assert_eq!(Frame::decode(&stuffed[..cut]), None, "cut at {cut}");
        }
    }

    mod fuzz {
        use super::*;

        /// What is parsed as a frame is one: written again, it is the same.
        #[test]
        fn frames() {
            let frame = |what| Frame { stream: 7, what }.encode();
            let samples = [
                frame(What::Open),
                frame(What::Accept),
                frame(What::Data((0..=255).cycle().take(700).collect())),
                frame(What::Data(vec![1; PAYLOAD])),
                frame(What::Taken(u32::MAX)),
                frame(What::End),
                frame(What::Gone),
            ];
            quorate_fuzz::campaign(&samples, |input| {
                for part in input.split(|byte| *byte == 0) {
                    if let Some(frame) = Frame::decode(part) {
                        let again = frame.encode();
                        assert_eq!(Frame::decode(&again[..again.len() - 1]), Some(frame));
                        assert!(again.len() <= LONGEST + 1);
                    }
                }
            });
        }
    }
}

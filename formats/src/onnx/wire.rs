//! The protobuf wire format, read in place.
//!
//! Facts from the Protocol Buffers documentation, "Encoding" (protobuf.dev/programming-guides/encoding): a field is a varint
//! `number << 3 | type`; type 0 is a varint, 1 eight bytes, 2 a length and as many bytes, 5 four bytes; 3 and 4 are groups,
//! which nothing has written since 2008 and which are refused.

/// The payload of one field, borrowed from the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payload<'a> {
    /// A varint.
    Varint(u64),
    /// Eight bytes.
    Fixed64(u64),
    /// Four bytes.
    Fixed32(u32),
    /// Bytes, text, a message or packed numbers.
    Bytes(&'a [u8]),
}

/// The fields of one message, in the order they were written. Ends at the first field that is malformed, after returning
/// what is wrong with it.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

/// Takes one varint from the front.
pub(super) fn varint(bytes: &mut &[u8]) -> Result<u64, &'static str> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().enumerate().take(10) {
        let part = u64::from(byte & 0x7f);
        if i == 9 && part > 1 {
            return Err("a varint of more than 64 bits");
        }
        value |= part << (7 * i);
        if byte & 0x80 == 0 {
            *bytes = &bytes[i + 1..];
            return Ok(value);
        }
    }
    Err(match bytes.len() {
        0..10 => "a varint that the message's end cuts off",
        _ => "a varint of more than ten bytes",
    })
}

fn fixed<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], &'static str> {
    let (head, rest) = bytes
        .split_first_chunk::<N>()
        .ok_or("a number that the message's end cuts off")?;
    *bytes = rest;
    Ok(*head)
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message }
    }

    /// Bytes that are still to be read: where an error was found, counted from the end.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    fn field(&mut self) -> Result<(u32, Payload<'a>), &'static str> {
        let key = varint(&mut self.rest)?;
        let number = u32::try_from(key >> 3).ok().filter(|n| (1..1 << 29).contains(n));
        let number = number.ok_or("a field number outside 1 to 536870911")?;
        let payload = match key & 7 {
            0 => Payload::Varint(varint(&mut self.rest)?),
            1 => Payload::Fixed64(u64::from_le_bytes(fixed(&mut self.rest)?)),
            5 => Payload::Fixed32(u32::from_le_bytes(fixed(&mut self.rest)?)),
            2 => {
                let length = varint(&mut self.rest)?;
                let length = usize::try_from(length).ok().filter(|&n| n <= self.rest.len());
                let length = length.ok_or("a length beyond the end of its message")?;
                let (head, rest) = self.rest.split_at(length);
                self.rest = rest;
                Payload::Bytes(head)
            }
            3 | 4 => return Err("a group, which ONNX does not use"),
            _ => return Err("an unknown wire type"),
        };
        Ok((number, payload))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Payload<'a>), &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_in_order_and_lies_are_refused() {
        let message = [0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x1d, 1, 0, 0, 0];
        let all: Result<Vec<_>, _> = Fields::new(&message).collect();
        assert_eq!(
            all.unwrap(),
            [
                (1, Payload::Varint(150)),
                (2, Payload::Bytes(b"hi")),
                (3, Payload::Fixed32(1))
            ]
        );
        for lie in [
            &[0x08][..],
            &[0x08, 0x80],
            &[0x12, 0x03, 0, 0],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
            &[0x00, 0x00],
            &[0x0b],
            &[0x0e],
            &[0x0d, 0, 0],
            &[0x09, 0, 0, 0, 0],
        ] {
            assert!(Fields::new(lie).any(|f| f.is_err()), "{lie:x?}");
            assert!(Fields::new(lie).count() <= 1, "{lie:x?}");
        }
    }
}

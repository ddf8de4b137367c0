//! Arrays in numpy's format `.npy`, version 1.0, C order, little-endian.

use std::io::{self, Write};

/// Writes the header of an array of numpy's type `kind` (`<f4`, `<u8`) and this shape.
pub(super) fn write_header(out: &mut impl Write, kind: &str, shape: &[usize]) -> io::Result<()> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let mut text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}), }}", sizes.trim_end());
    // Magic, version and length take ten bytes; the values begin at a multiple of 64.
    let padding = (64 - (10 + text.len() + 1) % 64) % 64;
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(text.len() as u16).to_le_bytes())?;
    out.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_end_at_a_multiple_of_64_and_say_what_follows() {
        for shape in [&[3][..], &[1_234_567, 16], &[0, 1], &[7, 7, 7]] {
            let mut bytes = Vec::new();
            write_header(&mut bytes, "<f4", shape).unwrap();
            assert_eq!(bytes.len() % 64, 0, "{shape:?}");
            assert_eq!(bytes.len(), 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]])));
            assert!(bytes.ends_with(b"\n"));
        }
        let mut bytes = Vec::new();
        write_header(&mut bytes, "<u8", &[3]).unwrap();
        let text = String::from_utf8_lossy(&bytes[10..]);
        assert!(text.starts_with("{'descr': '<u8', 'fortran_order': False, 'shape': (3,), }"), "{text}");
    }
}

//! Pictures from PNG files.

use std::io::Cursor;

use crate::Outcome;

/// Rows of pixels of three bytes: red, green, blue.
pub struct Picture {
    pub width: usize,
    pub height: usize,
    pub rgb: Vec<u8>,
}

impl Picture {
    /// The picture in a PNG file: gray or coloured; what shows through is shown on white.
    pub fn decode(file: &[u8]) -> Outcome<Picture> {
        let mut decoder = png::Decoder::new(Cursor::new(file));
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let mut reader = decoder.read_info()?;
        let mut pixels = vec![0; reader.output_buffer_size().ok_or("a picture larger than memory")?];
        let frame = reader.next_frame(&mut pixels)?;
        let samples = frame.color_type.samples();
        let over = |c: u8, alpha: u8| (u32::from(c) * u32::from(alpha) / 255 + 255 - u32::from(alpha)) as u8;
        let rgb = pixels[..frame.buffer_size()]
            .chunks_exact(samples)
            .flat_map(|p| match *p {
                [g] => [g; 3],
                [g, a] => [over(g, a); 3],
                [r, g, b, a] => [over(r, a), over(g, a), over(b, a)],
                [r, g, b, ..] => [r, g, b],
                [] => [0; 3],
            })
            .collect();
        Ok(Picture {
            width: frame.width as usize,
            height: frame.height as usize,
            rgb,
        })
    }
}

//! Where text is, from the probability that each pixel is text.

/// A pixel of at least this probability is text.
const TEXT: f32 = 0.3;
/// A region of at least this mean probability is kept.
const SURE: f32 = 0.5;
/// Regions are as much smaller than their text as the detector was trained to make them: by this part of their area over
/// their circumference, on each side (Liao et al., "Real-time scene text detection with differentiable binarization",
/// arXiv:1911.08947).
const GROW: f64 = 1.6;
/// Smaller regions are noise.
const MIN_SIDE: usize = 3;

/// A rectangle, as fractions of the picture's width and height.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
    /// The picture's width and height.
    pub picture: (usize, usize),
}

impl Region {
    /// Left, top, right and bottom in pixels of the picture.
    pub fn corners(&self) -> [f64; 4] {
        let (w, h) = (self.picture.0 as f64, self.picture.1 as f64);
        [self.left * w, self.top * h, self.right * w, self.bottom * h]
    }

    /// Width over height.
    pub fn aspect(&self) -> f64 {
        let [left, top, right, bottom] = self.corners();
        (right - left) / (bottom - top)
    }
}

/// A set of text pixels that touch: its bounds, how many, and the sum of their probabilities.
struct Blob {
    x: (usize, usize),
    y: (usize, usize),
    pixels: usize,
    sum: f64,
}

/// Empties `open` into one blob, adding neighbours above, below and at both sides.
fn flood(probability: &[f32], columns: usize, open: &mut Vec<usize>, seen: &mut [bool]) -> Blob {
    let mut blob = Blob {
        x: (usize::MAX, 0),
        y: (usize::MAX, 0),
        pixels: 0,
        sum: 0.0,
    };
    while let Some(i) = open.pop() {
        let (y, x) = (i / columns, i % columns);
        blob.x = (blob.x.0.min(x), blob.x.1.max(x + 1));
        blob.y = (blob.y.0.min(y), blob.y.1.max(y + 1));
        blob.pixels += 1;
        blob.sum += f64::from(probability[i]);
        let beside = [
            (x > 0).then(|| i - 1),
            (x + 1 < columns).then(|| i + 1),
            i.checked_sub(columns),
            Some(i + columns),
        ];
        for n in beside.into_iter().flatten() {
            if n < probability.len() && !seen[n] && probability[n] > TEXT {
                seen[n] = true;
                open.push(n);
            }
        }
    }
    blob
}

/// The regions of text, top to bottom.
pub fn regions(probability: &[f32], columns: usize, picture: (usize, usize)) -> Vec<Region> {
    let rows = probability.len() / columns;
    let mut seen = vec![false; probability.len()];
    let mut found = vec![];
    for i in 0..probability.len() {
        if seen[i] || probability[i] <= TEXT {
            continue;
        }
        seen[i] = true;
        let blob = flood(probability, columns, &mut vec![i], &mut seen);
        let (wide, high) = (blob.x.1 - blob.x.0, blob.y.1 - blob.y.0);
        if blob.sum / (blob.pixels as f64) < SURE.into() || wide.min(high) < MIN_SIDE {
            continue;
        }
        let grow = (wide * high) as f64 * GROW / (2 * (wide + high)) as f64;
        let fraction = |at: f64, n: usize| at.clamp(0.0, n as f64) / n as f64;
        found.push(Region {
            left: fraction(blob.x.0 as f64 - grow, columns),
            right: fraction(blob.x.1 as f64 + grow, columns),
            top: fraction(blob.y.0 as f64 - grow, rows),
            bottom: fraction(blob.y.1 as f64 + grow, rows),
            picture,
        });
    }
    found.sort_by(|a, b| (a.top + a.bottom).total_cmp(&(b.top + b.bottom)));
    found
}

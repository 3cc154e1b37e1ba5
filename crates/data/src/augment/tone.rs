//! Operations that look each value up in a table of its channel. Pillow's `ImageOps`.

use super::canvas::Canvas;

/// New values of each channel.
pub(super) type Tables = [[u8; 256]; 3];

/// The same table for all channels.
pub(super) fn uniform(table: impl Fn(u8) -> u8) -> Tables {
    [std::array::from_fn(|v| table(v as u8)); 3]
}

pub(super) fn look_up(canvas: &mut Canvas<'_>, tables: &Tables) {
    let [red, green, blue] = tables;
    for pixel in canvas.pixels_mut() {
        let [r, g, b, x] = *pixel;
        *pixel = [red[usize::from(r)], green[usize::from(g)], blue[usize::from(b)], x];
    }
}

fn histograms(canvas: &Canvas<'_>) -> [[u32; 256]; 3] {
    // Two sets by turns: equal values in a row do not wait for each other's count.
    let mut counts = [[[0u32; 256]; 3]; 2];
    for (i, &[r, g, b, _]) in canvas.pixels().iter().enumerate() {
        let [red, green, blue] = &mut counts[i & 1];
        red[usize::from(r)] += 1;
        green[usize::from(g)] += 1;
        blue[usize::from(b)] += 1;
    }
    let [mut sum, other] = counts;
    sum.as_flattened_mut().iter_mut().zip(other.as_flattened()).for_each(|(a, b)| *a += b);
    sum
}

/// `autocontrast` with no cutoff: each channel stretched so that its darkest value is 0 and its lightest 255.
pub(super) fn auto_contrast(canvas: &mut Canvas<'_>) {
    let tables = histograms(canvas).map(|histogram| {
        let low = histogram.iter().position(|&n| n > 0).unwrap_or(0);
        let high = histogram.iter().rposition(|&n| n > 0).unwrap_or(0);
        if high <= low {
            return std::array::from_fn(|v| v as u8);
        }
        let scale = 255.0 / (high - low) as f64;
        let offset = -(low as f64) * scale;
        // Conversion truncates and saturates.
        std::array::from_fn(|v| (v as f64 * scale + offset) as u8)
    });
    look_up(canvas, &tables);
}

/// `equalize`: each channel mapped so that its values are spread evenly.
pub(super) fn equalize(canvas: &mut Canvas<'_>) {
    let tables = histograms(canvas).map(|histogram| {
        let identity = std::array::from_fn(|v| v as u8);
        let last = histogram.iter().rev().find(|&&n| n > 0).copied().unwrap_or(0);
        let step = (histogram.iter().sum::<u32>() - last) / 255;
        // With one value alone the step is 0 too.
        if step == 0 {
            return identity;
        }
        let mut below = step / 2;
        std::array::from_fn(|v| {
            let value = (below / step).min(255) as u8;
            below += histogram[v];
            value
        })
    });
    look_up(canvas, &tables);
}

/// `posterize`. Pillow 13 refuses to keep 0 bits, which timm's magnitudes ask for; older versions made the image black, and
/// so do we.
pub(super) fn posterize(canvas: &mut Canvas<'_>, bits: u8) {
    if bits < 8 {
        let mask = !(0xffu32 >> bits) as u8;
        look_up(canvas, &uniform(|v| v & mask));
    }
}

/// `solarize`: values from the threshold on are inverted.
pub(super) fn solarize(canvas: &mut Canvas<'_>, threshold: u16) {
    look_up(canvas, &uniform(|v| if u16::from(v) < threshold { v } else { 255 - v }));
}

/// Adds to values below 128.
pub(super) fn solarize_add(canvas: &mut Canvas<'_>, add: u8) {
    look_up(canvas, &uniform(|v| if v < 128 { v.saturating_add(add) } else { v }));
}

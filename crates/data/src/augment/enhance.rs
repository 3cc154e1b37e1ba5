//! Pillow's `ImageEnhance`: blends of the image with a degenerate form of it. Factor 1 is the image, 0 the degenerate form,
//! above 1 goes away from it.

use super::canvas::Canvas;
use super::tone::{look_up, uniform};
use super::wide::{blend, towards_grey, towards_smooth};
use crate::transform::luma;

/// Blends towards black.
pub(super) fn brightness(canvas: &mut Canvas<'_>, factor: f64) {
    let factor = factor as f32;
    if factor != 1.0 {
        look_up(canvas, &uniform(|v| blend(0, v, factor)));
    }
}

/// Blends towards the mean grey.
pub(super) fn contrast(canvas: &mut Canvas<'_>, factor: f64) {
    let factor = factor as f32;
    if factor == 1.0 {
        return;
    }
    let sum: u64 = canvas.pixels().iter().map(|p| u64::from(luma(p))).sum();
    let mean = (sum as f64 / canvas.pixels().len().max(1) as f64 + 0.5) as u8;
    look_up(canvas, &uniform(|v| blend(mean, v, factor)));
}

/// Blends towards grey: saturation.
pub(super) fn color(canvas: &mut Canvas<'_>, factor: f64) {
    let factor = factor as f32;
    if factor == 1.0 {
        return;
    }
    towards_grey(canvas.pixels_mut(), factor);
}

/// Blends towards the image smoothed by a 3 × 3 kernel of ones with five in the middle; its border is not smoothed.
pub(super) fn sharpness(canvas: &mut Canvas<'_>, factor: f64) {
    let factor = factor as f32;
    let (width, height) = (canvas.width, canvas.height);
    if factor == 1.0 || width < 3 || height < 3 {
        return;
    }
    canvas.replace(|image, out| {
        out.copy_from_slice(image);
        let row = |y: usize| image[y * width..(y + 1) * width].as_flattened();
        for y in 1..height - 1 {
            let inner = out[y * width + 1..(y + 1) * width - 1].as_flattened_mut();
            towards_smooth(row(y - 1), row(y), row(y + 1), inner, factor);
        }
    });
}

/// Turns the hue by `shift` of the circle, -0.5 to 0.5: torchvision's `adjust_hue` by Pillow's HSV of 8 bits.
pub(super) fn hue(canvas: &mut Canvas<'_>, shift: f64) {
    // Truncated to an integer, and added modulo 256.
    let shift = (shift * 255.0) as i32 as u8;
    for pixel in canvas.pixels_mut() {
        let [h, s, v] = to_hsv([pixel[0], pixel[1], pixel[2]]);
        let [r, g, b] = from_hsv([h.wrapping_add(shift), s, v]);
        *pixel = [r, g, b, 0];
    }
}

fn to_hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
    let (max, min) = (r.max(g).max(b), r.min(g).min(b));
    if max == min {
        return [0, 0, max];
    }
    let range = f32::from(max - min);
    let s = range / f32::from(max);
    let [rc, gc, bc] = [r, g, b].map(|v| f32::from(max - v) / range);
    // Pillow's constants are doubles and its variable is a float.
    let h = if r == max {
        bc - gc
    } else if g == max {
        (2.0 + f64::from(rc) - f64::from(bc)) as f32
    } else {
        (4.0 + f64::from(gc) - f64::from(rc)) as f32
    };
    // From 5/6 to 2 before the whole part goes.
    let turns = f64::from(h) / 6.0 + 1.0;
    let h = (turns - f64::from(turns as i32)) as f32;
    [(f64::from(h) * 255.0) as u8, (f64::from(s) * 255.0) as u8, max]
}

fn from_hsv([h, s, v]: [u8; 3]) -> [u8; 3] {
    if s == 0 {
        return [v; 3];
    }
    let h = (f64::from(h) * 6.0 / 255.0) as f32;
    let s = (f64::from(s) / 255.0) as f32;
    let sector = h as i32;
    let f = h - sector as f32;
    let value = f64::from(v);
    let (s, f) = (f64::from(s), f64::from(f));
    let [p, q, t] = [1.0 - s, 1.0 - s * f, 1.0 - s * (1.0 - f)].map(|part| (value * part + 0.5) as u8);
    match sector % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}

//! How images are prepared for a file of Hugging Face: `preprocessor_config.json` beside it, as `ViTImageProcessor` and
//! `DeiTImageProcessor` read it.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};

/// Adds what the file beside `weights` says to a configuration's table; nothing where there is none.
///
/// # Errors
/// Where it cannot be read, or asks for what this program does not do.
pub(super) fn read(weights: &Path, table: &mut toml::Table, note: &mut dyn FnMut(&str)) -> Result<()> {
    let path = weights.with_file_name("preprocessor_config.json");
    if !path.is_file() {
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, &e))?;
    let settings: Value =
        serde_json::from_str(&text).map_err(|e| Error::Failed(format!("{}: no sound JSON: {e}", path.display())))?;
    let (data, eval) = sections(&settings).map_err(|reason| {
        Error::Failed(format!("{}: {reason}. Remove the file and set eval.… and data.mean, data.std yourself", path.display()))
    })?;
    note(&format!("images are prepared as {} says", path.display()));
    table.insert("data".into(), toml::Value::Table(data));
    table.insert("eval".into(), toml::Value::Table(eval));
    Ok(())
}

/// The sections `[data]` and `[eval]` of a processor's settings.
fn sections(settings: &Value) -> std::result::Result<(toml::Table, toml::Table), String> {
    let flag = |key: &str, default: bool| settings.get(key).and_then(Value::as_bool).unwrap_or(default);
    let floats = |key: &str| -> std::result::Result<toml::Value, String> {
        let values = settings.get(key).and_then(Value::as_array).ok_or(format!("{key} is missing"))?;
        let floats: Option<Vec<toml::Value>> = values.iter().map(|value| value.as_f64().map(toml::Value::Float)).collect();
        floats.map(toml::Value::Array).ok_or(format!("{key} holds no numbers"))
    };
    let scale = settings.get("rescale_factor").and_then(Value::as_f64).unwrap_or(1.0 / 255.0);
    if !flag("do_resize", true) || !flag("do_rescale", true) || (scale * 255.0 - 1.0).abs() > 1e-6 {
        return Err("images that are not resized, or not scaled to 0 … 1, cannot be had".into());
    }
    let mut data = toml::Table::new();
    match flag("do_normalize", true) {
        true => {
            data.insert("mean".into(), floats("image_mean")?);
            data.insert("std".into(), floats("image_std")?);
        }
        false => {
            data.insert("mean".into(), vec![0.0; 3].into());
            data.insert("std".into(), vec![1.0; 3].into());
        }
    }
    // A number or a pair of sides squashes the image; `shortest_edge` keeps its ratio.
    let side = |value: &Value, what: &str| -> std::result::Result<(f64, bool), String> {
        if let Some(side) = value.as_f64() {
            return Ok((side, true));
        }
        if let Some(side) = value.get("shortest_edge").and_then(Value::as_f64) {
            return Ok((side, false));
        }
        match (value.get("height").and_then(Value::as_f64), value.get("width").and_then(Value::as_f64)) {
            (Some(height), Some(width)) if height == width => Ok((height, true)),
            _ => Err(format!("{what} is neither a side nor two equal ones: {value}")),
        }
    };
    let (resized, squash) = side(settings.get("size").unwrap_or(&Value::from(224)), "size")?;
    let crop = match flag("do_center_crop", false) {
        true => side(settings.get("crop_size").unwrap_or(&Value::from(224)), "crop_size")?.0,
        false => resized,
    };
    if !(crop > 0.0 && crop <= resized) {
        return Err(format!("a crop of {crop} of {resized} pixels"));
    }
    let interpolation = match settings.get("resample").and_then(Value::as_u64) {
        Some(2) | None => "bilinear",
        Some(3) => "bicubic",
        Some(other) => return Err(format!("resample is {other}, which is neither 2 (bilinear) nor 3 (bicubic)")),
    };
    let mut eval = toml::Table::new();
    eval.insert("crop_pct".into(), (crop / resized).into());
    eval.insert("crop_mode".into(), if squash { "squash" } else { "center" }.into());
    eval.insert("interpolation".into(), interpolation.into());
    Ok((data, eval))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defaults of transformers' `ViTImageProcessor` and `DeiTImageProcessor`.
    #[test]
    fn processors_become_settings() {
        let vit = serde_json::json!({
            "do_resize": true, "size": {"height": 224, "width": 224}, "resample": 2, "do_rescale": true,
            "rescale_factor": 0.00392156862745098, "do_normalize": true, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        });
        let (data, eval) = sections(&vit).unwrap();
        assert_eq!(data["mean"].to_string(), "[0.5, 0.5, 0.5]");
        assert_eq!((eval["crop_pct"].as_float(), eval["crop_mode"].as_str()), (Some(1.0), Some("squash")));
        assert_eq!(eval["interpolation"].as_str(), Some("bilinear"));
        let deit = serde_json::json!({
            "size": {"height": 256, "width": 256}, "resample": 3, "do_center_crop": true, "crop_size": {"height": 224, "width": 224},
            "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
        });
        let (_, eval) = sections(&deit).unwrap();
        assert_eq!((eval["crop_pct"].as_float(), eval["crop_mode"].as_str()), (Some(0.875), Some("squash")));
        let edge =
            serde_json::json!({"size": {"shortest_edge": 256}, "do_center_crop": true, "crop_size": 224, "do_normalize": false});
        let (data, eval) = sections(&edge).unwrap();
        assert_eq!((data["std"].to_string(), eval["crop_mode"].as_str()), ("[1.0, 1.0, 1.0]".into(), Some("center")));
        assert!(sections(&serde_json::json!({"do_resize": false})).unwrap_err().contains("not resized"));
        assert!(sections(&serde_json::json!({"resample": 0, "do_normalize": false})).unwrap_err().contains("resample"));
    }
}

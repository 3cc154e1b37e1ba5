//! How a weights file is read: the options that several subcommands share.

use manyheads_trainer::network::{Layout, Naming};
use manyheads_trainer::{Error, Result};

#[derive(clap::Args)]
pub struct WeightsOptions {
    /// Name of the network where a weights file comes without a configuration, as timm has it: deit_base_patch16_224. Without it
    /// the network is recognised from the tensors.
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Names in the file: timm, deit or huggingface. Without it they are recognised.
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<String>,
    /// Heads of attention, which no tensor's shape tells. Without it the preset's, or the width over 64.
    #[arg(long, value_name = "N", conflicts_with = "preset")]
    heads: Option<usize>,
    /// Size of the images that the weights were trained on, as 224 or HEIGHTxWIDTH, where the file leaves it open.
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "preset")]
    image: Option<[usize; 2]>,
    /// Which of several models in a file, as teacher.
    #[arg(long, value_name = "NAME")]
    root: Option<String>,
    /// Take the averaged weights (EMA) of a run, or of a checkpoint that holds both.
    #[arg(long)]
    pub ema: bool,
    /// Tensors that may be missing from the file or have no place in the network, as `head.*`; may be repeated. Otherwise they are an
    /// error.
    #[arg(long, value_name = "PATTERN")]
    expect: Vec<String>,
}

impl WeightsOptions {
    pub fn naming(&self) -> Result<Naming<'_>> {
        let layout = self.layout.as_deref().map(|name| {
            Layout::find(name).ok_or_else(|| Error::Usage(format!("--layout {name}: it is one of timm, deit, huggingface")))
        });
        Ok(Naming {
            preset: self.preset.as_deref(),
            layout: layout.transpose()?,
            heads: self.heads,
            image: self.image,
            root: self.root.as_deref(),
            ema: self.ema,
            expect: &self.expect,
        })
    }
}

/// For clap: a side, or height and width.
fn size(text: &str) -> std::result::Result<[usize; 2], String> {
    let side = |text: &str| text.parse::<usize>().map_err(|_| "it is a number of pixels, or two with an x between".to_owned());
    match text.split_once('x') {
        Some((height, width)) => Ok([side(height)?, side(width)?]),
        None => side(text).map(|side| [side, side]),
    }
}

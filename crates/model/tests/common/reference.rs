//! The formulas in float64, in plain loops, one image at a time. Nothing here is fast or shares code with the crate.

use manyheads_model::weights::timm::NamedTensor;
use manyheads_model::{Architecture, AttentionKind, Kernel, LayerAttention, Pool};
use std::collections::HashMap;

/// phi over one token's features.
pub fn phi(kernel: Kernel, x: &[f64]) -> Vec<f64> {
    let norm = x.iter().map(|v| v * v).sum::<f64>().sqrt();
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: f64 = x.iter().map(|v| (v - max).exp()).sum();
    let width = x.len() as f64;
    x.iter()
        .map(|&v| match kernel {
            Kernel::Cosine => {
                if norm == 0.0 {
                    0.0
                } else {
                    v / norm
                }
            }
            Kernel::Mean => v / width.sqrt(),
            Kernel::Tanh => v.tanh(),
            Kernel::Sigmoid => 1.0 / (1.0 + (-v).exp()),
            Kernel::Relu => v.max(0.0),
            Kernel::Softmax => (v - max).exp() / exponentials,
            Kernel::Elu1 => {
                if v > 0.0 {
                    v + 1.0
                } else {
                    v.exp()
                }
            }
            Kernel::Identity => v,
        })
        .collect()
}

/// Attention of one image; `q`, `k`, `v` and the result are `[tokens, width]`, row-major.
pub fn attention(layer: LayerAttention, q: &[f64], k: &[f64], v: &[f64], width: usize, heads: usize) -> Vec<f64> {
    match (layer.kind, layer.kernel) {
        (AttentionKind::Softmax, _) => softmax(q, k, v, width, heads),
        (AttentionKind::Linear, Some(kernel)) => linear(q, k, v, width, heads, kernel),
        (AttentionKind::Hydra, Some(kernel)) => hydra(q, k, v, width, kernel),
        (kind, None) => panic!("{kind:?} without a kernel"),
    }
}

fn softmax(q: &[f64], k: &[f64], v: &[f64], width: usize, heads: usize) -> Vec<f64> {
    let tokens = q.len() / width;
    let head = width / heads;
    let mut out = vec![0.0; q.len()];
    for h in 0..heads {
        for t in 0..tokens {
            let scores: Vec<f64> = (0..tokens)
                .map(|s| {
                    let mut dot = 0.0;
                    for i in h * head..(h + 1) * head {
                        dot += q[t * width + i] * k[s * width + i];
                    }
                    dot / (head as f64).sqrt()
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            for s in 0..tokens {
                let weight = (scores[s] - max).exp() / total;
                for i in h * head..(h + 1) * head {
                    out[t * width + i] += weight * v[s * width + i];
                }
            }
        }
    }
    out
}

fn linear(q: &[f64], k: &[f64], v: &[f64], width: usize, heads: usize, kernel: Kernel) -> Vec<f64> {
    let tokens = q.len() / width;
    let head = width / heads;
    let q: Vec<f64> = q.chunks(width).flat_map(|x| phi(kernel, x)).collect();
    let k: Vec<f64> = k.chunks(width).flat_map(|x| phi(kernel, x)).collect();
    let mut out = vec![0.0; q.len()];
    for h in 0..heads {
        let base = h * head;
        let mut summary = vec![0.0; head * head];
        for t in 0..tokens {
            for i in 0..head {
                for j in 0..head {
                    summary[i * head + j] += k[t * width + base + i] * v[t * width + base + j];
                }
            }
        }
        for t in 0..tokens {
            for i in 0..head {
                for j in 0..head {
                    out[t * width + base + j] += q[t * width + base + i] * summary[i * head + j];
                }
            }
        }
    }
    out
}

fn hydra(q: &[f64], k: &[f64], v: &[f64], width: usize, kernel: Kernel) -> Vec<f64> {
    let tokens = q.len() / width;
    let mut summary = vec![0.0; width];
    for t in 0..tokens {
        let key = phi(kernel, &k[t * width..(t + 1) * width]);
        for i in 0..width {
            summary[i] += key[i] * v[t * width + i];
        }
    }
    let mut out = Vec::with_capacity(q.len());
    for t in 0..tokens {
        let query = phi(kernel, &q[t * width..(t + 1) * width]);
        out.extend((0..width).map(|i| query[i] * summary[i]));
    }
    out
}

/// erf by the series of positive terms, 2/sqrt(pi) exp(-x^2) sum 2^n x^(2n+1) / (2n+1)!!.
pub fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / (2 * n + 1) as f64;
        sum += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}

/// The whole network in float64 with weights under timm's names.
pub struct Vit<'a> {
    architecture: &'a Architecture,
    weights: HashMap<String, Vec<f64>>,
}

impl<'a> Vit<'a> {
    pub fn new(architecture: &'a Architecture, tensors: &[NamedTensor]) -> Self {
        let weights = tensors
            .iter()
            .map(|tensor| {
                let values = tensor.values.iter().map(|value| f64::from(*value));
                (tensor.name.clone(), values.collect())
            })
            .collect();
        Self { architecture, weights }
    }

    /// Adds to one value of a tensor.
    pub fn shift(&mut self, name: &str, index: usize, by: f64) {
        self.weights.get_mut(name).expect(name)[index] += by;
    }

    /// Logits of one image `[channels, height, width]`. `scales` holds the factors of the attention and the MLP branch per block.
    pub fn forward(&self, image: &[f64], scales: &[[f64; 2]]) -> Vec<f64> {
        let width = self.architecture.width;
        let tokens = self.tokens(image, scales);
        let mut read = tokens[..width].to_vec();
        if self.architecture.pool == Pool::Avg {
            let patches = &tokens[self.architecture.prefix_tokens() * width..];
            let count = (patches.len() / width) as f64;
            read = (0..width).map(|i| patches.iter().skip(i).step_by(width).sum::<f64>() / count).collect();
        }
        if self.architecture.fc_norm {
            read = self.norm("fc_norm", &read);
        }
        let logits = self.linear("head", &read, width);
        match self.architecture.distilled {
            true => {
                let second = self.linear("head_dist", &tokens[width..2 * width], width);
                logits.iter().zip(second).map(|(a, b)| (a + b) / 2.0).collect()
            }
            false => logits,
        }
    }

    /// Tokens after the last norm before pooling, `[tokens, width]`.
    pub fn tokens(&self, image: &[f64], scales: &[[f64; 2]]) -> Vec<f64> {
        let width = self.architecture.width;
        let mut x = self.embed(image);
        for (block, layer) in self.architecture.layers.iter().enumerate() {
            let at = |part: &str| format!("blocks.{block}.{part}");
            let qkv = self.linear(&at("attn.qkv"), &self.norm(&at("norm1"), &x), width);
            let part = |index: usize| -> Vec<f64> {
                qkv.chunks(3 * width).flat_map(|row| row[index * width..(index + 1) * width].to_vec()).collect()
            };
            let mixed = attention(*layer, &part(0), &part(1), &part(2), width, self.architecture.heads);
            let attended = self.layer_scale(&at("ls1.gamma"), self.linear(&at("attn.proj"), &mixed, width));
            add(&mut x, &attended, scales[block][0]);

            let hidden: Vec<f64> = self
                .linear(&at("mlp.fc1"), &self.norm(&at("norm2"), &x), width)
                .into_iter()
                .map(|v| 0.5 * v * (1.0 + erf(v / std::f64::consts::SQRT_2)))
                .collect();
            let out = self.linear(&at("mlp.fc2"), &hidden, self.architecture.mlp_hidden);
            add(&mut x, &self.layer_scale(&at("ls2.gamma"), out), scales[block][1]);
        }
        if self.architecture.fc_norm { x } else { self.norm("norm", &x) }
    }

    fn layer_scale(&self, name: &str, mut x: Vec<f64>) -> Vec<f64> {
        if let Some(gamma) = self.weights.get(name) {
            x.chunks_mut(gamma.len()).flat_map(|row| row.iter_mut().zip(gamma)).for_each(|(value, gamma)| *value *= gamma);
        }
        x
    }

    fn embed(&self, image: &[f64]) -> Vec<f64> {
        let Architecture { image: [height, width], patch, channels, width: features, .. } = *self.architecture;
        let weight = &self.weights["patch_embed.proj.weight"];
        let bias = self.weights.get("patch_embed.proj.bias");
        let mut x = Vec::new();
        for row in 0..height / patch {
            for column in 0..width / patch {
                for feature in 0..features {
                    let mut sum = bias.map_or(0.0, |bias| bias[feature]);
                    for c in 0..channels {
                        for i in 0..patch {
                            for j in 0..patch {
                                let pixel = image[(c * height + row * patch + i) * width + column * patch + j];
                                sum += pixel * weight[((feature * channels + c) * patch + i) * patch + j];
                            }
                        }
                    }
                    x.push(sum);
                }
            }
        }
        let positions = &self.weights["pos_embed"];
        if self.architecture.no_embed_class {
            add(&mut x, positions, 1.0);
        }
        let prefix = ["cls_token", "dist_token", "reg_token"].iter().filter_map(|name| self.weights.get(*name));
        let mut tokens: Vec<f64> = prefix.flatten().copied().collect();
        tokens.append(&mut x);
        if !self.architecture.no_embed_class {
            add(&mut tokens, positions, 1.0);
        }
        tokens
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = &self.weights[&format!("{name}.weight")];
        let bias = &self.weights[&format!("{name}.bias")];
        x.chunks(weight.len())
            .flat_map(|row| {
                let count = row.len() as f64;
                let mean = row.iter().sum::<f64>() / count;
                let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
                let deviation = (variance + self.architecture.norm_eps).sqrt();
                (0..row.len()).map(|i| (row[i] - mean) / deviation * weight[i] + bias[i]).collect::<Vec<_>>()
            })
            .collect()
    }

    fn linear(&self, name: &str, x: &[f64], into: usize) -> Vec<f64> {
        let weight = &self.weights[&format!("{name}.weight")];
        let bias = self.weights.get(&format!("{name}.bias"));
        let out = weight.len() / into;
        x.chunks(into)
            .flat_map(|row| {
                (0..out)
                    .map(|o| {
                        let dot: f64 = (0..into).map(|i| row[i] * weight[o * into + i]).sum();
                        dot + bias.map_or(0.0, |bias| bias[o])
                    })
                    .collect::<Vec<_>>()
            })
            .collect()
    }
}

fn add(x: &mut [f64], branch: &[f64], scale: f64) {
    for (value, addend) in x.iter_mut().zip(branch) {
        *value += scale * addend;
    }
}

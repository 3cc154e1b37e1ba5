//! Initial values, drawn on the host.
//!
//! The values are DeiT's (`models.py` and timm's `VisionTransformer`): linear weights, `pos_embed`, `cls_token` and `dist_token` from a
//! normal distribution of standard deviation 0.02, truncated at -2 and 2; registers of standard deviation 1e-6 (timm); the patch
//! convolution as PyTorch's default, uniform in `±1/sqrt(channels * patch^2)` for weight and bias; norms 1 and 0; LayerScale its
//! configured value; every other bias 0.
//!
//! Order of draws: `cls_token`, `dist_token`, `reg_token`, `pos_embed`, `patch_embed.proj.weight`, `patch_embed.proj.bias`, then per
//! block `attn.qkv.weight`, `attn.proj.weight`, `mlp.fc1.weight`, `mlp.fc2.weight`, and last `head.weight` and `head_dist.weight`; what
//! a model lacks takes no draw. Within a tensor, in memory order; linear weights lie as `[in, out]`. Each value takes exactly one
//! `next_u64`, so a model's start depends on the generator and the shapes alone.

use crate::architecture::Architecture;
use crate::assemble::{Assemble, Start};
use crate::vit::VisionTransformer;
use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use rand::Rng;

/// Normal values beyond this are cut, in absolute terms as in timm (not in standard deviations).
const BOUND: f64 = 2.0;

impl Architecture {
    /// A network with DeiT's initial values, drawn from `rng`.
    ///
    /// Equal architectures and equal generators give bit-equal networks on every device. Parameters require gradients where the device
    /// has autodiff, and will after [`Module::train`](burn::module::Module::train) elsewhere. Each parameter's id follows from its name,
    /// so an optimizer's record fits every network of the same architecture.
    pub fn init<R: Rng>(&self, rng: &mut R, device: &Device) -> VisionTransformer {
        self.assemble(&mut Draw { rng, device })
    }
}

/// Draws parameters onto a device.
struct Draw<'a, R> {
    rng: &'a mut R,
    device: &'a Device,
}

impl<R: Rng> Assemble for Draw<'_, R> {
    fn device(&self) -> &Device {
        self.device
    }

    fn parameter<const D: usize>(&mut self, name: &str, shape: [usize; D], start: Start) -> Param<Tensor<D>> {
        let mut draw = |value: &dyn Fn(f64) -> f64| -> Vec<f32> {
            (0..shape.iter().product()).map(|_| value(open_unit(self.rng.next_u64())) as f32).collect()
        };
        let values = match start {
            Start::Normal(std) => draw(&|u| (std * normal_quantile(u)).clamp(-BOUND, BOUND)),
            Start::Uniform(limit) => draw(&|u| limit * (2.0 * u - 1.0)),
            Start::Constant(value) => vec![value; shape.iter().product()],
        };
        named(name, TensorData::new(values, shape), self.device)
    }
}

/// A parameter whose id follows from its name.
pub(crate) fn named<const D: usize>(name: &str, data: TensorData, device: &Device) -> Param<Tensor<D>> {
    let (_, value, mapper) = Param::<Tensor<D>>::from_data(data, device).consume();
    Param::from_mapped_value(ParamId::from(fnv1a(name.as_bytes())), value, mapper)
}

/// The upper 52 bits of a draw as the midpoint of a cell of the open interval (0, 1): exact in f64, never 0 and never 1.
fn open_unit(bits: u64) -> f64 {
    const CELL: f64 = 1.0 / (1u64 << 52) as f64;
    ((bits >> 12) as f64 + 0.5) * CELL
}

/// The value below which a standard normal variable falls with probability `p` in (0, 1), to about 1e-15 relative.
///
/// Wichura, Algorithm AS 241, Applied Statistics 37(3), 1988 (PPND16). Sums and products decide within ±1.44 standard deviations; only
/// the tails use the platform's `ln`.
fn normal_quantile(p: f64) -> f64 {
    const CENTRE_NUMERATOR: [f64; 8] = [
        2509.0809287301227,
        33430.57558358813,
        67265.7709270087,
        45921.95393154987,
        13731.69376550946,
        1971.5909503065513,
        133.14166789178438,
        3.3871328727963665,
    ];
    const CENTRE_DENOMINATOR: [f64; 8] = [
        5226.495278852854,
        28729.085735721943,
        39307.89580009271,
        21213.794301586597,
        5394.196021424751,
        687.1870074920579,
        42.31333070160091,
        1.0,
    ];
    const TAIL_NUMERATOR: [f64; 8] = [
        0.0007745450142783414,
        0.022723844989269184,
        0.2417807251774506,
        1.2704582524523684,
        3.6478483247632045,
        5.769497221460691,
        4.630337846156546,
        1.4234371107496835,
    ];
    const TAIL_DENOMINATOR: [f64; 8] = [
        1.0507500716444169e-9,
        0.0005475938084995345,
        0.015198666563616457,
        0.14810397642748008,
        0.6897673349851,
        1.6763848301838038,
        2.053191626637759,
        1.0,
    ];
    const FAR_NUMERATOR: [f64; 8] = [
        2.0103343992922881e-7,
        2.7115555687434876e-5,
        0.0012426609473880784,
        0.026532189526576124,
        0.2965605718285049,
        1.7848265399172913,
        5.463784911164114,
        6.657904643501103,
    ];
    const FAR_DENOMINATOR: [f64; 8] = [
        2.0442631033899397e-15,
        1.421511758316446e-7,
        1.8463183175100548e-5,
        0.0007868691311456133,
        0.014875361290850615,
        0.1369298809227358,
        0.599832206555888,
        1.0,
    ];
    let polynomial = |coefficients: &[f64; 8], x: f64| coefficients.iter().fold(0.0, |sum, coefficient| sum * x + coefficient);
    let ratio = |numerator, denominator, x| polynomial(numerator, x) / polynomial(denominator, x);

    let q = p - 0.5;
    if q.abs() <= 0.425 {
        return q * ratio(&CENTRE_NUMERATOR, &CENTRE_DENOMINATOR, 0.180625 - q * q);
    }
    let r = (-p.min(1.0 - p).ln()).sqrt();
    let magnitude = if r <= 5.0 {
        ratio(&TAIL_NUMERATOR, &TAIL_DENOMINATOR, r - 1.6)
    } else {
        ratio(&FAR_NUMERATOR, &FAR_DENOMINATOR, r - 5.0)
    };
    magnitude.copysign(q)
}

/// FNV-1a, 64 bits: fixed for ever, unlike the standard library's hasher.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_equal_those_of_pythons_statistics_module() {
        // statistics.NormalDist().inv_cdf(p), Python 3.11; one point per branch and sign.
        for (p, expected) in [
            (0.5, 0.0),
            (0.3, -0.5244005127080409),
            (0.975, 1.9599639845400538),
            (0.01, -2.3263478740408408),
            (1e-12, -7.034483825301132),
            (0.999999, 4.753424308817089),
        ] {
            let value = normal_quantile(p);
            assert!((value - expected).abs() <= 1e-14 * (1.0 + expected.abs()), "{p}: {value} instead of {expected}");
        }
    }

    #[test]
    fn units_lie_inside_the_open_interval() {
        for bits in [0, 1, u64::MAX / 2, u64::MAX] {
            let unit = open_unit(bits);
            assert!(unit > 0.0 && unit < 1.0, "{bits:x}: {unit}");
            assert!(normal_quantile(unit).is_finite());
        }
        assert_eq!(open_unit(0) + open_unit(u64::MAX), 1.0);
    }

    #[test]
    fn hash_is_fnv_1a() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}

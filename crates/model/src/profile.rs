//! Where the time of a training step goes, by kind of operation.
//!
//! A profile is a clock with one hand: at every moment the time is charged to one kind of operation, so the parts add up to the whole.
//! Operations turn the hand where they begin and end, forward through a `Span` and backward through marks that it leaves in autodiff's
//! graph. At each edge the device is waited for, since it would otherwise still be at work on what came before; a profiled step is
//! therefore slower than an unprofiled one, and where a backend joins neighbouring operations into one kernel, it cannot across an edge.
//!
//! A profile belongs to the thread that started it. While no thread has one, an edge costs the reading of one atomic.

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, TensorMetadata, backend_extension};
use burn::tensor::{Device, Tensor};
use serde::Serialize;
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What time is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// On the host: mixing of images, draws of stochastic depth and dropout.
    Data,
    /// Images, targets and draws to the device, with normalisation and mixing where they are done there; numbers back from it.
    Transfers,
    /// Linear layers and the patch embedding.
    MatrixProducts,
    /// What lies between queries, keys and values and the projection of their mixture.
    Attention,
    /// Layer norms.
    Norms,
    /// The rest of the network: activations, residual branches, embeddings of positions, conversions of float types, dropout.
    ElementWise,
    /// The loss.
    Loss,
    /// The gradient's norm, clipping, the update, the average of the weights.
    Optimizer,
}

impl Kind {
    /// Every kind, in the order of a step.
    pub const ALL: [Self; 8] = [
        Self::Data,
        Self::Transfers,
        Self::MatrixProducts,
        Self::Attention,
        Self::Norms,
        Self::ElementWise,
        Self::Loss,
        Self::Optimizer,
    ];

    /// What it is called in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Transfers => "transfers",
            Self::MatrixProducts => "matrix products",
            Self::Attention => "attention",
            Self::Norms => "norms",
            Self::ElementWise => "element-wise",
            Self::Loss => "loss",
            Self::Optimizer => "optimizer",
        }
    }

    /// Whether it has a forward and a backward pass.
    pub fn has_passes(self) -> bool {
        !matches!(self, Self::Data | Self::Transfers | Self::Optimizer)
    }
}

/// Seconds of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seconds {
    /// Of the forward pass, or of what has no passes.
    pub forward: f64,
    /// Of the backward pass.
    pub backward: f64,
}

/// Seconds of every kind since the profile began; they add up to the time that went by.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    seconds: [Seconds; Kind::ALL.len()],
}

impl Profile {
    /// Those of one kind.
    pub fn of(&self, kind: Kind) -> Seconds {
        self.seconds[kind as usize]
    }

    /// Those of all kinds.
    pub fn total(&self) -> f64 {
        self.seconds.iter().map(|seconds| seconds.forward + seconds.backward).sum()
    }
}

impl std::iter::Sum for Profile {
    fn sum<I: Iterator<Item = Self>>(profiles: I) -> Self {
        profiles.fold(Self::default(), |mut sum, profile| {
            for (sum, seconds) in sum.seconds.iter_mut().zip(profile.seconds) {
                sum.forward += seconds.forward;
                sum.backward += seconds.backward;
            }
            sum
        })
    }
}

/// How many threads have a profile.
static PROFILES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CLOCK: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Clock {
    profile: Profile,
    hand: Hand,
    since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Hand {
    kind: Kind,
    backward: bool,
}

impl Clock {
    fn turn(&mut self, hand: Hand) {
        let now = Instant::now();
        let seconds = &mut self.profile.seconds[self.hand.kind as usize];
        let part = if self.hand.backward { &mut seconds.backward } else { &mut seconds.forward };
        *part += now.duration_since(self.since).as_secs_f64();
        self.since = now;
        self.hand = hand;
    }
}

/// Does `work` with this thread's clock; nothing where it has none.
fn with_clock<T>(work: impl FnOnce(&mut Clock) -> T) -> Option<T> {
    if PROFILES.load(Ordering::Relaxed) == 0 {
        return None;
    }
    CLOCK.with(|clock| clock.borrow_mut().as_mut().map(work))
}

/// A running profile of this thread. It ends where this is dropped.
#[derive(Debug)]
pub struct Running {
    /// A clock cannot be stopped from another thread.
    _here: std::marker::PhantomData<*const ()>,
}

/// Begins a profile of this thread, charging time to `kind`. One that runs already is forgotten.
pub fn start(kind: Kind) -> Running {
    let clock = Clock { profile: Profile::default(), hand: Hand { kind, backward: false }, since: Instant::now() };
    PROFILES.fetch_add(1, Ordering::Relaxed);
    CLOCK.with(|place| *place.borrow_mut() = Some(clock));
    Running { _here: std::marker::PhantomData }
}

impl Running {
    /// Ends it.
    pub fn finish(self) -> Profile {
        let clock = CLOCK.with(|clock| clock.borrow_mut().take());
        clock.map_or_else(Profile::default, |mut clock| {
            clock.turn(clock.hand);
            clock.profile
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        CLOCK.with(|clock| clock.borrow_mut().take());
        PROFILES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Charges the time from now on to `kind`. Whoever calls it has waited for the device.
pub fn switch(kind: Kind) {
    with_clock(|clock| clock.turn(Hand { kind, backward: false }));
}

/// Charges the time of `work` on the host to `kind`.
pub fn on_host<T>(kind: Kind, work: impl FnOnce() -> T) -> T {
    let outer = with_clock(|clock| {
        let outer = clock.hand;
        clock.turn(Hand { kind, backward: false });
        outer
    });
    let result = work();
    if let Some(outer) = outer {
        with_clock(|clock| clock.turn(outer));
    }
    result
}

/// An operation of the network, whose time is charged to its kind, forward and backward. What lies between spans is
/// [`Kind::ElementWise`]; a span inside another charges to its own kind and gives back to the outer one.
pub(crate) struct Span(Option<Open>);

struct Open {
    kind: Kind,
    outer: Kind,
    device: Device,
}

impl Span {
    /// Begins an operation on `x`. Every input must pass through [`Self::input`], and the result through [`Self::close`].
    pub(crate) fn open<const D: usize>(kind: Kind, x: &Tensor<D>) -> Self {
        let Some(hand) = with_clock(|clock| clock.hand) else { return Self(None) };
        let device = x.device().inner();
        let outer = match hand.kind {
            Kind::MatrixProducts | Kind::Attention | Kind::Norms | Kind::Loss => hand.kind,
            _ => Kind::ElementWise,
        };
        // An error shows again at the end of the step.
        let _ = device.sync();
        with_clock(|clock| clock.turn(Hand { kind, ..hand }));
        Self(Some(Open { kind, outer, device }))
    }

    /// An input, where the operation's backward pass ends.
    pub(crate) fn input<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match &self.0 {
            Some(open) => mark(x, open.outer),
            None => x,
        }
    }

    /// The result, where the operation's backward pass begins.
    pub(crate) fn close<const D: usize>(self, y: Tensor<D>) -> Tensor<D> {
        let Some(Open { kind, outer, device }) = self.0 else { return y };
        let _ = device.sync();
        with_clock(|clock| clock.turn(Hand { kind: outer, ..clock.hand }));
        mark(y, kind)
    }
}

/// `operation` of `x` as a [`Span`].
pub(crate) fn around<const D: usize, const E: usize>(
    kind: Kind,
    x: Tensor<D>,
    operation: impl FnOnce(Tensor<D>) -> Tensor<E>,
) -> Tensor<E> {
    let span = Span::open(kind, &x);
    let y = operation(span.input(x));
    span.close(y)
}

/// `x` itself; when the backward pass comes by, it charges the time from there on to `kind`.
fn mark<const D: usize>(x: Tensor<D>, kind: Kind) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as MarkOps>::mark(x.into_dispatch(), kind))
}

/// A backend whose autodiff can be marked.
#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(any(feature = "wgpu", feature = "cuda")), Autodiff)]
pub trait MarkOps: Backend {
    /// `x` itself.
    fn mark(x: FloatTensor<Self>, kind: Kind) -> FloatTensor<Self> {
        let _ = kind;
        x
    }
}

#[cfg(feature = "flex")]
impl MarkOps for burn::backend::Flex {}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl MarkOps for burn::backend::Cube {}

impl<B: MarkOps, C: CheckpointStrategy> MarkOps for Autodiff<B, C> {
    fn mark(x: FloatTensor<Self>, kind: Kind) -> FloatTensor<Self> {
        let prepared = MarkBackward.prepare::<C>([x.node()]).compute_bound().stateful();
        let x = x.into_primitive();
        match prepared {
            OpsKind::Tracked(prepared) => prepared.finish(kind, x),
            OpsKind::UnTracked(prepared) => prepared.finish(x),
        }
    }
}

#[derive(Debug)]
struct MarkBackward;

impl<B: MarkOps> Backward<B, 1> for MarkBackward {
    type State = Kind;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let _ = B::sync(&gradient.device());
        with_clock(|clock| clock.turn(Hand { kind: ops.state, backward: true }));
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, gradient);
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use std::thread::sleep;
    use std::time::Duration;

    const PAUSE: Duration = Duration::from_millis(20);

    #[test]
    fn time_is_charged_once_and_to_whoever_took_it() {
        let begin = Instant::now();
        let running = start(Kind::Transfers);
        on_host(Kind::Data, || sleep(PAUSE));
        sleep(2 * PAUSE);
        switch(Kind::Optimizer);
        sleep(3 * PAUSE);
        let profile = running.finish();
        let whole = begin.elapsed().as_secs_f64();
        let pause = PAUSE.as_secs_f64();
        for (kind, pauses) in [(Kind::Data, 1.0), (Kind::Transfers, 2.0), (Kind::Optimizer, 3.0)] {
            assert!(profile.of(kind).forward >= pauses * pause, "{kind:?}: {profile:?}");
            assert_eq!(profile.of(kind).backward, 0.0);
        }
        assert!(profile.total() <= whole && profile.total() >= 6.0 * pause, "{profile:?} of {whole}");
        assert_eq!(profile.of(Kind::Attention), Seconds::default());
    }

    /// A product inside attention inside nothing: each is charged by itself, backward in the opposite order, and gradients are those
    /// of a network without marks.
    #[test]
    fn spans_nest_and_marks_keep_gradients() {
        let device = Device::flex().autodiff();
        let x = Tensor::<1>::from_data([2.0, 3.0], &device).require_grad();
        let running = start(Kind::Transfers);
        let outer = Span::open(Kind::Attention, &x);
        let inner_x = outer.input(x.clone());
        sleep(PAUSE);
        let inner = Span::open(Kind::MatrixProducts, &inner_x);
        sleep(2 * PAUSE);
        let squared = inner.input(inner_x).square();
        let y = outer.close(inner.close(squared) * 3.0);
        let gradients = y.sum().backward();
        let profile = running.finish();
        let pause = PAUSE.as_secs_f64();
        assert!(profile.of(Kind::Attention).forward >= pause, "{profile:?}");
        assert!(profile.of(Kind::MatrixProducts).forward >= 2.0 * pause, "{profile:?}");
        assert!(profile.of(Kind::ElementWise).backward > 0.0, "{profile:?}");
        assert!(profile.of(Kind::Attention).backward > 0.0, "{profile:?}");
        assert!(profile.of(Kind::MatrixProducts).backward > 0.0, "{profile:?}");
        let gradient: Vec<f32> = x.grad(&gradients).expect("a gradient").into_data().try_into_vec().expect("f32");
        assert_eq!(gradient, [12.0, 18.0]);
    }

    #[test]
    fn another_threads_profile_is_not_disturbed() {
        let running = start(Kind::Data);
        let x = Tensor::<1>::from_data([1.0], &Device::flex());
        std::thread::spawn(move || {
            assert!(Span::open(Kind::Loss, &x).0.is_none());
            drop(start(Kind::Loss));
        })
        .join()
        .expect("no panic");
        let profile = running.finish();
        assert_eq!(profile.total(), profile.of(Kind::Data).forward);
        assert!(profile.total() > 0.0);
        let x = Tensor::<1>::from_data([1.0], &Device::flex());
        assert!(Span::open(Kind::Loss, &x).0.is_none(), "a finished profile is off");
    }
}

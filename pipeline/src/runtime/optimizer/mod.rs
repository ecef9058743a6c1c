//! Runs Burn's optimizers one parameter at a time, with states keyed by path.

mod any_precision;
mod average;
mod config;
mod groups;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::ops::Range;

use burn::optim::grad_clipping::GradientClippingConfig;
use burn::optim::{DynOptimizer, DynState, StateSink, StateSource};
use burn::tensor::{DType, Device, TensorData};
use burn_backend::ExecutionError;
use burn_dispatch::DispatchTensor;
use burn_pack::Scalar;
use tinderbox_deferred::{Observer, ParameterPath, groups_by_bytes, with_ordered_sums};
use tinderbox_fake::{DynTensor, dtype_name, read_now};

use super::clip::any_rank;
use super::pieces::Piece;
use super::rank::guarded;
use super::restore::{SavedOptimizer, StateFields, StateTensor};
use crate::RestoreError;

pub use any_precision::{AnyPrecisionAdamW, AnyPrecisionState, MomentDType};
use average::{average_of, with_value};
pub use config::OptimizerConfig;
pub(super) use groups::{Optimizers, Rule, check_group, contains};

/// The optimizer state of some parameters in memory, as named tensors and scalars. Names are
/// `optimizer.<path>.<field>`.
#[derive(Clone, Debug, Default)]
pub struct SavedState {
    /// The name and value of every tensor.
    pub tensors: Vec<(String, TensorData)>,
    /// The name and value of every scalar.
    pub scalars: Vec<(String, Scalar)>,
    /// The tensors, by name, of which `tensors` has some rows only, because [replicas](crate::Plan::replicas) divide the
    /// parameter: the shape of the whole tensor, and the first row. The scalars of such a parameter are the scalars of the first
    /// part.
    pub parts: BTreeMap<String, StatePart>,
}

/// Which part of a tensor a saved state has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePart {
    /// The shape of the whole tensor.
    pub shape: Vec<u64>,
    /// The first position in the first dimension.
    pub first_row: u64,
}

/// The prefix of every name of a saved state.
const PREFIX: &str = "optimizer.";

impl SavedState {
    /// The parameter's tensors. Cost: a pass over all names.
    fn tensors_of(&self, path: &ParameterPath) -> impl Iterator<Item = &(String, TensorData)> {
        let prefix = format!("{PREFIX}{path}.");
        let tensors = self.tensors.iter();
        tensors.filter(move |(name, _)| name.starts_with(&prefix))
    }
}

impl SavedOptimizer for SavedState {
    fn fields(&self, path: &ParameterPath) -> StateFields {
        let prefix = format!("{PREFIX}{path}.");
        let tensors = self.tensors_of(path).map(|(name, data)| StateTensor {
            name: name.clone(),
            shape: data.shape().iter().map(|d| *d as u64).collect(),
            dtype: data.dtype(),
        });
        let scalars = self.scalars.iter();
        let scalars = scalars.filter(|(name, _)| name.starts_with(&prefix));
        StateFields {
            tensors: tensors.collect(),
            scalars: scalars.cloned().collect(),
        }
    }

    fn read(
        &self,
        path: &ParameterPath,
        _: &dyn Observer,
    ) -> Result<Vec<TensorData>, Box<dyn Error + Send + Sync>> {
        Ok(self
            .tensors_of(path)
            .map(|(_, data)| data.clone())
            .collect())
    }
}

/// The optimizers and their states for the parameters of one stage, by position.
#[derive(Clone)]
pub(super) struct OptimizerState {
    rules: Vec<Rule>,
    states: Vec<Option<DynState>>,
}

impl OptimizerState {
    /// Creates a state that has not stepped yet, with the rule of each parameter.
    pub(super) fn new(rules: Vec<Rule>) -> Self {
        Self {
            states: vec![None; rules.len()],
            rules,
        }
    }

    /// Takes the state of a parameter.
    pub(super) fn take(&mut self, position: usize) -> Option<DynState> {
        self.states[position].take()
    }

    /// Returns the bytes of the state for an element of a parameter of this rank and dtype, after an update: tried on one.
    pub(super) fn bytes_per_element(
        optimizer: &dyn DynOptimizer,
        rank: usize,
        dtype: DType,
    ) -> u64 {
        let state = Self::after_one_step(optimizer, rank, dtype);
        let tensors = state.tensors.iter();
        tensors.map(|(_, data)| data.dtype().size() as u64).sum()
    }

    /// The state for a parameter of one element after a step. It is empty if the optimizer does not support the rank, because it
    /// fails at its first step then.
    fn after_one_step(optimizer: &dyn DynOptimizer, rank: usize, dtype: DType) -> StateSink {
        let one = || {
            let data = TensorData::ones::<f32, _>(vec![1; rank]).convert_dtype(dtype);
            any_rank(DynTensor::from_data(data, &Device::flex())).into_bridge()
        };
        let tried = guarded(|| {
            let (_, state) = optimizer.step_dyn(rank, 0.0, one(), one(), None);
            let mut sink = StateSink::default();
            if let Some(state) = &state {
                optimizer.state_flatten(PREFIX, state, &mut sink);
            }
            sink
        });
        tried.unwrap_or_default()
    }

    /// Returns how the gradient of a parameter is clipped by its optimizer's configuration.
    pub(super) fn clipping(&self, position: usize) -> Option<&GradientClippingConfig> {
        self.rules[position].clipping.as_ref()
    }

    /// Whether the optimizer has a state to save after it updated a parameter of this rank: tried on
    /// one element.
    pub(super) fn keeps_state(optimizer: &dyn DynOptimizer, rank: usize) -> bool {
        let state = Self::after_one_step(optimizer, rank, DType::F32);
        !state.tensors.is_empty() || !state.scalars.is_empty()
    }

    /// Whether the optimizer updates each row of a parameter of this rank by itself, so that parts of the rows have the
    /// bits of the whole: tried in two steps on a few rows. Its state must be tensors of the parameter's shape, and
    /// numbers.
    pub(super) fn works_by_row(optimizer: &dyn DynOptimizer, rank: usize) -> bool {
        const ROWS: usize = 4;
        let shape = |rows| {
            [rows]
                .into_iter()
                .chain((1..rank).map(|_| 3))
                .collect::<Vec<usize>>()
        };
        let numbers = |seed: f32, rows: Range<usize>| {
            let row: usize = shape(1).iter().product();
            let numbers = rows.start * row..rows.end * row;
            let numbers = numbers.map(|k| ((k as f32 + seed) * 12.9898).sin() * (1.0 + k as f32));
            let data = TensorData::new(numbers.collect::<Vec<f32>>(), shape(rows.len()));
            DynTensor::from_data(data, &Device::flex())
        };
        // The tensors of the state and the value after the steps, then the numbers of the state.
        let after = |rows: Range<usize>| {
            let mut state = None;
            let mut value = numbers(0.5, rows.clone());
            for step in [1.0, 2.0] {
                let gradient = any_rank(numbers(step, rows.clone())).into_bridge();
                let stepped =
                    optimizer.step_dyn(rank, 0.1, any_rank(value).into_bridge(), gradient, state);
                (value, state) = (DispatchTensor::from(stepped.0).into(), stepped.1);
            }
            let mut sink = StateSink::default();
            if let Some(state) = &state {
                optimizer.state_flatten(PREFIX, state, &mut sink);
            }
            let mut tensors: Vec<TensorData> =
                sink.tensors.into_iter().map(|(_, data)| data).collect();
            tensors.push(any_rank(value).into_data());
            (tensors, sink.scalars)
        };
        let tried = guarded(|| {
            let (whole, first, second) = (after(0..ROWS), after(0..1), after(1..ROWS));
            let is_joined =
                |((whole, first), second): ((&TensorData, &TensorData), &TensorData)| {
                    let joined = [first.as_bytes(), second.as_bytes()].concat();
                    whole.shape().to_vec() == shape(ROWS) && whole.as_bytes() == joined
                };
            let tensors = whole.0.iter().zip(&first.0).zip(&second.0);
            let scalars = |saved: &[(String, Scalar)]| format!("{saved:?}");
            whole.0.len() == first.0.len()
                && { tensors }.all(is_joined)
                && scalars(&whole.1) == scalars(&first.1)
                && scalars(&whole.1) == scalars(&second.1)
        });
        tried.unwrap_or(false)
    }

    /// Returns the parameter's next value.
    pub(super) fn step(
        &mut self,
        position: usize,
        lr: f64,
        value: DynTensor,
        gradient: DynTensor,
    ) -> DynTensor {
        let (rank, elements) = (value.shape().num_dims(), value.shape().num_elements());
        let device = value.device();
        let state = self.states[position].take();
        // The bridge type does not contain the rank, which is passed separately.
        let [value, gradient] = [value, gradient].map(|tensor| any_rank(tensor).into_bridge());
        let rule = &self.rules[position];
        // Such as the norm of a parameter.
        let summed = if rule.is_by_element { 0 } else { elements };
        let (value, state) = with_ordered_sums(&device, summed, || {
            rule.optimizer.step_dyn(rank, lr, value, gradient, state)
        });
        self.states[position] = state;
        DispatchTensor::from(value).into()
    }

    /// Returns the average of a parameter's values, if the optimizers keep averages and it has stepped.
    pub(super) fn average(&self, position: usize) -> Option<DynTensor> {
        Some(average_of(self.states[position].as_ref()?).clone())
    }

    /// Advances the average of a parameter, if it has one, by a step that did not update it.
    pub(super) fn average_unchanged(&mut self, position: usize, value: DynTensor, decay: f64) {
        let state = self.states[position].take();
        self.states[position] = state.map(|state| with_value(state, value, decay));
    }

    /// Copies the state of each piece that has one, and that is selected, to the host.
    fn save<'a>(
        &self,
        pieces: &'a [(ParameterPath, Piece)],
        is_selected: impl Fn(&ParameterPath, &Piece) -> bool,
    ) -> Result<Vec<PieceState<'a>>, ExecutionError> {
        let mut saved = Vec::new();
        for (((path, piece), state), rule) in pieces.iter().zip(&self.states).zip(&self.rules) {
            let Some(state) = state.as_ref().filter(|_| is_selected(path, piece)) else {
                continue;
            };
            let mut sink = StateSink::default();
            let prefix = format!("{PREFIX}{path}");
            rule.optimizer.state_flatten(&prefix, state, &mut sink);
            let tensors = sink.tensors.into_iter();
            let tensors = tensors.map(|(name, data)| Ok((name, read_now(data)?)));
            saved.push(PieceState {
                path,
                piece,
                tensors: tensors.collect::<Result<_, ExecutionError>>()?,
                scalars: sink.scalars,
            });
        }
        Ok(saved)
    }

    /// Fails if the saved state of a parameter is of another optimizer or of another shape. Reads no values: it rebuilds a
    /// state with one element per tensor.
    pub(super) fn check(
        &self,
        (position, path, shape): (usize, &ParameterPath, &[u64]),
        fields: &StateFields,
        device: &Device,
    ) -> Result<(), RestoreError> {
        if fields.is_empty() {
            return Ok(());
        }
        let rank = shape.len();
        let one = |tensor: &StateTensor| {
            let shape = vec![1; tensor.shape.len()];
            TensorData::zeros::<f32, _>(shape).convert_dtype(tensor.dtype)
        };
        let data = fields.tensors.iter().map(one).collect();
        let prefix = format!("{PREFIX}{path}");
        // Burn panics on a tensor of another rank.
        let rebuilt = guarded(|| {
            let state = self.rebuilt((position, path, rank), fields, data, device)?;
            let mut sink = StateSink::default();
            let optimizer = &self.rules[position].optimizer;
            optimizer.state_flatten(&prefix, &state, &mut sink);
            Some(sink)
        });
        let sink = rebuilt.ok().flatten().unwrap_or_default();
        let tensors = sink.tensors.into_iter();
        let tensors = tensors.map(|(name, data)| (name, Some(data.dtype())));
        let scalars = sink.scalars.into_iter().map(|(name, _)| (name, None));
        let read: BTreeMap<String, Option<DType>> = tensors.chain(scalars).collect();
        // A state of another optimizer may have all fields that this one needs, and more.
        let mut saved = fields.names();
        saved.sort_unstable();
        if !read.keys().eq(&saved) {
            return Err(other_optimizer(path, fields));
        }
        for tensor in &fields.tensors {
            if self.rules[position].is_by_element && tensor.shape != shape {
                return Err(RestoreError::StateShape {
                    tensor: tensor.name.clone(),
                    saved: tensor.shape.clone(),
                    parameter: shape.to_vec(),
                });
            }
            if let Some(Some(found)) = read.get(&tensor.name)
                && *found != tensor.dtype
            {
                return Err(RestoreError::StateDType {
                    tensor: tensor.name.clone(),
                    saved: dtype_name(tensor.dtype),
                    read: dtype_name(*found),
                });
            }
        }
        Ok(())
    }

    /// Replaces the state of each parameter by the saved one, or by no state if none was saved. The old
    /// states are dropped before the new ones are read, small ones together.
    pub(super) fn restore(
        &mut self,
        parameters: &[(&ParameterPath, &Piece)],
        saved: &dyn SavedOptimizer,
        device: &Device,
        observer: &dyn Observer,
    ) -> Result<(), RestoreError> {
        let mut wanted = Vec::new();
        for (position, (path, piece)) in parameters.iter().enumerate() {
            self.states[position] = saved.state(path);
            if self.states[position].is_some() {
                continue;
            }
            let fields = saved.fields(path);
            if !fields.is_empty() {
                wanted.push((position, *path, *piece, fields));
            }
        }
        let bytes = wanted.iter().map(|(.., fields)| fields.bytes());
        for group in groups_by_bytes(bytes) {
            let group = &wanted[group];
            let paths: Vec<&ParameterPath> = group.iter().map(|(_, path, ..)| *path).collect();
            let read = saved.read_all(&paths, observer);
            let read = read.map_err(|source| unread(&paths, saved, observer, source))?;
            for ((position, path, piece, fields), data) in group.iter().zip(read) {
                // `check` has refused states of other shapes for all optimizers whose parameters are divided.
                let cut = |data: TensorData| match piece.is_whole() {
                    true => data,
                    false => rows_of(data, piece),
                };
                let data = data.into_iter().map(cut).collect();
                let rank = piece.shape.len();
                let state = self.rebuilt((*position, path, rank), fields, data, device);
                let state = state.ok_or_else(|| other_optimizer(path, fields))?;
                self.states[*position] = Some(state);
            }
            // Reports progress even for a small state.
            observer.advanced(0);
        }
        Ok(())
    }

    fn rebuilt(
        &self,
        (position, path, rank): (usize, &ParameterPath, usize),
        fields: &StateFields,
        data: Vec<TensorData>,
        device: &Device,
    ) -> Option<DynState> {
        let mut source = StateSource::new(fields.scalars.iter().cloned().collect());
        for (tensor, data) in fields.tensors.iter().zip(data) {
            source.insert_tensor(tensor.name.clone(), data);
        }
        let prefix = format!("{PREFIX}{path}");
        self.rules[position]
            .optimizer
            .state_unflatten(rank, &prefix, &mut source, device)
    }
}

/// The error of states that could not be read together, with the first that can't be read alone.
fn unread(
    paths: &[&ParameterPath],
    saved: &dyn SavedOptimizer,
    observer: &dyn Observer,
    source: Box<dyn Error + Send + Sync>,
) -> RestoreError {
    let alone = paths
        .iter()
        .find_map(|path| Some((*path, saved.read(path, observer).err()?)));
    let (path, source) = alone.unwrap_or((paths[0], source));
    RestoreError::ReadState {
        path: path.clone(),
        source,
    }
}

/// The rows of a piece, of a tensor of its parameter's state.
fn rows_of(data: TensorData, piece: &Piece) -> TensorData {
    if data
        .shape()
        .iter()
        .map(|size| *size as u64)
        .ne(piece.shape.iter().copied())
    {
        return data;
    }
    let (dtype, row) = (
        data.dtype(),
        data.as_bytes().len() as u64 / piece.shape[0].max(1),
    );
    let bytes = (piece.rows.start * row) as usize..(piece.rows.end * row) as usize;
    let shape: Vec<usize> = piece.size().iter().map(|size| *size as usize).collect();
    TensorData::from_bytes_vec(data.as_bytes()[bytes].to_vec(), shape, dtype)
}

fn other_optimizer(path: &ParameterPath, fields: &StateFields) -> RestoreError {
    RestoreError::OptimizerState {
        path: path.clone(),
        found: fields.names(),
    }
}

/// The state of a piece on the host.
pub(super) struct PieceState<'a> {
    pub(super) path: &'a ParameterPath,
    pub(super) piece: &'a Piece,
    pub(super) tensors: Vec<(String, TensorData)>,
    pub(super) scalars: Vec<(String, Scalar)>,
}

/// The state of a stage's optimizer at one point in time.
#[derive(Clone, Debug)]
pub struct OptimizerSnapshot {
    optimizer: Option<OptimizerState>,
    pieces: Vec<(ParameterPath, Piece)>,
}

impl OptimizerSnapshot {
    pub(super) fn new(
        optimizer: Option<OptimizerState>,
        pieces: Vec<(ParameterPath, Piece)>,
    ) -> Self {
        Self { optimizer, pieces }
    }

    /// Returns the state, copied to the host; empty without an optimizer.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn to_host(&self) -> Result<SavedState, ExecutionError> {
        let mut saved = SavedState::default();
        for PieceState {
            piece,
            tensors,
            scalars,
            ..
        } in self.of_pieces(|_, _| true)?
        {
            for (name, _) in tensors.iter().filter(|_| !piece.is_whole()) {
                let part = StatePart {
                    shape: piece.shape.clone(),
                    first_row: piece.rows.start,
                };
                saved.parts.insert(name.clone(), part);
            }
            saved.tensors.extend(tensors);
            if piece.rows.start == 0 {
                saved.scalars.extend(scalars);
            }
        }
        Ok(saved)
    }

    /// Returns the state of each piece that has one, and that is selected, copied to the host.
    pub(super) fn of_pieces(
        &self,
        is_selected: impl Fn(&ParameterPath, &Piece) -> bool,
    ) -> Result<Vec<PieceState<'_>>, ExecutionError> {
        match &self.optimizer {
            Some(optimizer) => optimizer.save(&self.pieces, is_selected),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the state of each piece that has one, as it is.
    pub(super) fn states(&self) -> impl Iterator<Item = (&ParameterPath, &Piece, &DynState)> {
        let states = self
            .optimizer
            .iter()
            .flat_map(|optimizer| &optimizer.states);
        let pieces = self.pieces.iter().zip(states);
        pieces.filter_map(|((path, piece), state)| Some((path, piece, state.as_ref()?)))
    }
}

impl fmt::Debug for OptimizerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stepped = self.states.iter().filter(|state| state.is_some()).count();
        f.debug_struct("OptimizerState")
            .field("parameters", &self.states.len())
            .field("stepped", &stepped)
            .finish_non_exhaustive()
    }
}

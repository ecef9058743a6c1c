//! Runs Burn's optimizers one parameter at a time, with states keyed by path.

use std::collections::BTreeMap;
use std::error::Error;

use burn::optim::grad_clipping::GradientClippingConfig;
use burn::optim::{DynState, StateSource};
use burn::tensor::{DType, Device, TensorData};
use burn_pack::Scalar;
use tinderbox_deferred::{Observer, ParameterPath, groups_by_bytes, with_ordered_sums};
use tinderbox_fake::{DynTensor, ExecutionError, dtype_name, read_now};

use super::average::{average_of, with_value};
use super::groups::Rule;
use super::saved::{
    PREFIX, SavedOptimizer, SavedState, StateFields, StatePart, StateTensor, flattened,
};
use crate::RestoreError;
use crate::runtime::caught::guarded;
use crate::runtime::clip::any_rank;
use crate::runtime::pieces::Piece;

/// The optimizers and their states for the parameters of one stage, by position.
#[derive(Clone, derive_more::Debug)]
#[debug("OptimizerState {{ parameters: {}, stepped: {}, .. }}", states.len(), states.iter().flatten().count())]
pub(crate) struct OptimizerState {
    rules: Vec<Rule>,
    states: Vec<Option<DynState>>,
}

impl OptimizerState {
    /// Creates a state that has not stepped yet, with the rule of each parameter.
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        Self {
            states: vec![None; rules.len()],
            rules,
        }
    }

    /// Takes the state of a parameter.
    pub(crate) fn take(&mut self, position: usize) -> Option<DynState> {
        self.states[position].take()
    }

    /// Returns how the gradient of a parameter is clipped by its optimizer's configuration.
    pub(crate) fn clipping(&self, position: usize) -> Option<&GradientClippingConfig> {
        self.rules[position].clipping.as_ref()
    }

    /// Returns the parameter's next value.
    pub(crate) fn step(
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
        value.into()
    }

    /// Returns the average of a parameter's values, if the optimizers keep averages and it has stepped.
    pub(crate) fn average(&self, position: usize) -> Option<DynTensor> {
        Some(average_of(self.states[position].as_ref()?).clone())
    }

    /// Advances the average of a parameter, if it has one, by a step that did not update it.
    pub(crate) fn average_unchanged(&mut self, position: usize, value: DynTensor, decay: f64) {
        let state = self.states[position].take();
        self.states[position] = state.map(|state| with_value(state, value, decay));
    }

    /// Fails if the saved state of a parameter is of another optimizer or of another shape. Reads no values: it rebuilds a
    /// state with one element per tensor.
    pub(crate) fn check(
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
            let optimizer = &*self.rules[position].optimizer;
            Some(flattened(optimizer, &prefix, Some(&state)))
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
    pub(crate) fn restore(
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
                let data = data.into_iter().map(|data| rows_of(data, piece));
                let rank = piece.shape.len();
                let data = data.collect();
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
        let (prefix, optimizer) = (format!("{PREFIX}{path}"), &self.rules[position].optimizer);
        optimizer.state_unflatten(rank, &prefix, &mut source, device)
    }
}

/// The error of states that could not be read together, with the first that can't be read alone.
fn unread(
    paths: &[&ParameterPath],
    saved: &dyn SavedOptimizer,
    observer: &dyn Observer,
    source: Box<dyn Error + Send + Sync>,
) -> RestoreError {
    let mut each = paths.iter();
    let alone = each.find_map(|path| Some((*path, saved.read(path, observer).err()?)));
    let (path, source) = alone.unwrap_or((paths[0], source));
    RestoreError::ReadState {
        path: path.clone(),
        source,
    }
}

/// The rows of a piece, of a tensor of its parameter's state.
fn rows_of(data: TensorData, piece: &Piece) -> TensorData {
    let sizes = data.shape().iter().map(|size| *size as u64);
    if piece.is_whole() || !sizes.eq(piece.shape.iter().copied()) {
        return data;
    }
    let (dtype, rows) = (data.dtype(), piece.shape[0].max(1));
    let row = data.as_bytes().len() as u64 / rows;
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
pub(crate) struct PieceState<'a> {
    pub(crate) path: &'a ParameterPath,
    pub(crate) piece: &'a Piece,
    pub(crate) tensors: Vec<(String, TensorData)>,
    pub(crate) scalars: Vec<(String, Scalar)>,
}

/// The state of a stage's optimizer at one point in time.
#[derive(Clone, Debug)]
pub struct OptimizerSnapshot {
    optimizer: Option<OptimizerState>,
    pieces: Vec<(ParameterPath, Piece)>,
}

impl OptimizerSnapshot {
    pub(crate) fn new(
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
        for state in self.of_pieces(|_, _| true)? {
            let (piece, first_row) = (state.piece, state.piece.rows.start);
            for (name, _) in state.tensors.iter().filter(|_| !piece.is_whole()) {
                let shape = piece.shape.clone();
                let part = StatePart { shape, first_row };
                saved.parts.insert(name.clone(), part);
            }
            saved.tensors.extend(state.tensors);
            if first_row == 0 {
                saved.scalars.extend(state.scalars);
            }
        }
        Ok(saved)
    }

    /// Returns the state of each piece that has one, and that is selected, copied to the host.
    pub(crate) fn of_pieces(
        &self,
        is_selected: impl Fn(&ParameterPath, &Piece) -> bool,
    ) -> Result<Vec<PieceState<'_>>, ExecutionError> {
        let stepped = self.stepped();
        let selected = stepped.filter(|(path, piece, ..)| is_selected(path, piece));
        let saved = selected.map(|(path, piece, state, rule)| {
            let sink = flattened(&*rule.optimizer, &format!("{PREFIX}{path}"), Some(state));
            let tensors = sink.tensors.into_iter();
            let tensors = tensors.map(|(name, data)| Ok((name, read_now(data)?)));
            Ok(PieceState {
                path,
                piece,
                tensors: tensors.collect::<Result<_, ExecutionError>>()?,
                scalars: sink.scalars,
            })
        });
        saved.collect()
    }

    /// Returns the state of each piece that has one, as it is.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&ParameterPath, &Piece, &DynState)> {
        let stepped = self.stepped();
        stepped.map(|(path, piece, state, _)| (path, piece, state))
    }

    /// The pieces that have a state, with the rule of each.
    fn stepped(&self) -> impl Iterator<Item = (&ParameterPath, &Piece, &DynState, &Rule)> {
        let optimizer = self.optimizer.iter();
        let states = optimizer.flat_map(|of| of.states.iter().zip(&of.rules));
        let pieces = self.pieces.iter().zip(states);
        pieces
            .filter_map(|((path, piece), (state, rule))| Some((path, piece, state.as_ref()?, rule)))
    }
}

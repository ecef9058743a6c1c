//! Runs Burn's optimizers one parameter at a time, with states keyed by path.

use std::collections::BTreeMap;
use std::error::Error;

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

/// The optimizer's state of a parameter, in memory.
#[derive(Clone)]
pub(crate) enum State {
    /// The parameter has none yet.
    None,
    /// The fields and the data that were read.
    Read(StateFields, Vec<TensorData>),
    /// The state that the optimizer has returned.
    Kept(DynState),
}

/// The optimizer of a piece that a stage updates, and its state.
#[derive(Clone, derive_more::Debug)]
pub(crate) struct PieceOptimizer {
    pub(crate) path: ParameterPath,
    pub(crate) piece: Piece,
    pub(crate) rule: Rule,
    /// `None` until it has stepped.
    #[debug("{}", state.is_some())]
    pub(crate) state: Option<DynState>,
}

impl PieceOptimizer {
    /// Returns the next value of the piece.
    pub(crate) fn step(&mut self, lr: f64, value: DynTensor, gradient: DynTensor) -> DynTensor {
        let (rank, elements) = (value.shape().num_dims(), value.shape().num_elements());
        let device = value.device();
        let state = self.state.take();
        // The bridge type does not contain the rank, which is passed separately.
        let [value, gradient] = [value, gradient].map(|tensor| any_rank(tensor).into_bridge());
        // For example the norm of a parameter.
        let summed = if self.rule.is_by_element { 0 } else { elements };
        let optimizer = &self.rule.optimizer;
        let (value, state) = with_ordered_sums(&device, summed, || {
            optimizer.step_dyn(rank, lr, value, gradient, state)
        });
        self.state = state;
        value.into()
    }

    /// Replaces the state by a state of its parameter.
    pub(crate) fn set_state(&mut self, state: State, device: &Device) -> Result<(), RestoreError> {
        self.state = match state {
            State::None => None,
            State::Kept(state) => Some(state),
            State::Read(fields, data) => Some(self.rebuilt(&fields, data, device)?),
        };
        Ok(())
    }

    /// Builds the state of the piece from the saved state of its parameter.
    fn rebuilt(
        &self,
        fields: &StateFields,
        data: Vec<TensorData>,
        device: &Device,
    ) -> Result<DynState, RestoreError> {
        let (path, rank) = (&self.path, self.piece.shape.len());
        // `check` has refused states of other shapes for all optimizers whose parameters are divided.
        let data = data.into_iter().map(|data| rows_of(data, &self.piece));
        let state = (self.rule).rebuilt(path, rank, fields, data.collect(), device);
        state.ok_or_else(|| other_optimizer(path, fields))
    }

    /// Returns the average of the values, if this optimizer has stepped. Call it only if the optimizers keep averages.
    pub(crate) fn average(&self) -> Option<DynTensor> {
        Some(average_of(self.state.as_ref()?).clone())
    }

    /// Advances the average, if there is one, by a step that did not update the piece.
    pub(crate) fn average_unchanged(&mut self, value: DynTensor, decay: f64) {
        let state = self.state.take();
        self.state = state.map(|state| with_value(state, value, decay));
    }
}

impl Rule {
    /// Fails if the saved state of a parameter is of another optimizer or of another shape. Reads no values: it rebuilds a
    /// state with one element per tensor.
    pub(crate) fn check(
        &self,
        path: &ParameterPath,
        shape: &[u64],
        fields: &StateFields,
        device: &Device,
    ) -> Result<(), RestoreError> {
        if fields.is_empty() {
            return Ok(());
        }
        let one = |tensor: &StateTensor| {
            let shape = vec![1; tensor.shape.len()];
            TensorData::zeros::<f32, _>(shape).convert_dtype(tensor.dtype)
        };
        let data = fields.tensors.iter().map(one).collect();
        let prefix = format!("{PREFIX}{path}");
        // Burn panics on a tensor of another rank.
        let rebuilt = guarded(|| {
            let state = self.rebuilt(path, shape.len(), fields, data, device)?;
            Some(flattened(&*self.optimizer, &prefix, Some(&state)))
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
            if self.is_by_element && tensor.shape != shape {
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

    fn rebuilt(
        &self,
        path: &ParameterPath,
        rank: usize,
        fields: &StateFields,
        data: Vec<TensorData>,
        device: &Device,
    ) -> Option<DynState> {
        let mut source = StateSource::new(fields.scalars.iter().cloned().collect());
        for (tensor, data) in fields.tensors.iter().zip(data) {
            source.insert_tensor(tensor.name.clone(), data);
        }
        let prefix = format!("{PREFIX}{path}");
        let optimizer = &self.optimizer;
        optimizer.state_unflatten(rank, &prefix, &mut source, device)
    }
}

/// Replaces the state of each piece by the saved state, or by no state if none was saved. Drops the old states before it
/// reads the new ones, small states together.
pub(crate) fn restore_states(
    optimizers: &mut [PieceOptimizer],
    saved: &dyn SavedOptimizer,
    device: &Device,
    observer: &dyn Observer,
) -> Result<(), RestoreError> {
    let mut wanted = Vec::new();
    for optimizer in optimizers {
        optimizer.state = None;
        let fields = saved.fields(&optimizer.path);
        if !fields.is_empty() {
            wanted.push((optimizer, fields));
        }
    }
    let bytes = wanted.iter().map(|(_, fields)| fields.bytes());
    for group in groups_by_bytes(bytes) {
        let group = &mut wanted[group];
        let paths: Vec<&ParameterPath> = group.iter().map(|(of, _)| &of.path).collect();
        let read = saved.read(&paths, observer);
        let read = read.map_err(|source| unread(&paths, saved, observer, source))?;
        for ((optimizer, fields), data) in group.iter_mut().zip(read) {
            optimizer.state = Some(optimizer.rebuilt(fields, data, device)?);
        }
        // Reports progress even for a small state.
        observer.advanced(0);
    }
    Ok(())
}

/// The error of states that could not be read together. It names the first state that can't be read alone.
fn unread(
    paths: &[&ParameterPath],
    saved: &dyn SavedOptimizer,
    observer: &dyn Observer,
    source: Box<dyn Error + Send + Sync>,
) -> RestoreError {
    let mut each = paths.iter();
    let alone = each.find_map(|path| Some((*path, saved.read(&[*path], observer).err()?)));
    let (path, source) = alone.unwrap_or((paths[0], source));
    let path = path.clone();
    RestoreError::ReadState { path, source }
}

/// The rows of a piece, in a tensor of the state of its parameter.
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
    let (path, found) = (path.clone(), fields.names());
    RestoreError::OptimizerState { path, found }
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
pub struct OptimizerSnapshot(pub(crate) Vec<PieceOptimizer>);

impl OptimizerSnapshot {
    /// Returns the state, copied to the host as a whole, because Burn provides no other form. It is empty without an optimizer.
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

    /// Returns the state of each selected piece that has one, copied to the host.
    pub(crate) fn of_pieces(
        &self,
        is_selected: impl Fn(&ParameterPath, &Piece) -> bool,
    ) -> Result<Vec<PieceState<'_>>, ExecutionError> {
        let selected = self.0.iter();
        let selected = selected.filter(|of| of.state.is_some() && is_selected(&of.path, &of.piece));
        let saved = selected.map(|of| {
            let prefix = format!("{PREFIX}{}", of.path);
            let sink = flattened(&*of.rule.optimizer, &prefix, of.state.as_ref());
            let tensors = sink.tensors.into_iter();
            let tensors = tensors.map(|(name, data)| Ok((name, read_now(data)?)));
            Ok(PieceState {
                path: &of.path,
                piece: &of.piece,
                tensors: tensors.collect::<Result<_, ExecutionError>>()?,
                scalars: sink.scalars,
            })
        });
        saved.collect()
    }

    /// Returns the state of each piece that has one, without a copy.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&ParameterPath, &Piece, &DynState)> {
        let pieces = self.0.iter();
        pieces.filter_map(|of| Some((&of.path, &of.piece, of.state.as_ref()?)))
    }
}

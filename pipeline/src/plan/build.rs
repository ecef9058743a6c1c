//! Makes a plan from a trace and the places of the cuts.

use std::collections::BTreeMap;

use tinderbox_deferred::{ParameterPath, ParameterTable};
use twox_hash::XxHash3_128;

use super::{Boundary, Plan, PlanStage, VERSION};
use crate::PlanError;
use crate::batch::Batch;
use crate::cut::{Cutting, Holding, Layout, Sharing};
use crate::partition::{Chain, Unit};
use crate::schedule::{RankIndex, StageIndex};
use crate::trace::{Roles, Trace};

/// A digest of what a plan depends on: path, shape and dtype of every parameter, in order.
pub(super) fn model_digest(table: &ParameterTable) -> String {
    let mut text = String::new();
    for parameter in table {
        text.push_str(&format!(
            "{}\n{:?}\n{:?}\n",
            parameter.path, parameter.shape, parameter.dtype
        ));
    }
    format!("{:032x}", XxHash3_128::oneshot(text.as_bytes()))
}

impl Plan {
    pub(super) fn build<B: Batch>(
        trace: &Trace<B>,
        starts: impl FnOnce(&[Unit], &ParameterTable) -> Result<Vec<usize>, PlanError>,
    ) -> Result<Self, PlanError> {
        let table = trace.parameters();
        let joint = trace
            .example_program()
            .map_err(|source| PlanError::Trace { source })?;
        let roles = Roles::of(&joint);
        let chain = Chain::new(&joint, &roles, table);
        let units = chain.units(table);
        let starts = starts(&units, table)?;
        let ends = starts.iter().skip(1).copied().chain([units.len()]);
        let of_stage: Vec<&[Unit]> = starts
            .iter()
            .zip(ends)
            .map(|(start, end)| &units[*start..end])
            .collect();
        let holdings = of_stage.iter().map(|units| Holding {
            owned: units
                .iter()
                .flat_map(|unit| unit.parameters.clone())
                .collect(),
            replicas: Vec::new(),
        });
        let layout = Layout::new(table, holdings.collect(), Sharing::Open)?;
        let cutting = Cutting::new(&joint, &roles, &chain, table, &layout)?;
        let boundaries: Vec<Boundary> = cutting
            .edges()
            .iter()
            .map(|(edge, values)| Boundary {
                edge: *edge,
                values: values.len(),
                bytes: values.iter().map(|v| joint.graph().value(*v).bytes()).sum(),
            })
            .collect();
        let bytes_of: BTreeMap<&ParameterPath, u64> =
            table.iter().map(|p| (&p.path, p.bytes)).collect();
        let bytes = |paths: &[ParameterPath]| -> u64 {
            paths.iter().filter_map(|path| bytes_of.get(path)).sum()
        };
        let stages = of_stage.iter().enumerate().map(|(index, units)| {
            let stage = StageIndex::new(index);
            let replicas = cutting.replicas(stage);
            let parameters = layout.owned(stage).to_vec();
            let sent = boundaries.iter().filter(|b| b.edge.from.stage == stage);
            PlanStage {
                stage,
                rank: RankIndex::new(index),
                modules: units.iter().map(|unit| unit.module.clone()).collect(),
                parameter_bytes: bytes(&parameters),
                replica_bytes: bytes(&replicas),
                parameters,
                replicas,
                forward_flops: cutting.forward_flops(stage),
                boundary_bytes: sent.map(|b| b.bytes).sum(),
                recompute: false,
            }
        });
        Ok(Self {
            version: VERSION,
            model: model_digest(table),
            program: joint.key().to_string(),
            stages: stages.collect(),
            boundaries: boundaries.clone(),
        })
    }
}

//! Runs the programs of every stage on fingerprints.

use std::sync::Arc;

use burn::tensor::TensorData;
use derive_more::From;
use tinderbox_deferred::{Interpreter, ParameterTable, Program, ProgramError, RandomValues};
use tinderbox_fake::{BurnOperation, Operation, ValueId, typed_shape};

use super::fingerprint::{Draws, Fingerprint, Hasher};
use super::reference::{Reference, random_text};
use super::refused::{Result, differs};
use crate::cut::{Binding, Layout, Phase, StagePrograms};
use crate::lists::StepLists;
use crate::schedule::{Compute, RankIndex, StageIndex};
use crate::sum::Groups;
use crate::trace::{Given, JointGraph};
use crate::{CertifyError, CertifySite};

/// The programs of all stages, each proven to compute the values of the uncut graph, on which
/// [`certify_lists`](super::certify_lists) relies.
#[derive(Clone, Debug)]
pub struct CertifiedPrograms {
    pub stages: Vec<StagePrograms>,
    /// The uncut graph.
    pub joint: Arc<JointGraph>,
    /// The positions of the parameters that have gradients, without clones.
    pub(super) gradients: Vec<usize>,
}

/// The lists of a step, with their programs.
#[derive(Debug)]
pub struct CertifiedStep<'a> {
    /// The lists of each replica, and its first micro-batch.
    pub replicas: Vec<(&'a StepLists, usize)>,
    /// The programs of each micro-batch of all replicas.
    pub micro_batches: Vec<&'a CertifiedPrograms>,
    /// The groups in which gradients are added.
    pub groups: Groups,
    pub table: &'a ParameterTable,
    pub layout: &'a Layout,
    /// Whether an update needs the norms of the gradients of all stages.
    pub global_norm: bool,
}

/// Proves that every program of a cut computes the values of the uncut graph to which it is bound.
///
/// Cost: about a microsecond per operation of the graph and of the programs. Constants are hashed once.
///
/// # Errors
///
/// [`CertifyError`] for the first value that differs.
pub fn certify_programs(
    joint: &Arc<JointGraph>,
    stages: Vec<StagePrograms>,
    ranks: &[RankIndex],
) -> Result<CertifiedPrograms> {
    let mut hasher = Hasher::default();
    let reference = Reference::new(joint, &mut hasher);
    for (index, programs) in stages.iter().enumerate() {
        let site = CertifySite {
            rank: ranks[index],
            stage: StageIndex::new(index),
            micro_batch: None,
            at: "constants".to_owned(),
        };
        certify_stage(&reference, programs, site, &mut hasher)?;
    }
    let gradients = joint.gradients().iter().zip(joint.parameters()).enumerate();
    let gradients = gradients.filter(|(position, (gradient, value))| {
        gradient.is_some() && joint.given(**value) == Some(Given::Parameter(*position))
    });
    Ok(CertifiedPrograms {
        gradients: gradients.map(|(position, _)| position).collect(),
        stages,
        joint: joint.clone(),
    })
}

fn certify_stage(
    reference: &Reference<'_>,
    programs: &StagePrograms,
    site: CertifySite,
    hasher: &mut Hasher,
) -> Result<()> {
    let mut run = ProgramRun {
        reference,
        hasher,
        site,
        draws: Draws::Once,
    };
    let constants = run.program(&programs.constants, Vec::new())?;
    run.draws = Draws::PerMicroBatch;
    for compute in Compute::ALL {
        if let Some(phase) = programs.phase(compute) {
            run.site.at = format!("program {}", compute.letter());
            run.phase(phase, &constants)?;
        }
    }
    run.site.at = "results".to_owned();
    let joint = reference.joint;
    if let Some(loss) = programs.loss {
        run.result("the loss", joint.loss(), loss)?;
    }
    for (name, value) in &programs.outputs {
        let mut known = joint.outputs().iter();
        let expected = known.find(|(known, _)| known == name);
        let expected = expected.map(|(_, value)| *value);
        run.result(&format!("output `{name}`"), expected, *value)?;
    }
    Ok(())
}

/// Runs a program on fingerprints.
struct ProgramRun<'a, 'h> {
    reference: &'a Reference<'a>,
    hasher: &'h mut Hasher,
    site: CertifySite,
    draws: Draws,
}

/// An error of a program without its site.
#[derive(From)]
enum Refused {
    Program(ProgramError),
    Differs(Box<CertifyError>),
}

impl ProgramRun<'_, '_> {
    fn program(&mut self, program: &Program, inputs: Vec<Fingerprint>) -> Result<Vec<Fingerprint>> {
        let made = program.interpret(self, inputs);
        made.map_err(|refused| match refused {
            Refused::Differs(error) => *error,
            Refused::Program(source) => CertifyError::Program {
                site: Box::new(self.site.clone()),
                source,
            },
        })
    }

    fn differs(&self, what: String, expected: String, found: String) -> CertifyError {
        differs(Box::new(self.site.clone()), [what, expected, found])
    }

    fn count(&self, what: &str, expected: usize, found: usize) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        let what = format!("the number of bound {what} is");
        Err(self.differs(what, expected.to_string(), found.to_string()))
    }

    /// Runs a program with its bound inputs, and checks its outputs.
    fn phase(&mut self, phase: &Phase, constants: &[Fingerprint]) -> Result<()> {
        let values = phase.program.inputs();
        self.count("inputs", values.len(), phase.inputs.len())?;
        let types = phase.program.input_types();
        let mut inputs = Vec::with_capacity(values.len());
        for ((value, binding), (shape, dtype)) in values.iter().zip(&phase.inputs).zip(types) {
            let given = match *binding {
                Binding::Given(given) => Some(self.hasher.given(given, shape, *dtype)),
                Binding::Constant(position) => constants.get(position).copied(),
                // The lists prove that the input has this value.
                Binding::Value(given) => self.reference.find(given),
            };
            match given.filter(|given| self.reference.find(*value) == Some(*given)) {
                Some(given) => inputs.push(given),
                None => {
                    let expected = self.reference.describe(*value);
                    let what = "an input is bound to".to_owned();
                    return Err(self.differs(what, expected, self.describe(*binding)));
                }
            }
        }
        let made = self.program(&phase.program, inputs)?;
        let bound = phase.outputs.len() + phase.gradients.len();
        let bound = bound + phase.updates.len() + phase.carried.len();
        self.count("outputs", made.len(), bound)?;
        let joint = self.reference.joint;
        let outputs = phase.outputs.iter();
        let outputs = outputs.map(|(value, _)| ("an output", None, Some(*value)));
        let gradients = phase.gradients.iter().map(|at| {
            let expected = joint.gradients().get(*at).copied().flatten();
            ("the gradient of", Some(Given::Parameter(*at)), expected)
        });
        let updates = phase.updates.iter().map(|at| {
            let expected = joint.updates().get(at).copied();
            ("the new value of", Some(Given::Parameter(*at)), expected)
        });
        let carried = phase.carried.iter().map(|at| {
            let expected = joint.carried().get(at).copied();
            ("the new value of", Some(Given::Input(*at)), expected)
        });
        let bound = outputs.chain(gradients).chain(updates).chain(carried);
        for ((what, given, expected), made) in bound.zip(made) {
            if expected.and_then(|value| self.reference.find(value)) != Some(made) {
                let given = given.map(|given| format!("{what} {}", self.reference.given(given)));
                let what = given.unwrap_or_else(|| what.to_owned());
                return Err(self.wrong(&what, expected, self.value_of(made)));
            }
        }
        Ok(())
    }

    /// Fails if a loss or a named output is another value.
    fn result(&self, what: &str, expected: Option<ValueId>, found: ValueId) -> Result<()> {
        let fingerprint = self.reference.find(found);
        match expected.is_some_and(|value| self.reference.find(value) == fingerprint) {
            true => Ok(()),
            false => Err(self.wrong(what, expected, Some(found))),
        }
    }

    fn wrong(&self, what: &str, expected: Option<ValueId>, found: Option<ValueId>) -> CertifyError {
        let what = format!("{what} is bound to");
        self.differs(what, self.or_nothing(expected), self.or_nothing(found))
    }

    /// A value of the model with this fingerprint.
    fn value_of(&self, made: Fingerprint) -> Option<ValueId> {
        let mut values = self.reference.joint.graph().value_ids();
        values.find(|value| self.reference.find(*value) == Some(made))
    }

    fn or_nothing(&self, value: Option<ValueId>) -> String {
        let described = value.map(|value| self.reference.describe(value));
        described.unwrap_or_else(|| "no value of the model".into())
    }

    fn describe(&self, binding: Binding) -> String {
        match binding {
            Binding::Given(given) => self.reference.given(given),
            Binding::Constant(position) => format!("constant {position}"),
            Binding::Value(value) => self.reference.describe(value),
        }
    }

    fn other_operation(&self, value: ValueId, found: String) -> Refused {
        let known = self.reference.find(value).is_some();
        let place = known.then(|| self.reference.place(value)).flatten();
        let place = place.map_or_else(String::new, |place| format!(", at {place},"));
        let expected = match known {
            true => self.reference.operation(value),
            false => "no operation".into(),
        };
        let what = format!("{value}{place} is computed by");
        Refused::Differs(Box::new(self.differs(what, expected, found)))
    }
}

impl Interpreter for ProgramRun<'_, '_> {
    type Value = Fingerprint;
    type Error = Refused;

    fn constant(&mut self, value: ValueId, data: &TensorData) -> Result<Fingerprint, Refused> {
        let found = self.hasher.constant(data);
        if self.reference.find(value) == Some(found) {
            return Ok(found);
        }
        let found = format!("other data {}", typed_shape(data.dtype(), data.shape()));
        let error = self.differs(format!("{value} is"), self.reference.describe(value), found);
        Err(Refused::Differs(Box::new(error)))
    }

    fn operation(
        &mut self,
        operation: &BurnOperation,
        inputs: &[Fingerprint],
        outputs: &mut Vec<Fingerprint>,
    ) -> Result<(), Refused> {
        let operation = Operation::from(operation);
        let operands = inputs.iter().copied();
        self.hasher.operation(operation, operands, outputs);
        for (value, found) in operation.outputs().zip(outputs.iter()) {
            if self.reference.find(value) != Some(*found) {
                return Err(self.other_operation(value, operation.describe_with_inputs()));
            }
        }
        Ok(())
    }

    fn random(&mut self, random: RandomValues<'_>) -> Result<Fingerprint, Refused> {
        let found = self.hasher.random(random, self.draws);
        let value = ValueId::of_tensor(random.out);
        let value = value.expect("the ids of a program are ids of a graph");
        if self.reference.find(value) == Some(found) {
            return Ok(found);
        }
        let found = random_text(random.key, random.distribution, random.whole);
        let found = match self.draws {
            Draws::Once => format!("{found}, once for all steps"),
            Draws::PerMicroBatch => found,
        };
        Err(self.other_operation(value, found))
    }
}

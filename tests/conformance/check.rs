//! Compares a row's module with plain Burn.

use std::any::type_name;
use std::sync::{Mutex, MutexGuard};

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Device, TensorData};
use tinderbox::{Deferred, Mode, Trace, TraceError, Traceable, Values, parameter_values};

use crate::eager::{self, Eager};
use crate::inputs::Inputs;
use crate::probe::Probe;
use crate::row::{Conforms, Outcome, Report, Row, Tracing, Verdict};
use crate::traced::{self, Generator};

/// Seed of the initialization.
const SEED: u64 = 7;
/// Seed of a forward that draws random values.
const FORWARD_SEED: u64 = 11;

/// The generator of the `flex` backend belongs to the process: one row at a time seeds and draws.
static GENERATOR: Mutex<()> = Mutex::new(());

fn hold_generator() -> MutexGuard<'static, ()> {
    GENERATOR.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl<M: Module + ModuleDisplay + Sync + 'static, I: Inputs> Conforms for Row<M, I> {
    fn module(&self) -> String {
        type_name::<M>().to_owned()
    }

    fn case(&self) -> &'static str {
        self.case
    }

    fn check(&self) -> Result<Report, String> {
        let _held = hold_generator();
        let checked = Checked::new(self)?;
        let materialized = checked.materialized()?;
        let refused = |mode, expected: &str| match checked.trace(mode) {
            Ok(_) => Err(format!("{mode:?}: the trace is not refused")),
            Err(error) if chain(&error) == expected => Ok(Verdict::Refused),
            Err(error) => Err(format!(
                "{mode:?}: another error\nexpected: {expected}\n   found: {}",
                chain(&error)
            )),
        };
        let inference = match self.tracing {
            Tracing::Refused(expected) => refused(Mode::Inference, expected)?,
            _ => checked.inference()?,
        };
        let (training, gradients) = match self.tracing {
            Tracing::Equal => checked.training(Generator::None)?,
            Tracing::DrawsInTraining => checked.training(Generator::Backend)?,
            Tracing::Refused(expected) | Tracing::TrainingRefused(expected) => {
                let verdict = refused(Mode::Training, expected)?;
                (verdict.clone(), verdict)
            }
        };
        Ok(Report {
            materialized,
            inference,
            training,
            gradients,
        })
    }
}

/// An error with all of its causes.
fn chain(error: &TraceError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// A row's model, unlit and as plain Burn makes it.
struct Checked<'a, M: Module + ModuleDisplay, I> {
    row: &'a Row<M, I>,
    model: Deferred<Probe<M>>,
    eager: Probe<M>,
    eager_training: Probe<M>,
}

impl<'a, M: Module + ModuleDisplay + Sync + 'static, I: Inputs> Checked<'a, M, I> {
    fn new(row: &'a Row<M, I>) -> Result<Self, String> {
        let sizes = (row.inputs)(&Device::flex()).float_sizes();
        let init = row.init;
        let init = move |device: &Device| Probe::new(init(device), &sizes, device);
        Ok(Self {
            row,
            eager: eager::construct(&init, &Device::flex(), SEED),
            eager_training: eager::construct(&init, &Device::flex().autodiff(), SEED),
            model: Deferred::new(init).map_err(|error| error.to_string())?,
        })
    }

    fn forward(&self) -> impl Fn(&Probe<M>, I) -> Outcome + Send + Sync + 'static {
        let forward = self.row.forward;
        move |probe, inputs| forward(&probe.module, probe.shift(inputs))
    }

    fn materialized(&self) -> Result<Verdict, String> {
        let source: Values = parameter_values(&self.eager).into_iter().collect();
        let mut count = 0;
        let devices = [Device::flex(), Device::flex().autodiff()];
        for (device, eager) in devices.iter().zip([&self.eager, &self.eager_training]) {
            let module = self.model.materialize(device, &source);
            let module = module.map_err(|error| error.to_string())?;
            let expected = eager::parameters(eager);
            let found = eager::parameters(&module);
            count += eager::compare("materialized", &expected, &found)?;
            let run = |module| {
                device.seed(FORWARD_SEED);
                Eager::forward(&self.forward(), module, (self.row.inputs)(device))
            };
            let (expected, found) = (run(eager), run(&module));
            count += eager::compare("materialized forward", &expected.outputs, &found.outputs)?;
        }
        Ok(Verdict::Equal(count))
    }

    fn trace(&self, mode: Mode) -> Result<Trace<I>, TraceError> {
        let example = (self.row.inputs)(&Device::flex());
        let forward = self.forward();
        let forward = move |probe: &Probe<M>, inputs| forward(probe, inputs).outputs();
        match mode {
            Mode::Inference => self.model.trace_forward(&example, forward),
            Mode::Training => self.model.trace(&example, forward),
        }
    }

    fn executed(&self, mode: Mode, generator: Generator) -> Result<Eager, String> {
        let trace = self.trace(mode).map_err(|error| format!("{mode:?}: {}", chain(&error)))?;
        let joint = trace.example_program().map_err(|error| chain(&error))?;
        let values = parameter_values(&self.eager).into_iter();
        let inputs = (self.row.inputs)(&Device::flex());
        Device::flex().seed(FORWARD_SEED);
        traced::execute(
            &joint,
            trace.parameters(),
            values.map(|(_, value)| value).collect(),
            &inputs,
            generator,
        )
    }

    fn inference(&self) -> Result<Verdict, String> {
        let inputs = (self.row.inputs)(&Device::flex());
        let expected = Eager::forward(&self.forward(), &self.eager, inputs);
        let found = self.executed(Mode::Inference, Generator::None)?;
        let count = eager::compare("traced forward", &expected.outputs, &found.outputs)?;
        Ok(Verdict::Equal(count))
    }

    fn training(&self, generator: Generator) -> Result<(Verdict, Verdict), String> {
        let device = Device::flex().autodiff();
        device.seed(FORWARD_SEED);
        let inputs = (self.row.inputs)(&device);
        let expected = Eager::training(&self.forward(), &self.eager_training, inputs);
        let found = self.executed(Mode::Training, generator)?;
        let outputs = eager::compare("traced training", &expected.outputs, &found.outputs)?;
        let gradients = eager::compare("joint graph", &expected.gradients, &found.gradients)?;
        let trivial = |gradient: &TensorData| gradient.iter::<f32>().all(|x| x == 0.0);
        if expected.gradients.iter().all(|(_, gradient)| trivial(gradient)) {
            return Err("every gradient is zero: the row compares nothing".into());
        }
        let verdict = |count| match generator {
            Generator::None => Verdict::Equal(count),
            Generator::Backend => Verdict::EqualWithBackendDraws(count),
        };
        Ok((verdict(outputs), verdict(gradients)))
    }
}

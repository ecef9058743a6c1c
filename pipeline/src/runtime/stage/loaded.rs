//! The programs of a stage, on its device.

use std::sync::Arc;

use tinderbox_deferred::{Executable, Executor, RunContext};
use tinderbox_fake::DynTensor;

use super::setup::RankSetup;
use crate::ActionError;
use crate::cut::StagePrograms;
use crate::runtime::program::CutProgram;
use crate::schedule::Compute;

/// The programs of one stage on its device, each loaded at its first run, with the inputs that are the
/// same in every run.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadedPrograms {
    executables: [Option<Executable>; Compute::ALL.len()],
    /// `None` while a streamed stage does not run.
    constants: Option<Arc<[DynTensor]>>,
}

impl LoadedPrograms {
    /// Drops the constants, which are computed again when a program runs.
    pub(super) fn drop_constants(&mut self) {
        self.constants = None;
    }

    /// Returns a program on the device, and its inputs that are the same in every run.
    pub(super) fn load(
        &mut self,
        (cut, programs): (&CutProgram, &StagePrograms),
        compute: Compute,
        setup: &RankSetup,
    ) -> Result<(Executable, Arc<[DynTensor]>), ActionError> {
        let executor = || -> Result<Executor, ActionError> {
            let executor = Executor::new(&setup.device)?;
            Ok(executor.checking_indices(setup.settings.check_indices))
        };
        let constants = match &self.constants {
            Some(constants) => constants.clone(),
            None => {
                let context = RunContext::initialization(setup.settings.seed);
                let constants = executor()?.load(programs.constants.clone());
                let made = constants.run(Vec::new(), &context);
                let made = made.map_err(|source| cut.indices.locate(source))?;
                self.constants.insert(made.into()).clone()
            }
        };
        let executable = match &self.executables[compute.slot()] {
            Some(executable) => executable.clone(),
            None => {
                let phase = programs.phase(compute);
                let phase = phase.expect("certified lists run programs that the stage has");
                let executable = executor()?.load(phase.program.clone());
                self.executables[compute.slot()].insert(executable).clone()
            }
        };
        Ok((executable, constants))
    }
}

//! A program of calls that continues after others are lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tinderbox_engines::SimulatedNet;
use tinderbox_world::{RankIndex, World, WorldError};

use crate::faults::{Faults, Phase, simulated};

/// The end of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The processes of its last generation, or the error of its last regrouping.
    pub with: Result<Vec<usize>, String>,
    /// The errors of its calls.
    pub errors: Vec<String>,
    /// The time of its longest regrouping.
    pub regrouped_for: Duration,
}

/// A call: the processes of the generation, the number of the generation, the number of the call.
type Call = (Vec<usize>, u32, u64);

/// The state that the processes of one run share.
#[derive(Debug)]
pub struct Run {
    pub faults: Arc<Faults>,
    /// The process that first completed each call, and its result. All others get the same result.
    results: Mutex<BTreeMap<Call, (usize, String)>>,
}

/// One process.
struct Program<'a> {
    own: usize,
    world: &'a World,
    net: &'a SimulatedNet,
    run: &'a Run,
    /// The processes of this generation; empty until they have agreed on the next call.
    members: Vec<usize>,
    /// The number of the next call.
    next: u64,
}

impl Run {
    pub fn new(faults: Faults) -> Self {
        Self {
            faults: Arc::new(faults),
            results: Mutex::default(),
        }
    }

    /// Notes the result of a call in a process.
    fn note(&self, call: Call, own: usize, result: String) {
        let mut results = self.results.lock().unwrap();
        let (first, expected) = results.entry(call.clone()).or_insert((own, result.clone()));
        assert_eq!(*expected, result, "processes {first} and {own} in {call:?}");
    }
}

/// Runs the program of a process until all remaining processes agree that the faults are over.
pub fn run(world: World, net: &SimulatedNet, run: &Run) -> Ended {
    let mut program = Program {
        own: world.rank().index(),
        world: &world,
        net,
        run,
        members: Vec::new(),
        next: 0,
    };
    if program.own == 0 {
        run.faults.begin(net);
    }
    let mut ended = Ended {
        with: Ok(Vec::new()),
        errors: Vec::new(),
        regrouped_for: Duration::ZERO,
    };
    loop {
        let error = match program.call() {
            Ok(false) => continue,
            Ok(true) => {
                ended.with = Ok(program.members.clone());
                break;
            }
            Err(error) => error,
        };
        assert!(!matches!(error, WorldError::OtherCall { .. }), "{error}");
        ended.errors.push(error.to_string());
        program.enter(Phase::Regroup);
        let began = simulated().now();
        let regrouped = world.regroup();
        let took = simulated().now() - began;
        ended.regrouped_for = took.max(ended.regrouped_for);
        if let Err(error) = regrouped {
            ended.with = Err(error.to_string());
            break;
        }
        program.members.clear();
    }
    program.enter(Phase::Over);
    ended
}

impl Program<'_> {
    fn enter(&self, phase: Phase) {
        let rank = RankIndex::new(self.own);
        self.run.faults.enter(rank, phase, self.net);
    }

    /// Makes the next call. Returns whether it is the last one.
    fn call(&mut self) -> Result<bool, WorldError> {
        let simulation = simulated();
        self.enter(Phase::Work);
        let most = Duration::from_millis(200 * simulation.random(2));
        simulation.sleep(simulation.random_time(most));
        self.enter(Phase::Call);
        let generation = self.world.generation();
        if self.members.is_empty() {
            // Some processes may have completed a call that others have not.
            let all = self.world.all_gather((self.own, self.next))?;
            self.members = all.iter().map(|(own, _)| *own).collect();
            self.next = all.iter().map(|(_, next)| *next).max().unwrap_or_default();
            let call = (self.members.clone(), generation, u64::MAX);
            self.run.note(call, self.own, format!("{all:?}"));
        }
        let (own, next) = (self.own, self.next);
        let mut is_over = false;
        let got = match next % 3 {
            0 => {
                let made = (next, own, simulation.random(u64::MAX));
                let made: (u64, usize, u64) =
                    self.world.from_first(|| Ok::<_, WorldError>(made))?;
                assert_eq!((made.0, made.1), (next, self.members[0]));
                format!("{made:?}")
            }
            _ => {
                let now = simulation.now();
                let value = (next, own, self.run.faults.are_over(now));
                let all = self.world.all_gather(value)?;
                let from: Vec<usize> = all.iter().map(|(_, own, _)| *own).collect();
                assert_eq!(from, self.members, "exactly the remaining processes");
                assert!(all.iter().all(|(number, ..)| *number == next), "{all:?}");
                is_over = all.iter().all(|(.., is_over)| *is_over);
                format!("{all:?}")
            }
        };
        let call = (self.members.clone(), generation, next);
        self.run.note(call, own, got);
        self.next += 1;
        Ok(is_over)
    }
}

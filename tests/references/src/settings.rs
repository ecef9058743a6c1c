//! Settings to evaluate the scheduler: two hundred, the same for tests and for the bench of schedules.

use tinderbox_schedule::{
    ComputeTimes, Costs, Dependencies, Placement, RankIndex, Schedule, ScheduleKind, StageCosts,
    peak_bytes, simulate,
};

use crate::Numbers;

/// One step to schedule.
#[derive(Debug, Clone)]
pub struct Setting {
    /// A description.
    pub name: String,
    /// The rank of each stage.
    pub stage_to_rank: Vec<RankIndex>,
    /// The micro-batches of the step.
    pub micro_batches: usize,
    /// The stages in a chain.
    pub dependencies: Dependencies,
    /// The costs of the stages.
    pub costs: Costs,
    /// The memory limit of each rank in bytes, if there is one.
    pub memory_limits: Option<Vec<u64>>,
    /// Whether stages differ, by a factor of up to two.
    pub is_unequal: bool,
    /// Whether the fastest named schedule exceeds the limit. Another named schedule always fits.
    pub is_binding: bool,
}

/// Ticks of a forward.
const FORWARD: u64 = 1000;

/// Bytes that the forward of an equal stage keeps.
const ACTIVATION: u64 = 1 << 20;

/// Ticks of `I` and `W` per hundred ticks of `F`.
const RATIOS: [(u64, u64); 4] = [(100, 100), (150, 100), (150, 70), (110, 90)];

/// Returns two hundred settings: 2 to 8 ranks, up to 4 micro-batches per rank, one stage per rank or two in a
/// loop or a V, equal and unequal, fast and slow links, with and without a limit that is a constraint.
///
/// Deterministic. A limit is between the peaks of the smallest named schedule and the
/// fastest; if one schedule is both, there is no such limit.
pub fn settings() -> Vec<Setting> {
    let mut numbers = Numbers::new(7);
    (0..200).map(|index| setting(index, &mut numbers)).collect()
}

fn setting(index: usize, numbers: &mut Numbers) -> Setting {
    let is_unequal = index % 2 == 1;
    let ranks = 2 + numbers.below(7) as usize;
    let micro_batches = ranks * (1 + numbers.below(4) as usize);
    let (placement, chunks) = [
        (Placement::Loop, 1),
        (Placement::Loop, 2),
        (Placement::V, 2),
    ][index / 4 % 3];
    let (input, weight) = RATIOS[numbers.below(4) as usize];
    let latency = FORWARD * numbers.below(3) / 4;
    let kept = [100, 60, 30][numbers.below(3) as usize];
    let stages = (0..ranks * chunks).map(|_| {
        let percent = 100 + if is_unequal { numbers.below(101) } else { 0 };
        let forward = FORWARD * percent / 100;
        let times = ComputeTimes::new(forward, forward * input / 100, forward * weight / 100);
        StageCosts {
            activation_bytes: ACTIVATION * percent / 100,
            weight_gradient_bytes: ACTIVATION * percent / 100 * kept / 100,
            ..StageCosts::of(times)
        }
    });
    let mut costs = Costs::of_stages(stages.collect());
    costs.link.latency = latency;
    let mut setting = Setting {
        name: String::new(),
        stage_to_rank: placement.stage_to_rank(ranks, chunks),
        micro_batches,
        dependencies: Dependencies::chain(ranks * chunks),
        costs,
        memory_limits: None,
        is_unequal,
        is_binding: false,
    };
    let tightness = [0, 25, 50, 100][numbers.below(4) as usize];
    if index / 2 % 2 == 1 {
        bind(&mut setting, ranks, chunks, tightness);
    }
    let equal = if is_unequal { "unequal" } else { "equal" };
    let bound = match setting.is_binding {
        true => format!("bound at {tightness}"),
        false => "loose".to_owned(),
    };
    setting.name = format!(
        "{index}: {ranks} ranks, {micro_batches} micro-batches, {placement:?} x {chunks}, {equal} stages, \
         I {input}, W {weight}, latency {latency}, {bound}"
    );
    setting
}

/// Sets a limit at which the smallest named schedule fits and the fastest does not.
fn bind(setting: &mut Setting, ranks: usize, chunks: usize, tightness: u64) {
    let named = ScheduleKind::ALL.into_iter().filter_map(|kind| {
        let schedule = kind.generate(ranks, chunks, setting.micro_batches).ok()?;
        (schedule.stage_to_rank == setting.stage_to_rank).then_some(schedule)
    });
    let measured = |schedule: Schedule| {
        let timeline = simulate(&schedule, &setting.dependencies, &setting.costs);
        let makespan = timeline.map_or(u64::MAX, |timeline| timeline.makespan());
        let peak = peak_bytes(&schedule, &setting.costs).into_iter().max();
        (makespan, peak.unwrap_or(0))
    };
    let measured: Vec<(u64, u64)> = named.map(measured).collect();
    let of_fastest = measured.iter().min().map_or(0, |(_, peak)| *peak);
    let smallest = measured.iter().map(|(_, peak)| *peak).min().unwrap_or(0);
    if smallest < of_fastest {
        let limit = smallest + (of_fastest - 1 - smallest) * tightness / 100;
        setting.memory_limits = Some(vec![limit; ranks]);
        setting.is_binding = true;
    }
}

//! Links on which sends wait: every list that the verifier accepts runs to its end in every order of events, and no other.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::{rich, v_shaped, zero_bubble};
use crate::{
    Action, ComputeTimes, Costs, Dependencies, Edge, Form, LinkModel, Message, RankIndex, Schedule,
    ScheduleKind, VerifyError, forward_only, gpipe, lower, lower_over, one_f_one_b, simulate,
    verify, verify_over,
};

fn models() -> Vec<LinkModel> {
    ["messages:1", "messages:2", "bytes:3", "rendezvous", "queue"]
        .map(|text| text.parse().unwrap())
        .to_vec()
}

/// Sizes from 1 to 5, so that some messages are larger than a link.
fn sizes(dependencies: &Dependencies) -> BTreeMap<Edge, u64> {
    let edges = dependencies.edges().iter().enumerate();
    edges.map(|(at, edge)| (*edge, 1 + at as u64 % 5)).collect()
}

/// The lists of a step on links of a model, one event at a time: a second definition of when a send waits, which shares
/// nothing with the verifier.
struct Search<'a> {
    schedule: &'a Schedule,
    link: LinkModel,
    sizes: &'a BTreeMap<Edge, u64>,
    /// The positions of sends and receives of each rank, by the other rank.
    queues: Vec<Vec<Vec<(usize, Action)>>>,
}

/// What has happened so far.
#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    heads: Vec<usize>,
    /// Per sender and receiver, the messages that were sent and not received.
    stored: Vec<Vec<Message>>,
    /// Per pair of ranks, how many operations at the front of both queues were transferred.
    transferred: Vec<usize>,
}

/// An event: a rank runs an action, or a link transfers a message.
#[derive(Clone, Copy)]
enum Event {
    /// A rank runs its next action. If this is a send that waits for its receive, the receiver runs the receive too.
    Continue(usize),
    /// The operations at the front of the queues of two ranks are transferred.
    Transfer(usize, usize),
}

impl Search<'_> {
    fn rank(&self, stage: crate::StageIndex) -> usize {
        self.schedule.rank_of(stage).unwrap().index()
    }

    fn bytes(&self, message: &Message) -> u64 {
        match message {
            Message::Values { edge, .. } => self.sizes[edge],
            _ => 0,
        }
    }

    fn start(&self) -> State {
        let ranks = self.schedule.world_size();
        State {
            heads: vec![0; ranks],
            stored: vec![Vec::new(); ranks * ranks],
            transferred: vec![0; ranks * ranks],
        }
    }

    fn is_end(&self, state: &State) -> bool {
        let lists = self.schedule.ranks.iter().zip(&state.heads);
        lists.clone().all(|(list, head)| *head == list.len())
    }

    /// An operation that a rank has queued for another, by its index: of all actions before its head, and a receive at it.
    fn queued(&self, state: &State, rank: usize, other: usize, index: usize) -> Option<Action> {
        let head = state.heads[rank];
        let (position, action) = *self.queues[rank][other].get(index)?;
        let is_receive = matches!(action, Action::Receive(_));
        (position < head || position == head && is_receive).then_some(action)
    }

    /// Whether the send of a message waits for its receive, so that both happen at once.
    fn waits_for_receive(&self, message: &Message) -> bool {
        match self.link {
            LinkModel::Rendezvous => true,
            LinkModel::Bytes(most) => self.bytes(message) > most.get(),
            _ => false,
        }
    }

    /// Whether a rank can continue with its next action.
    fn can_continue(&self, state: &State, rank: usize) -> bool {
        let ranks = self.schedule.world_size();
        let head = |rank: usize| self.schedule.ranks[rank].get(state.heads[rank]);
        match head(rank) {
            None => false,
            Some(Action::Send(message)) => {
                let to = self.rank(message.receiver());
                let stored = &state.stored[rank * ranks + to];
                let sum = || -> u64 { stored.iter().map(|message| self.bytes(message)).sum() };
                match self.link {
                    _ if self.waits_for_receive(message) => {
                        head(to) == Some(&Action::Receive(*message)) && sum() == 0
                    }
                    LinkModel::Messages(most) => stored.len() < most.get(),
                    LinkModel::Bytes(most) => sum() + self.bytes(message) <= most.get(),
                    _ => true,
                }
            }
            Some(Action::Receive(message)) => {
                let from = self.rank(message.sender());
                if self.link != LinkModel::Queue {
                    return state.stored[from * ranks + rank].contains(message);
                }
                let own = &self.queues[rank][from];
                let own = own.binary_search_by_key(&state.heads[rank], |(at, _)| *at);
                let pair = rank.min(from) * ranks + rank.max(from);
                own.is_ok_and(|own| own < state.transferred[pair])
            }
            Some(_) => true,
        }
    }

    /// Whether the operations at the front of the queues of two ranks can be transferred.
    fn can_transfer(&self, state: &State, first: usize, second: usize) -> bool {
        let done = state.transferred[first * self.schedule.world_size() + second];
        let a = self.queued(state, first, second, done);
        let b = self.queued(state, second, first, done);
        match (a, b) {
            (Some(Action::Send(a)), Some(Action::Receive(b)))
            | (Some(Action::Receive(a)), Some(Action::Send(b))) => a == b,
            _ => false,
        }
    }

    /// The events that can happen next.
    fn next(&self, state: &State) -> Vec<Event> {
        let ranks = self.schedule.world_size();
        let all = (0..ranks).filter(|rank| self.can_continue(state, *rank));
        let mut next: Vec<Event> = all.map(Event::Continue).collect();
        if self.link == LinkModel::Queue {
            let pairs = (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (a, b)));
            let pairs = pairs.filter(|(a, b)| self.can_transfer(state, *a, *b));
            next.extend(pairs.map(|(a, b)| Event::Transfer(a, b)));
        }
        next
    }

    /// Changes the state by an event, which must be possible in it.
    fn apply(&self, state: &mut State, event: Event) {
        let ranks = self.schedule.world_size();
        let rank = match event {
            Event::Transfer(first, second) => {
                state.transferred[first * ranks + second] += 1;
                return;
            }
            Event::Continue(rank) => rank,
        };
        let action = self.schedule.ranks[rank][state.heads[rank]];
        state.heads[rank] += 1;
        match action {
            Action::Send(message) => {
                let to = self.rank(message.receiver());
                match self.waits_for_receive(&message) {
                    true => state.heads[to] += 1,
                    false => state.stored[rank * ranks + to].push(message),
                }
            }
            Action::Receive(message) if self.link != LinkModel::Queue => {
                let stored = &mut state.stored[self.rank(message.sender()) * ranks + rank];
                let at = stored.iter().position(|stored| *stored == message);
                stored.remove(at.expect("it was sent"));
            }
            _ => {}
        }
    }

    /// Follows events to an end. `choose` picks the next of several.
    fn runs(&self, mut choose: impl FnMut(usize) -> usize) -> bool {
        let mut state = self.start();
        loop {
            let next = self.next(&state);
            if next.is_empty() {
                return self.is_end(&state);
            }
            self.apply(&mut state, next[choose(next.len())]);
        }
    }

    /// Visits every reachable state. The result must not depend on the order of events.
    fn runs_in_every_order(&self) -> bool {
        let mut seen = HashSet::from([self.start()]);
        let mut open = vec![self.start()];
        let (mut ends, mut deadlocks) = (0, 0);
        while let Some(state) = open.pop() {
            let next = self.next(&state);
            if next.is_empty() {
                match self.is_end(&state) {
                    true => ends += 1,
                    false => deadlocks += 1,
                }
            }
            let after = next.into_iter().map(|event| {
                let mut after = state.clone();
                self.apply(&mut after, event);
                after
            });
            open.extend(after.filter(|after| seen.insert(after.clone())));
        }
        assert!(ends == 0 || deadlocks == 0, "the order of events matters");
        ends > 0
    }
}

fn search<'a>(
    schedule: &'a Schedule,
    link: LinkModel,
    sizes: &'a BTreeMap<Edge, u64>,
) -> Search<'a> {
    let ranks = schedule.world_size();
    let rank = |stage| schedule.rank_of(stage).unwrap().index();
    let mut queues = vec![vec![Vec::new(); ranks]; ranks];
    for at in schedule.places() {
        let other = match at.action {
            Action::Send(message) => rank(message.receiver()),
            Action::Receive(message) => rank(message.sender()),
            _ => continue,
        };
        queues[at.rank.index()][other].push((at.position, at.action));
    }
    Search {
        schedule,
        link,
        sizes,
        queues,
    }
}

/// Checks the lists that `lower_over` finds, and returns how many the order of `lower` deadlocks for.
fn check_generated(schedule: &Schedule, dependencies: &Dependencies, is_exhaustive: bool) -> usize {
    let sizes = sizes(dependencies);
    let plain = lower(schedule, dependencies);
    let mut deadlocks = 0;
    for link in models() {
        let name = format!("{} {link}\n{schedule}", schedule.name);
        let plain_runs = verify_over(&plain, dependencies, link, &sizes).is_ok();
        let mut turn = 0;
        let rotate = move |count| {
            turn += 7;
            turn % count
        };
        let runs = search(&plain, link, &sizes).runs(rotate);
        assert_eq!(runs, plain_runs, "{name}");
        deadlocks += usize::from(!plain_runs);

        let found = lower_over(schedule, dependencies, link, &sizes).expect(&name);
        assert_eq!(verify(&found, dependencies), Ok(()), "{name}");
        let verified = |link| verify_over(&found, dependencies, link, &sizes);
        assert_eq!(verified(link), Ok(()), "{name}");
        let searched = search(&found, link, &sizes);
        let runs = searched.runs(|_| 0) && searched.runs(|count| count - 1);
        assert!(runs, "{name}");
        if is_exhaustive {
            assert!(searched.runs_in_every_order(), "{name}");
        }
        // The same actions, and programs in the same order.
        for (rank, list) in found.ranks.iter().enumerate() {
            let sorted = |list: &[Action]| {
                let mut list = list.to_vec();
                list.sort_unstable();
                list
            };
            assert_eq!(sorted(list), sorted(&plain.ranks[rank]), "{name}");
            let others = |list: &[Action]| {
                let all = list.iter().copied();
                let is_message = |a: &Action| matches!(a, Action::Send(_) | Action::Receive(_));
                all.filter(|action| !is_message(action)).collect::<Vec<_>>()
            };
            assert_eq!(others(list), others(&plain.ranks[rank]), "{name}");
        }
        // One order serves all models, so that a run can change its links.
        if plain != found {
            for other in models() {
                assert_eq!(verified(other), Ok(()), "{name}");
            }
        }
    }
    deadlocks
}

#[test]
fn every_generator_runs_on_links_of_every_model() {
    let mut deadlocks = 0;
    for kind in ScheduleKind::ALL {
        for p in 1..=8 {
            for chunks in (1..=3).filter(|chunks| kind.chunks().contains(*chunks)) {
                for m in [1, p, 2 * p + 1] {
                    let schedule = kind.generate(p, chunks, m).unwrap();
                    let chain = Dependencies::chain(schedule.stages);
                    for dependencies in [chain, rich(schedule.stages).with_global_norm()] {
                        deadlocks += check_generated(&schedule, &dependencies, false);
                    }
                }
            }
        }
    }
    assert!(
        deadlocks > 1000,
        "{deadlocks}: the order of `lower` needs links without a limit"
    );
}

#[test]
fn small_schedules_run_in_every_order_of_events() {
    let mut schedules = vec![zero_bubble(), v_shaped()];
    for kind in ScheduleKind::ALL {
        for (p, m) in [(2, 2), (2, 3), (3, 2)] {
            schedules.extend(kind.generate(p, kind.chunks().least(), m));
        }
    }
    assert!(schedules.len() > 20);
    for schedule in schedules {
        check_generated(&schedule, &Dependencies::chain(schedule.stages), true);
    }
}

/// What the words say, and whether the lists run on links of each model.
#[track_caller]
fn check(text: &str, message_bytes: u64, expected: [(&str, bool); 5]) -> String {
    let schedule = Schedule::parse("by hand", text).unwrap();
    assert_eq!(schedule.form, Form::Lowered);
    let chain = Dependencies::chain(schedule.stages);
    let edges = chain.edges().iter();
    let sizes = edges.map(|edge| (*edge, message_bytes)).collect();
    assert_eq!(verify(&schedule, &chain), Ok(()));
    let mut texts = Vec::new();
    for (link, runs) in expected {
        let link = link.parse().unwrap();
        let searched = search(&schedule, link, &sizes);
        assert_eq!(searched.runs_in_every_order(), runs, "{link}");
        match verify_over(&schedule, &chain, link, &sizes) {
            Ok(()) => assert!(runs, "{link}"),
            Err(error) => {
                assert!(!runs, "{link}: {error}");
                texts.push(format!("{link}: {error}"));
            }
        }
    }
    texts.join("\n")
}

/// Both ranks send before they receive, as a hand-written 1F1B does without grouped sends and receives.
#[test]
fn two_sends_that_meet_are_refused() {
    let text = "0F0 0F0>1F0 0F1 0F1>1F1 0B0<1B0 0B0 0B1<1B1 0B1 0R0 0U\n\
                1F0<0F0 1F0 1B0 1B0>0B0 1F1<0F1 1F1 1B1 1B1>0B1 1R1 1U";
    let expected = [
        ("messages:1", true),
        ("bytes:4", true),
        ("bytes:3", false),
        ("rendezvous", false),
        ("queue", false),
    ];
    insta::assert_snapshot!(check(text, 4, expected), @r#"
    bytes:3: deadlock over links that store 3 bytes, no rank of this cycle can continue: `0F1>1F1` (rank 0, position 3) waits for `1F1<0F1` (rank 1, position 4), `1B0>0B0` (rank 1, position 3) waits for `0B0<1B0` (rank 0, position 4); move one of the awaited actions before the action at which its own rank waits
    rendezvous: deadlock over links whose sends wait for the receive, no rank of this cycle can continue: `0F1>1F1` (rank 0, position 3) waits for `1F1<0F1` (rank 1, position 4), `1B0>0B0` (rank 1, position 3) waits for `0B0<1B0` (rank 0, position 4); move one of the awaited actions before the action at which its own rank waits
    queue: deadlock over links with one queue per pair of ranks, no rank of this cycle can continue: `0F1>1F1` (rank 0, position 3) waits for `1F1<0F1` (rank 1, position 4), `1B0>0B0` (rank 1, position 3) waits for `0B0<1B0` (rank 0, position 4); move one of the awaited actions before the action at which its own rank waits
    "#);
}

/// A rank that sends its outputs at the end of the warm-up fills the link to one that waits for the first of them.
#[test]
fn a_full_link_is_refused() {
    let text = "0F0 0F1 0F2 0F2>1F2 0F1>1F1 0F0>1F0 0B0<1B0 0B0 0B1<1B1 0B1 0B2<1B2 0B2 0R0 0U\n\
                1F0<0F0 1F0 1B0 1B0>0B0 1F1<0F1 1F1 1B1 1B1>0B1 1F2<0F2 1F2 1B2 1B2>0B2 1R1 1U";
    let expected = [
        ("messages:2", false),
        ("messages:3", true),
        ("bytes:8", false),
        ("bytes:12", true),
        ("queue", false),
    ];
    insta::assert_snapshot!(check(text, 4, expected), @r#"
    messages:2: deadlock over links that store 2 messages, no rank of this cycle can continue: `0F0>1F0` (rank 0, position 5) waits for `1F0<0F0` (rank 1, position 0), `1F0<0F0` (rank 1, position 0) waits for `0F0>1F0` (rank 0, position 5); move one of the awaited actions before the action at which its own rank waits
    bytes:8: deadlock over links that store 8 bytes, no rank of this cycle can continue: `0F0>1F0` (rank 0, position 5) waits for `1F0<0F0` (rank 1, position 0), `1F0<0F0` (rank 1, position 0) waits for `0F0>1F0` (rank 0, position 5); move one of the awaited actions before the action at which its own rank waits
    queue: deadlock over links with one queue per pair of ranks, no rank of this cycle can continue: `0F2>1F2` (rank 0, position 3) waits for `1F2<0F2` (rank 1, position 8), `1F0<0F0` (rank 1, position 0) waits for `0F0>1F0` (rank 0, position 5); move one of the awaited actions before the action at which its own rank waits
    "#);
}

/// Three ranks in a ring: each sends to the next before it receives.
#[test]
fn a_cycle_of_three_ranks_is_named() {
    // Stages 0 and 3 are on rank 0, 1 and 4 on rank 1, 2 and 5 on rank 2.
    let schedule = ScheduleKind::LoopedBfs.generate(3, 2, 3).unwrap();
    let chain = Dependencies::chain(6);
    let plain = lower(&schedule, &chain);
    let found = verify_over(&plain, &chain, LinkModel::Rendezvous, &BTreeMap::new());
    let Err(error @ VerifyError::Deadlock { .. }) = found else {
        panic!("{found:?}\n{plain}");
    };
    insta::assert_snapshot!(error, @"deadlock over links whose sends wait for the receive, no rank of this cycle can continue: `0F2>1F2` (rank 0, position 5) waits for `1F2<0F2` (rank 1, position 6), `1F1>2F1` (rank 1, position 5) waits for `2F1<1F1` (rank 2, position 3), `2F0>3F0` (rank 2, position 2) waits for `3F0<2F0` (rank 0, position 6); move one of the awaited actions before the action at which its own rank waits");
}

/// With programs of equal times, messages that take none wait for no one: every step is as fast as on links without a
/// limit.
#[test]
fn the_order_for_links_that_wait_costs_no_time() {
    let times = ComputeTimes::new(12, 12, 12);
    for kind in ScheduleKind::ALL {
        for (p, m) in (2..=6).flat_map(|p| [p, 2 * p, 3 * p + 1].map(|m| (p, m))) {
            let schedule = kind.generate(p, kind.chunks().least(), m).unwrap();
            let chain = Dependencies::chain(schedule.stages);
            let mut costs = Costs::uniform(schedule.stages, times);
            let unbounded = simulate(&schedule, &chain, &costs).unwrap().makespan();
            for link in models() {
                costs.link.model = link;
                let step = simulate(&schedule, &chain, &costs).unwrap();
                assert_eq!(step.makespan(), unbounded, "{kind} {p} {m} {link}");
            }
        }
    }
}

/// Two ranks, one message of 2 MiB at 10 ticks per MiB and 3 ticks of latency; by hand.
#[test]
fn transfers_are_timed_by_hand() {
    let text = "0F0 0F0>1F0 0F1 0F1>1F1\n1F0<0F0 1F0 1F1<0F1 1F1";
    let mut schedule = Schedule::parse("by hand", text).unwrap();
    schedule.mode = crate::ScheduleMode::ForwardOnly;
    let chain = Dependencies::chain(2);
    let times = ComputeTimes::new(5, 0, 0);
    let mut costs = Costs::uniform(2, times);
    costs.message_bytes = chain.edges().iter().map(|edge| (*edge, 2 << 20)).collect();
    costs.link.ticks_per_mib = 10;
    costs.link.latency = 3;
    let mut ends = |link: &str| {
        costs.link.model = link.parse().unwrap();
        let step = simulate(&schedule, &chain, &costs).unwrap();
        let ends = |rank: usize| step.ranks[rank].spans.iter().map(|span| span.end);
        [ends(0).collect::<Vec<_>>(), ends(1).collect()]
    };
    // Sent at 5 and 10; transferred until 25 and 45; received 3 later.
    assert_eq!(ends("unbounded"), [[5, 5, 10, 10], [28, 33, 48, 53]]);
    // The second send waits until the first message was received at 28, and for 3 ticks until the sender knows.
    assert_eq!(ends("messages:1"), [[5, 5, 10, 31], [28, 33, 54, 59]]);
    // The first send begins at 5, because the receiver waits since 0; the sender computes when it was transferred, 25 to 30.
    // The second begins when the receiver waits for it, since 33, and the sender knows, 36.
    assert_eq!(ends("rendezvous"), [[5, 25, 30, 56], [28, 33, 59, 64]]);
    assert_eq!(ends("bytes:1048576"), ends("rendezvous"));
    // As unbounded, but the second message is not transferred before its receive is queued at 33.
    assert_eq!(ends("queue"), [[5, 5, 10, 10], [28, 33, 56, 61]]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Messages moved at random, to places where their values exist: the verifier and the search of every order agree.
    #[test]
    fn moved_messages_agree_with_the_search(
        kind in 0..6_usize,
        p in 2..=3_usize,
        m in 1..=2_usize,
        norm: bool,
        moves in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), -4..4_isize), 0..8),
        capacity in 1..6_u64,
    ) {
        let schedule = match kind {
            0 => gpipe(p, m),
            1 => one_f_one_b(p, m),
            2 => forward_only(p, m),
            3 => v_shaped(),
            4 => zero_bubble(),
            _ => ScheduleKind::ZbH1.generate(p, 1, m + 1).unwrap(),
        };
        let chain = Dependencies::chain(schedule.stages);
        let dependencies = if norm { chain.with_global_norm() } else { chain };
        let mut lowered = lower(&schedule, &dependencies);
        for (rank, position, distance) in moves {
            let list = &lowered.ranks[rank.index(lowered.ranks.len())];
            let from = position.index(list.len());
            let to = from.saturating_add_signed(distance).min(list.len() - 1);
            let mut moved = lowered.clone();
            let list = &mut moved.ranks[rank.index(lowered.ranks.len())];
            let action = list.remove(from);
            list.insert(to, action);
            if verify(&moved, &dependencies).is_ok() {
                lowered = moved;
            }
        }
        let sizes = sizes(&dependencies);
        let bytes = LinkModel::Bytes(capacity.try_into().unwrap());
        for link in models().into_iter().chain([bytes, LinkModel::Unbounded]) {
            let found = verify_over(&lowered, &dependencies, link, &sizes);
            let runs = search(&lowered, link, &sizes).runs_in_every_order();
            prop_assert_eq!(found.is_ok(), runs, "{} {:?}\n{}", link, found, lowered);
            if let Err(VerifyError::Deadlock { cycle, .. }) = found {
                prop_assert!(cycle.len() > 1);
                for (at, wait) in cycle.iter().enumerate() {
                    let next = cycle[(at + 1) % cycle.len()].waiting;
                    prop_assert_eq!(wait.awaited.rank, next.rank);
                    prop_assert!(wait.awaited.position >= next.position);
                    prop_assert!(RankIndex::new(lowered.world_size()) > next.rank);
                }
            }
        }
    }
}

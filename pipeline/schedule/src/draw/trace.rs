//! A timeline as a trace for Perfetto and `chrome://tracing`.
//!
//! The format is Chrome's "Trace Event Format", an object of JSON with a list of events: `M` names
//! processes and threads, `X` is a slice, `C` a counter, `s` and `f` are the ends of an arrow.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tinderbox_ids::MicroBatchIndex;

use super::picture::Picture;
use crate::action::{Action, Message};
use crate::dependencies::Endpoint;
use crate::simulate::{Span, TimeUnit, Timeline};
use crate::task::Task;

/// The time from the start of an arrow to the end of its slice, in microseconds: one nanosecond. Viewers attach the
/// start of an arrow to the slice around it.
const INSIDE_US: f64 = 0.001;

/// The colour of waiting, one of the named colours of Chrome's trace viewer: a light grey.
const WAIT_COLOR: &str = "thread_state_sleeping";

/// Writes timelines as one JSON trace for Perfetto or `chrome://tracing`.
///
/// A timeline is a process with its name, a rank is a thread. Programs are slices, and so are other actions that have a
/// duration; a receive is a slice named `wait`. The two programs of an
/// overlapped pair are one below the other. Arrows lead from the program that computed values to the
/// program that reads them on another rank. The bytes of a rank are a counter.
///
/// Times are in microseconds; a tick is shown as one. Events are sorted by time. Time and memory are
/// linear in the number of actions, except for the sorting.
pub fn trace(timelines: &[&Timeline]) -> String {
    let mut names = Vec::new();
    let mut events = Vec::new();
    let mut arrow_count = 0;
    // Viewers treat a thread with the number of its process as the main thread.
    let mut first_thread = timelines.len() + 1;
    for (index, timeline) in timelines.iter().enumerate() {
        // Processes count from one: zero is the idle process of a machine.
        let process = Process {
            picture: &Picture::of(timeline),
            pid: index + 1,
            first_thread,
        };
        first_thread += timeline.ranks.len();
        process.write_names(&mut names);
        process.write_slices(&mut events);
        process.write_arrows(&mut events, &mut arrow_count);
    }
    // Stable, so that simultaneous events keep their order: outer slices, inner slices, arrows.
    events.sort_by(|a: &(f64, Value), b| a.0.total_cmp(&b.0));
    names.extend(events.into_iter().map(|(_, event)| event));
    json!({ "displayTimeUnit": "ns", "traceEvents": names }).to_string()
}

/// A timeline and its numbers in the trace.
struct Process<'a> {
    picture: &'a Picture<'a>,
    pid: usize,
    first_thread: usize,
}

impl Process<'_> {
    /// Returns a time in microseconds.
    fn us(&self, time: u64) -> f64 {
        match self.picture.timeline.unit {
            TimeUnit::Ticks => time as f64,
            TimeUnit::Nanoseconds => time as f64 / 1000.0,
        }
    }

    fn write_names(&self, names: &mut Vec<Value>) {
        let mut write = |tid: Option<usize>, what: &str, args: Value| {
            let mut event =
                json!({ "name": what, "ph": "M", "ts": 0.0, "pid": self.pid, "args": args });
            if let Some(tid) = tid {
                event["tid"] = tid.into();
            }
            names.push(event);
        };
        let name = &self.picture.timeline.name;
        write(None, "process_name", json!({ "name": name }));
        let order = json!({ "sort_index": self.pid });
        write(None, "process_sort_index", order);
        for (rank, row) in self.picture.rows.iter().enumerate() {
            let name = match row.stages.as_str() {
                "" => format!("rank {rank}"),
                stages => format!("rank {rank}, {stages}"),
            };
            let tid = Some(self.first_thread + rank);
            write(tid, "thread_name", json!({ "name": name }));
            write(tid, "thread_sort_index", json!({ "sort_index": rank }));
        }
    }

    /// Writes the slices of the actions and of waiting, and the counter of bytes.
    fn write_slices(&self, events: &mut Vec<(f64, Value)>) {
        let pid = self.pid;
        for (rank, row) in self.picture.rows.iter().enumerate() {
            let tid = self.first_thread + rank;
            let mut write = |span: &Span, name: &str, category: &str, color: &str, args: Value| {
                let (ts, dur) = (self.us(span.start), self.us(span.duration()));
                let event = json!({
                    "name": name, "cat": category, "cname": color, "ph": "X", "ts": ts, "dur": dur,
                    "pid": pid, "tid": tid, "args": args,
                });
                events.push((ts, event));
            };
            for action in &row.actions {
                let (span, tasks) = (action.span, action.span.action.tasks());
                for (at, piece) in action.pieces.iter().enumerate() {
                    let task = tasks.get(at);
                    let stage = task.map_or(span.action.stage(), |task| task.stage);
                    let name = task.map_or_else(|| span.action.to_string(), Task::to_string);
                    let mut args = json!({ "stage": stage });
                    if let Some(micro_batch) = piece.micro_batch {
                        args["micro_batch"] = micro_batch.into();
                    }
                    let kind = piece.kind;
                    write(span, &name, kind.word(), kind.trace_color(), args);
                }
            }
            let spans = row.list.spans.iter();
            for span in spans.filter(|span| span.is_wait() && span.duration() > 0) {
                let args = json!({ "for": span.action });
                write(span, "wait", "wait", WAIT_COLOR, args);
            }
            for (time, bytes) in &row.list.bytes {
                let (name, ts) = (format!("bytes of rank {rank}"), self.us(*time));
                let event = json!({ "name": name, "ph": "C", "ts": ts, "pid": pid, "args": { "bytes": bytes } });
                events.push((ts, event));
            }
        }
    }

    /// Writes both ends of every arrow; viewers match the ends by category, name and id.
    fn write_arrows(&self, events: &mut Vec<(f64, Value)>, count: &mut usize) {
        for [from, to] in arrows(self.picture.timeline) {
            let ends = [
                (from.0, "s", self.us(from.1.end) - INSIDE_US),
                (to.0, "f", self.us(to.1.start)),
            ];
            for (rank, ph, ts) in ends {
                // `bp`: the arrow ends at the slice that encloses the time and not at the next one.
                let event = json!({
                    "name": "message", "cat": "message", "id": *count, "ph": ph, "bp": "e", "ts": ts,
                    "pid": self.pid, "tid": self.first_thread + rank,
                });
                events.push((ts, event));
            }
            *count += 1;
        }
    }
}

/// A rank and one of its spans.
type End<'a> = (usize, &'a Span);

/// Returns for each send of values, in the order of the lists, the program that computed them and the one that reads
/// them.
///
/// An arrow joins the two programs and not the send and the receive, which often have no duration. There is no arrow
/// for a message without both programs, for programs without a duration, and for times
/// that would go backwards, as they can if the clocks of two ranks differ.
fn arrows(timeline: &Timeline) -> Vec<[End<'_>; 2]> {
    let lists = timeline.ranks.iter().enumerate();
    let spans = lists.flat_map(|(rank, list)| list.spans.iter().map(move |span| (rank, span)));
    let mut programs: BTreeMap<Task, End<'_>> = BTreeMap::new();
    for (rank, span) in spans.clone() {
        for task in span.action.tasks() {
            programs.entry(*task).or_insert((rank, span));
        }
    }
    let end_of = |end: Endpoint, micro_batch: MicroBatchIndex| {
        let mut tasks = end.programs().iter();
        tasks.find_map(|compute| programs.get(&Task::new(end.stage, *compute, micro_batch)))
    };
    let arrow = |(_, span): End<'_>| match span.action {
        Action::Send(Message::Values { edge, micro_batch }) => {
            let from = *end_of(edge.from, micro_batch)?;
            let to = *end_of(edge.to, micro_batch)?;
            let takes_time = from.1.duration() > 0 && to.1.duration() > 0;
            (takes_time && from.1.end <= to.1.start).then_some([from, to])
        }
        _ => None,
    };
    spans.filter_map(arrow).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::draw::tests::samples::{
        TIMES, measured_sample, one_f_one_b_sample, pairs_sample, simulated,
    };
    use crate::{Costs, Schedule};

    fn events(timelines: &[&Timeline]) -> Vec<Value> {
        let file: Value = serde_json::from_str(&trace(timelines)).unwrap();
        assert_eq!(file["displayTimeUnit"], "ns");
        file["traceEvents"].as_array().unwrap().clone()
    }

    fn count(events: &[Value], phase: &str) -> usize {
        events.iter().filter(|event| event["ph"] == phase).count()
    }

    #[test]
    fn a_small_trace_has_these_events() {
        let timeline = one_f_one_b_sample(2, 1);
        let lines = trace(&[&timeline]).replace("},{\"", "},\n{\"");
        insta::assert_snapshot!(lines, @r#"
        {"displayTimeUnit":"ns","traceEvents":[{"args":{"name":"1f1b"},"name":"process_name","ph":"M","pid":1,"ts":0.0},
        {"args":{"sort_index":1},"name":"process_sort_index","ph":"M","pid":1,"ts":0.0},
        {"args":{"name":"rank 0, stage 0"},"name":"thread_name","ph":"M","pid":1,"tid":2,"ts":0.0},
        {"args":{"sort_index":0},"name":"thread_sort_index","ph":"M","pid":1,"tid":2,"ts":0.0},
        {"args":{"name":"rank 1, stage 1"},"name":"thread_name","ph":"M","pid":1,"tid":3,"ts":0.0},
        {"args":{"sort_index":1},"name":"thread_sort_index","ph":"M","pid":1,"tid":3,"ts":0.0},
        {"args":{"micro_batch":0,"stage":0},"cat":"forward","cname":"rail_response","dur":1.0,"name":"0F0","ph":"X","pid":1,"tid":2,"ts":0.0},
        {"args":{"bytes":1},"name":"bytes of rank 0","ph":"C","pid":1,"ts":0.0},
        {"args":{"for":"1F0<0F0"},"cat":"wait","cname":"thread_state_sleeping","dur":1.0,"name":"wait","ph":"X","pid":1,"tid":3,"ts":0.0},
        {"args":{"bytes":0},"name":"bytes of rank 1","ph":"C","pid":1,"ts":0.0},
        {"bp":"e","cat":"message","id":0,"name":"message","ph":"s","pid":1,"tid":2,"ts":0.999},
        {"args":{"for":"0B0<1B0"},"cat":"wait","cname":"thread_state_sleeping","dur":3.0,"name":"wait","ph":"X","pid":1,"tid":2,"ts":1.0},
        {"args":{"micro_batch":0,"stage":1},"cat":"forward","cname":"rail_response","dur":1.0,"name":"1F0","ph":"X","pid":1,"tid":3,"ts":1.0},
        {"args":{"bytes":1},"name":"bytes of rank 1","ph":"C","pid":1,"ts":1.0},
        {"bp":"e","cat":"message","id":0,"name":"message","ph":"f","pid":1,"tid":3,"ts":1.0},
        {"args":{"micro_batch":0,"stage":1},"cat":"backward","cname":"rail_load","dur":2.0,"name":"1B0","ph":"X","pid":1,"tid":3,"ts":2.0},
        {"bp":"e","cat":"message","id":1,"name":"message","ph":"s","pid":1,"tid":3,"ts":3.999},
        {"args":{"micro_batch":0,"stage":0},"cat":"backward","cname":"rail_load","dur":2.0,"name":"0B0","ph":"X","pid":1,"tid":2,"ts":4.0},
        {"args":{"bytes":0},"name":"bytes of rank 1","ph":"C","pid":1,"ts":4.0},
        {"bp":"e","cat":"message","id":1,"name":"message","ph":"f","pid":1,"tid":2,"ts":4.0},
        {"args":{"bytes":0},"name":"bytes of rank 0","ph":"C","pid":1,"ts":6.0}]}
        "#);
    }

    #[test]
    fn events_are_in_order_and_threads_have_names() {
        let (measured, pairs) = (measured_sample(), pairs_sample());
        let events = events(&[&measured, &pairs]);
        let times: Vec<f64> = events.iter().map(|e| e["ts"].as_f64().unwrap()).collect();
        assert!(times.is_sorted());
        let thread = |event: &Value| (event["pid"].as_u64(), event["tid"].as_u64());
        let named = events.iter().filter(|event| event["name"] == "thread_name");
        let named: BTreeSet<_> = named.map(thread).collect();
        assert_eq!(named.len(), measured.ranks.len() + pairs.ranks.len());
        let slices = events.iter().filter(|event| event["ph"] == "X");
        assert!(slices.map(thread).all(|thread| named.contains(&thread)));
        let programs = events
            .iter()
            .filter(|e| !e["args"]["micro_batch"].is_null());
        let tasks = [&measured, &pairs].into_iter().flat_map(|one| &one.ranks);
        let tasks = tasks
            .flat_map(|rank| &rank.spans)
            .map(|span| span.action.tasks().len());
        assert_eq!(programs.count(), tasks.sum::<usize>());
        let bytes = measured
            .ranks
            .iter()
            .chain(&pairs.ranks)
            .map(|rank| rank.bytes.len());
        assert_eq!(count(&events, "C"), bytes.sum::<usize>());
    }

    /// Viewers drop an arrow whose ends are not in slices.
    #[test]
    fn every_arrow_leads_from_a_slice_to_a_slice() {
        let (measured, pairs) = (measured_sample(), pairs_sample());
        let events = events(&[&measured, &pairs]);
        let ends = |phase: &str| {
            let ends = events.iter().filter(|event| event["ph"] == phase);
            let by_id = ends.map(|end| (end["id"].as_u64().unwrap(), end.clone()));
            by_id.collect::<BTreeMap<u64, Value>>()
        };
        let (starts, finishes) = (ends("s"), ends("f"));
        assert_eq!(starts.len(), count(&events, "s"));
        assert!(starts.keys().eq(finishes.keys()));
        // Forward and backward of four micro-batches over two borders, and over three.
        assert_eq!(starts.len(), 2 * 4 * 2 + 2 * 4 * 2);
        for (id, start) in &starts {
            let finish = &finishes[id];
            assert!(start["ts"].as_f64() <= finish["ts"].as_f64());
            for end in [start, finish] {
                let ts = end["ts"].as_f64().unwrap();
                let around = events.iter().any(|slice| {
                    let from = slice["ts"].as_f64().unwrap();
                    let to = from + slice["dur"].as_f64().unwrap_or(-1.0);
                    slice["tid"] == end["tid"] && (from..to).contains(&ts)
                });
                assert!(around, "{end}");
            }
        }
    }

    fn check_arrows(timeline: &Timeline, expected: &str) {
        let words = arrows(timeline).into_iter();
        let words = words.map(|[from, to]| format!("{}>{}", from.1.action, to.1.action));
        assert_eq!(words.collect::<Vec<_>>().join(" "), expected);
    }

    #[test]
    fn arrows_join_programs_that_are_not_before_each_other() {
        let rows = "0F0 0F1 0B0 0I1 0W1\n1F0 1I0 1F1 1W0 1B1";
        let schedule = Schedule::parse("mixed", rows).unwrap();
        let mut timeline = simulated(&schedule, &Costs::uniform(2, TIMES));
        check_arrows(&timeline, "0F0>1F0 0F1>1F1 1I0>0B0 1B1>0I1");
        timeline.ranks[0].spans[0].end += 100;
        check_arrows(&timeline, "0F1>1F1 1I0>0B0 1B1>0I1");
        timeline.ranks.truncate(1);
        check_arrows(&timeline, "");
    }

    #[test]
    fn empty_and_invalid_timelines_are_written() {
        assert_eq!(events(&[]), Vec::<Value>::new());
        let mut broken = measured_sample();
        for span in &mut broken.ranks[1].spans {
            (span.start, span.end) = (u64::MAX, 3);
        }
        broken.name = "\"\u{0}".to_owned();
        assert_eq!(
            count(&events(&[&broken]), "s"),
            count(&events(&[&broken]), "f")
        );
    }
}

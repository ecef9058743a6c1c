//! A timeline as a trace that Perfetto and `chrome://tracing` open.
//!
//! The format is Chrome's "Trace Event Format", an object of JSON with a list of events: `M` names
//! processes and threads, `X` is a slice, `C` a counter, `s` and `f` are the ends of an arrow.

use serde::Serialize;
use serde_json::{Value, json};

use super::arrows::{At, arrows};
use super::palette::Kind;
use super::pieces::{Chunks, stage_labels};
use crate::action::Task;
use crate::simulate::{TimeUnit, Timeline};

/// A moment before the end of a slice that still lies in it, in microseconds: one nanosecond. Viewers
/// bind the beginning of an arrow to the slice around it.
const INSIDE_US: f64 = 0.001;

/// The colour of waiting, among those that Chrome's trace viewer knows by name: a light grey.
const WAIT_COLOR: &str = "thread_state_sleeping";

/// The file.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    trace_events: Vec<Event>,
    display_time_unit: &'static str,
}

/// One event; what a kind of event has not is left out.
#[derive(Serialize)]
struct Event {
    name: String,
    ph: &'static str,
    ts: f64,
    pid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<usize>,
    /// Where an arrow ends: `e`, at the slice around the moment and not at the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    /// A name of a colour; Perfetto chooses its own, by the name without digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    cname: Option<&'static str>,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

/// Writes timelines as one trace in JSON for Perfetto or `chrome://tracing`.
///
/// A timeline is a process with its name, a rank a thread. Actions are slices: programs all of them,
/// the others where they take time, and a receive is a slice named `wait`. The two programs of an
/// overlapped pair stand one below the other. Arrows lead from the program that made values to the
/// program that reads them on another rank. Bytes of a rank are a counter.
///
/// A trace has microseconds; a tick is shown as one. Events are in order of time. Time and memory are
/// linear in the number of actions, but for the sorting.
#[must_use]
pub fn trace(timelines: &[&Timeline]) -> String {
    let mut names = Vec::new();
    let mut events = Vec::new();
    let mut next_arrow = 0;
    let mut next_thread = timelines.len() + 1;
    for (index, timeline) in timelines.iter().enumerate() {
        let process = Process {
            timeline,
            // Processes count from one: zero is the idle process of a machine.
            pid: index + 1,
            // A thread with the number of its process would be taken for the main thread.
            first_tid: next_thread,
        };
        next_thread += timeline.ranks.len();
        process.write_names(&mut names);
        process.write_slices(&mut events);
        process.write_counters(&mut events);
        process.write_arrows(&mut events, &mut next_arrow);
    }
    // Stable, so that events of one moment keep their order: outer slices, inner slices, arrows.
    events.sort_by(|a, b| a.ts.total_cmp(&b.ts));
    names.append(&mut events);
    let file = File {
        trace_events: names,
        display_time_unit: "ns",
    };
    serde_json::to_string(&file).expect("texts and finite numbers are JSON")
}

/// A timeline and its numbers in the trace.
struct Process<'a> {
    timeline: &'a Timeline,
    pid: usize,
    first_tid: usize,
}

impl Process<'_> {
    /// A time in microseconds.
    fn us(&self, time: u64) -> f64 {
        match self.timeline.unit {
            TimeUnit::Ticks => time as f64,
            TimeUnit::Nanoseconds => time as f64 / 1000.0,
        }
    }

    const fn tid(&self, rank: usize) -> usize {
        self.first_tid + rank
    }

    fn event(&self, name: impl Into<String>, ph: &'static str, ts: f64) -> Event {
        Event {
            name: name.into(),
            ph,
            ts,
            pid: self.pid,
            tid: None,
            dur: None,
            cat: None,
            id: None,
            bp: None,
            cname: None,
            args: Value::Null,
        }
    }

    fn write_names(&self, events: &mut Vec<Event>) {
        let named = |name: &str, tid: Option<usize>, args: Value| Event {
            tid,
            args,
            ..self.event(name, "M", 0.0)
        };
        events.push(named(
            "process_name",
            None,
            json!({ "name": self.timeline.name }),
        ));
        events.push(named(
            "process_sort_index",
            None,
            json!({ "sort_index": self.pid }),
        ));
        for (rank, stages) in stage_labels(self.timeline).iter().enumerate() {
            let name = match stages.as_str() {
                "" => format!("rank {rank}"),
                stages => format!("rank {rank}, {stages}"),
            };
            let tid = Some(self.tid(rank));
            events.push(named("thread_name", tid, json!({ "name": name })));
            events.push(named(
                "thread_sort_index",
                tid,
                json!({ "sort_index": rank }),
            ));
        }
    }

    fn write_slices(&self, events: &mut Vec<Event>) {
        let chunks = Chunks::of(self.timeline);
        for (rank, list) in self.timeline.ranks.iter().enumerate() {
            for span in &list.spans {
                let slice = |name: String, args: Value| Event {
                    tid: Some(self.tid(rank)),
                    dur: Some(self.us(span.duration())),
                    args,
                    ..self.event(name, "X", self.us(span.start))
                };
                let kinds = chunks.pieces(span).map(|piece| piece.kind);
                let tasks = span.action.tasks();
                if tasks.is_empty() {
                    // An update, a reduce or a send, if it takes time.
                    let args = || json!({ "stage": span.action.stage().index() });
                    let one = |kind| colored(slice(span.action.to_string(), args()), kind);
                    events.extend(kinds.map(one));
                } else {
                    let one = |(task, kind): (&Task, Kind)| {
                        let args = json!({
                            "stage": task.stage.index(),
                            "micro_batch": task.micro_batch.index(),
                        });
                        colored(slice(task.to_string(), args), kind)
                    };
                    events.extend(tasks.iter().zip(kinds).map(one));
                }
                if span.is_wait() && span.duration() > 0 {
                    let args = json!({ "for": span.action.to_string() });
                    events.push(Event {
                        cat: Some("wait"),
                        cname: Some(WAIT_COLOR),
                        ..slice("wait".to_owned(), args)
                    });
                }
            }
        }
    }

    fn write_counters(&self, events: &mut Vec<Event>) {
        for (rank, list) in self.timeline.ranks.iter().enumerate() {
            let name = format!("bytes of rank {rank}");
            events.extend(list.bytes.iter().map(|(time, bytes)| Event {
                args: json!({ "bytes": bytes }),
                ..self.event(name.as_str(), "C", self.us(*time))
            }));
        }
    }

    /// Both ends of every arrow; ends are matched by category, name and id.
    fn write_arrows(&self, events: &mut Vec<Event>, next_id: &mut usize) {
        let span = |at: At| self.timeline.ranks[at.rank].spans[at.position];
        for arrow in arrows(self.timeline) {
            let (from, to) = (span(arrow.from), span(arrow.to));
            // An arrow needs a slice at both ends, and what takes no time is none.
            if from.duration() == 0 || to.duration() == 0 {
                continue;
            }
            let end = |ph, at: At, ts| Event {
                tid: Some(self.tid(at.rank)),
                cat: Some("message"),
                id: Some(*next_id),
                ..self.event("message", ph, ts)
            };
            events.push(end("s", arrow.from, self.us(from.end) - INSIDE_US));
            events.push(Event {
                bp: Some("e"),
                ..end("f", arrow.to, self.us(to.start))
            });
            *next_id += 1;
        }
    }
}

/// A slice with the colour and the category of its kind.
fn colored(slice: Event, kind: Kind) -> Event {
    Event {
        cat: Some(kind.word()),
        cname: Some(kind.trace_color()),
        ..slice
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::draw::samples::{measured_sample, one_f_one_b_sample, pairs_sample};

    fn events(timelines: &[&Timeline]) -> Vec<Value> {
        let file: Value = serde_json::from_str(&trace(timelines)).unwrap();
        assert_eq!(file["displayTimeUnit"], "ns");
        file["traceEvents"].as_array().unwrap().clone()
    }

    fn count(events: &[Value], phase: &str) -> usize {
        events.iter().filter(|event| event["ph"] == phase).count()
    }

    #[test]
    fn a_small_trace_reads_like_this() {
        let timeline = one_f_one_b_sample(2, 1);
        let lines = trace(&[&timeline]).replace("},{\"name", "},\n{\"name");
        insta::assert_snapshot!(lines, @r#"
        {"traceEvents":[{"name":"process_name","ph":"M","ts":0.0,"pid":1,"args":{"name":"1f1b"}},
        {"name":"process_sort_index","ph":"M","ts":0.0,"pid":1,"args":{"sort_index":1}},
        {"name":"thread_name","ph":"M","ts":0.0,"pid":1,"tid":2,"args":{"name":"rank 0, stage 0"}},
        {"name":"thread_sort_index","ph":"M","ts":0.0,"pid":1,"tid":2,"args":{"sort_index":0}},
        {"name":"thread_name","ph":"M","ts":0.0,"pid":1,"tid":3,"args":{"name":"rank 1, stage 1"}},
        {"name":"thread_sort_index","ph":"M","ts":0.0,"pid":1,"tid":3,"args":{"sort_index":1}},
        {"name":"0F0","ph":"X","ts":0.0,"pid":1,"tid":2,"dur":1.0,"cat":"forward","cname":"rail_response","args":{"micro_batch":0,"stage":0}},
        {"name":"wait","ph":"X","ts":0.0,"pid":1,"tid":3,"dur":1.0,"cat":"wait","cname":"thread_state_sleeping","args":{"for":"1F0<0F0"}},
        {"name":"bytes of rank 0","ph":"C","ts":0.0,"pid":1,"args":{"bytes":1}},
        {"name":"bytes of rank 1","ph":"C","ts":0.0,"pid":1,"args":{"bytes":0}},
        {"name":"message","ph":"s","ts":0.999,"pid":1,"tid":2,"cat":"message","id":0},
        {"name":"wait","ph":"X","ts":1.0,"pid":1,"tid":2,"dur":3.0,"cat":"wait","cname":"thread_state_sleeping","args":{"for":"0B0<1B0"}},
        {"name":"1F0","ph":"X","ts":1.0,"pid":1,"tid":3,"dur":1.0,"cat":"forward","cname":"rail_response","args":{"micro_batch":0,"stage":1}},
        {"name":"bytes of rank 1","ph":"C","ts":1.0,"pid":1,"args":{"bytes":1}},
        {"name":"message","ph":"f","ts":1.0,"pid":1,"tid":3,"cat":"message","id":0,"bp":"e"},
        {"name":"1B0","ph":"X","ts":2.0,"pid":1,"tid":3,"dur":2.0,"cat":"backward","cname":"rail_load","args":{"micro_batch":0,"stage":1}},
        {"name":"message","ph":"s","ts":3.999,"pid":1,"tid":3,"cat":"message","id":1},
        {"name":"0B0","ph":"X","ts":4.0,"pid":1,"tid":2,"dur":2.0,"cat":"backward","cname":"rail_load","args":{"micro_batch":0,"stage":0}},
        {"name":"bytes of rank 1","ph":"C","ts":4.0,"pid":1,"args":{"bytes":0}},
        {"name":"message","ph":"f","ts":4.0,"pid":1,"tid":2,"cat":"message","id":1,"bp":"e"},
        {"name":"bytes of rank 0","ph":"C","ts":6.0,"pid":1,"args":{"bytes":0}}],"displayTimeUnit":"ns"}
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

    /// Viewers drop an arrow whose ends do not lie in slices.
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

    #[test]
    fn nothing_and_nonsense_are_written_too() {
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

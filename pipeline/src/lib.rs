//! Traces, plans, schedules, and the runtime that trains pipeline stages.

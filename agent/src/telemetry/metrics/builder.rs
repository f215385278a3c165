//! Metrics of a builder; an agent has none of them.

use super::{Family, counter, gauge, labelled, plain};
use crate::telemetry::Live;

pub(super) fn builder(live: &Live) -> Vec<Family> {
    let Some(status) = &live.builder else { return Vec::new() };
    let sets = status.sets;
    let states = [("served", sets.served), ("waiting", sets.waiting), ("failing", sets.failing)];
    let tries = [("pushed", status.pushed), ("failed", status.failed)];
    let seconds = status.building.as_ref().map_or(0.0, |(_, seconds)| *seconds);
    vec![
        gauge("longshore_builder_sets", "Sets that a builder is asked for, by state")
            .with(states.map(|(state, count)| labelled([("state", state)], count as f64))),
        counter("longshore_builder_tries", "Sets that a builder compiled, by outcome")
            .with(tries.map(|(outcome, count)| labelled([("outcome", outcome)], count as f64))),
        gauge(
            "longshore_builder_building_seconds",
            "Time the compile in progress has taken so far, 0 without one",
        )
        .with([plain(seconds)]),
        gauge(
            "longshore_builder_kernels_left_out",
            "Kernels that are asked for beyond those that a builder builds for",
        )
        .with([plain(status.left_out as f64)]),
    ]
}

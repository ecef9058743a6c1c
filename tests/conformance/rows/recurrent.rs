//! Recurrent modules. Their states are structs of tensors, so inputs and results are their fields.

use burn::nn::{
    BiGru, BiGruConfig, BiLstm, BiLstmConfig, BiRnn, BiRnnConfig, GateController, Gru, GruConfig,
    Initializer, Lstm, LstmConfig, LstmState, Rnn, RnnConfig, RnnState,
};

use super::{Family, family};
use crate::inputs::floats;
use crate::row::{Outcome, row};

pub fn rows() -> Family {
    let mut rows = simple();
    rows.extend(gated());
    rows.extend(long());
    rows
}

fn simple() -> Family {
    family![
        row(
            "",
            |device| {
                let initializer = Initializer::XavierNormal { gain: 1.0 };
                GateController::new(3, 4, true, initializer, device)
            },
            |device| (floats([2, 3], 1, device), floats([2, 4], 2, device)),
            |gate: &GateController, (x, hidden)| Outcome::of(gate.gate_product(x, hidden)),
        ),
        row(
            "",
            |device| RnnConfig::new(3, 4, true).init(device),
            |device| floats([2, 5, 3], 3, device),
            |rnn: &Rnn, x| {
                let (output, state) = rnn.forward(x, None);
                Outcome::of(output).and(state.hidden)
            },
        ),
        row(
            "reversed, clipped, with a state",
            |device| {
                RnnConfig::new(3, 4, false)
                    .with_reverse(true)
                    .with_clip(Some(0.6))
                    .with_batch_first(false)
                    .init(device)
            },
            |device| (floats([5, 2, 3], 4, device), floats([2, 4], 5, device)),
            |rnn: &Rnn, (x, hidden)| {
                let (output, state) = rnn.forward(x, Some(RnnState::new(hidden)));
                Outcome::of(output).and(state.hidden)
            },
        ),
        row(
            "",
            |device| BiRnnConfig::new(3, 4, true).init(device),
            |device| (floats([2, 5, 3], 6, device), floats([2, 2, 4], 7, device)),
            |rnn: &BiRnn, (x, hidden)| {
                let (output, state) = rnn.forward(x, Some(RnnState::new(hidden)));
                Outcome::of(output).and(state.hidden)
            },
        ),
    ]
}

fn gated() -> Family {
    family![
        row(
            "",
            |device| GruConfig::new(3, 4, true).init(device),
            |device| floats([2, 5, 3], 8, device),
            |gru: &Gru, x| Outcome::of(gru.forward(x, None)),
        ),
        row(
            "reset before, with a state",
            |device| {
                GruConfig::new(3, 4, true)
                    .with_reset_after(false)
                    .with_clip(Some(0.7))
                    .init(device)
            },
            |device| (floats([2, 5, 3], 9, device), floats([2, 4], 10, device)),
            |gru: &Gru, (x, state)| Outcome::of(gru.forward(x, Some(state))),
        ),
        row(
            "",
            |device| BiGruConfig::new(3, 4, false).init(device),
            |device| (floats([2, 5, 3], 11, device), floats([2, 2, 4], 12, device)),
            |gru: &BiGru, (x, state)| {
                let (output, state) = gru.forward(x, Some(state));
                Outcome::of(output).and(state)
            },
        ),
    ]
}

fn long() -> Family {
    family![
        row(
            "",
            |device| LstmConfig::new(3, 4, true).init(device),
            |device| floats([2, 5, 3], 13, device),
            |lstm: &Lstm, x| {
                let (output, state) = lstm.forward(x, None);
                Outcome::of(output).and(state.cell).and(state.hidden)
            },
        ),
        row(
            "input and forget coupled, reversed, with a state",
            |device| {
                LstmConfig::new(3, 4, false)
                    .with_input_forget(true)
                    .with_reverse(true)
                    .with_clip(Some(0.8))
                    .init(device)
            },
            |device| {
                (
                    floats([2, 5, 3], 14, device),
                    (floats([2, 4], 15, device), floats([2, 4], 16, device)),
                )
            },
            |lstm: &Lstm, (x, (cell, hidden))| {
                let (output, state) = lstm.forward(x, Some(LstmState::new(cell, hidden)));
                Outcome::of(output).and(state.cell).and(state.hidden)
            },
        ),
        row(
            "",
            |device| BiLstmConfig::new(3, 4, true).init(device),
            |device| {
                (
                    floats([2, 5, 3], 17, device),
                    (floats([2, 2, 4], 18, device), floats([2, 2, 4], 19, device)),
                )
            },
            |lstm: &BiLstm, (x, (cell, hidden))| {
                let (output, state) = lstm.forward(x, Some(LstmState::new(cell, hidden)));
                Outcome::of(output).and(state.cell).and(state.hidden)
            },
        ),
    ]
}

//! The exchange of gradients and parameters between the replicas of a stage.
//!
//! Each replica sends the gradients of a piece to the one that updates it, which adds them in the order of the replicas and
//! sends the new parameters back: as many bytes as an all-reduce, in an order that does not depend on the link. The
//! gradients of a bucket are freed when they are sent or summed.

use std::sync::Arc;

use tinderbox_fake::DynTensor;

use super::on_rank::OnRank;
use crate::ActionError;
use crate::runtime::clip::{Norms, sums_of};
use crate::runtime::link::{LinkMessage, Tag};
use crate::runtime::pieces::{Pieces, from_message, to_message};
use crate::runtime::stage::check_length;
use crate::schedule::{RankIndex, StageIndex};
use crate::sum::TreeSum;

impl OnRank<'_> {
    /// The other replicas.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let setup = &self.rank.setup;
        let own = setup.replica;
        (0..setup.settings.replicas).filter(move |replica| *replica != own)
    }

    /// The rank of a stage in a replica.
    fn rank_in(&self, replica: usize, stage: StageIndex) -> RankIndex {
        self.rank.setup.layout.rank_in(replica, stage)
    }

    fn pieces(&mut self, stage: StageIndex) -> Arc<Pieces> {
        self.rank.stage_mut(stage).pieces()
    }

    /// The messages of gradients that a stage waits for, with their senders; the messages of norms, if an update needs them.
    pub(super) fn awaited_sums(&mut self, stage: StageIndex) -> Vec<(RankIndex, Tag)> {
        let own = self.rank.setup.replica;
        let buckets = self.pieces(stage).buckets(own).len();
        let has_norms = self.needs_norms();
        let mut awaited = Vec::new();
        for from in self.others().map(|replica| self.rank_in(replica, stage)) {
            let gradients = (0..buckets).map(|bucket| LinkMessage::Gradients { stage, bucket });
            let squares = has_norms.then_some(LinkMessage::Squares { stage });
            awaited.extend(gradients.chain(squares).map(|m| (from, self.tag(m))));
        }
        awaited
    }

    /// The messages of parameters that a stage waits for, with their senders.
    pub(super) fn awaited_parameters(&mut self, stage: StageIndex) -> Vec<(RankIndex, Tag)> {
        let pieces = self.pieces(stage);
        let mut awaited = Vec::new();
        for replica in self.others() {
            let buckets = pieces.buckets(replica).len();
            let from = self.rank_in(replica, stage);
            let messages = (0..buckets).map(|bucket| LinkMessage::Parameters { stage, bucket });
            awaited.extend(messages.map(|m| (from, self.tag(m))));
        }
        awaited
    }

    fn needs_norms(&self) -> bool {
        let settings = &self.rank.setup.settings;
        settings.needs_norms(self.round.loss_scale)
    }

    /// Completes the gradients of this replica, and sends each to the replica that updates its parameter.
    pub(super) fn reduce(&mut self, index: StageIndex) -> Result<(), ActionError> {
        let own = self.rank.setup.replica;
        let stage = self.rank.stage_mut(index);
        let pieces = stage.pieces();
        let mut complete = stage.complete();
        stage.set_gradients(0, std::mem::take(&mut complete[own]));
        for replica in self.others() {
            let to = self.rank_in(replica, index);
            let mut gradients = std::mem::take(&mut complete[replica]).into_iter();
            for (bucket, places) in pieces.buckets(replica).iter().enumerate() {
                let values = gradients.by_ref().take(places.len()).map(to_message);
                let message = LinkMessage::Gradients {
                    stage: index,
                    bucket,
                };
                let tag = self.tag(message);
                self.send_to(to, tag, values.collect())?;
            }
        }
        Ok(())
    }

    /// Sums the gradients of the pieces that this replica updates over all replicas, and sends their squares to the others.
    pub(super) fn sum(&mut self, index: StageIndex) -> Result<(), ActionError> {
        let own = self.rank.setup.replica;
        let device = self.rank.setup.device.clone();
        let pieces = self.pieces(index);
        for (bucket, places) in pieces.buckets(own).iter().enumerate() {
            let stage = self.rank.stage_mut(index);
            let mut sums: Vec<TreeSum<DynTensor>> = vec![TreeSum::default(); places.len()];
            let mut gradients = stage.own_gradients()[places.clone()].to_vec();
            stage.set_gradients(places.start, vec![None; places.len()]);
            for replica in 0..self.rank.setup.settings.replicas {
                if replica != own {
                    let from = self.rank_in(replica, index);
                    let message = LinkMessage::Gradients {
                        stage: index,
                        bucket,
                    };
                    let values = self.receive_from(from, self.tag(message))?;
                    check_length(places.len(), values.len())?;
                    let read = pieces.of(own)[places.clone()].iter().zip(values);
                    let read = read.map(|(piece, value)| from_message(piece, value));
                    let read: Vec<Option<DynTensor>> = read.collect::<Result<_, _>>()?;
                    add(&mut sums, replica, read, &device)?;
                } else {
                    add(&mut sums, own, std::mem::take(&mut gradients), &device)?;
                }
            }
            let sums = sums.iter_mut().map(|sum| sum.finish(|a, b| a + b));
            let stage = self.rank.stage_mut(index);
            stage.set_gradients(places.start, sums);
        }
        if self.needs_norms() {
            let squares = self.own_squares(index)?;
            let message = squares.to_message();
            let tag = self.tag(LinkMessage::Squares { stage: index });
            for replica in self.others() {
                let to = self.rank_in(replica, index);
                self.send_to(to, tag, vec![message.clone()])?;
            }
            self.own_squares.insert(index, squares);
        }
        Ok(())
    }

    /// The sums of squares of the pieces that this replica updates, 0 for missing gradients.
    fn own_squares(&mut self, index: StageIndex) -> Result<Norms, ActionError> {
        let loss_is_finite = self.loss_is_finite()?;
        let stage = self.rank.stage_mut(index);
        let sums = stage.square_sums().read(|sums| sums.to_data())?;
        let pieces = stage.own_pieces().iter().zip(sums);
        let squares = pieces.flat_map(|(piece, mut sums)| {
            sums.resize(sums_of(&piece.size()), 0.0);
            sums
        });
        Ok(Norms {
            squares: squares.collect(),
            loss_is_finite,
        })
    }

    /// The squared norms of the gradients of a stage over all replicas, by parameter.
    pub(super) fn norms_of_all(&mut self, index: StageIndex) -> Result<Norms, ActionError> {
        let own = self.rank.setup.replica;
        let parameters = self.rank.stage_mut(index).parameters().len();
        let mut norms = Norms {
            squares: vec![0.0; parameters],
            loss_is_finite: true,
        };
        let mut parts: Vec<Vec<f64>> = vec![Vec::new(); parameters];
        let mut kept = self.own_squares.remove(&index);
        let pieces = self.pieces(index);
        for replica in 0..self.rank.setup.settings.replicas {
            let of_replica = match kept.take_if(|_| replica == own) {
                Some(squares) => squares,
                None if replica == own => self.own_squares(index)?,
                None => {
                    let from = self.rank_in(replica, index);
                    let tag = self.tag(LinkMessage::Squares { stage: index });
                    let values = self.receive_from(from, tag)?;
                    check_length(1, values.len())?;
                    Norms::from_message(&values[0].to_data()?)
                }
            };
            norms.loss_is_finite &= of_replica.loss_is_finite;
            let pieces = pieces.of(replica);
            let counts = pieces.iter().map(|piece| sums_of(&piece.size()));
            check_length(counts.clone().sum(), of_replica.squares.len())?;
            let mut sums = of_replica.squares.into_iter();
            for (piece, count) in pieces.iter().zip(counts) {
                parts[piece.place].extend(sums.by_ref().take(count));
            }
        }
        for (square, parts) in norms.squares.iter_mut().zip(parts) {
            *square = parts.iter().sum();
        }
        Ok(norms)
    }

    /// Sends what this replica has updated of a stage to the others.
    pub(super) fn send_updated(
        &mut self,
        index: StageIndex,
        updated: Vec<Option<DynTensor>>,
    ) -> Result<(), ActionError> {
        let own = self.rank.setup.replica;
        let mut values = updated.into_iter().map(to_message);
        let pieces = self.pieces(index);
        for (bucket, places) in pieces.buckets(own).iter().enumerate() {
            let values: Vec<DynTensor> = values.by_ref().take(places.len()).collect();
            let message = LinkMessage::Parameters {
                stage: index,
                bucket,
            };
            let tag = self.tag(message);
            for replica in self.others() {
                let to = self.rank_in(replica, index);
                self.send_to(to, tag, values.clone())?;
            }
        }
        Ok(())
    }

    /// Receives what the other replicas have updated of a stage.
    pub(super) fn gather(&mut self, index: StageIndex) -> Result<(), ActionError> {
        let replicas = self.rank.setup.settings.replicas;
        let mut given = vec![Vec::new(); replicas];
        let pieces = self.pieces(index);
        for replica in self.others() {
            let from = self.rank_in(replica, index);
            for (bucket, places) in pieces.buckets(replica).iter().enumerate() {
                let message = LinkMessage::Parameters {
                    stage: index,
                    bucket,
                };
                let values = self.receive_from(from, self.tag(message))?;
                check_length(places.len(), values.len())?;
                for (piece, value) in pieces.of(replica)[places.clone()].iter().zip(values) {
                    given[replica].push(from_message(piece, value)?);
                }
            }
        }
        self.rank.stage_mut(index).gather(given)?;
        self.share_on_rank(index)
    }
}

/// Adds the gradients of a replica to the sums of pieces.
fn add(
    sums: &mut [TreeSum<DynTensor>],
    replica: usize,
    gradients: Vec<Option<DynTensor>>,
    device: &burn::tensor::Device,
) -> Result<(), ActionError> {
    for (sum, gradient) in sums.iter_mut().zip(gradients) {
        if let Some(gradient) = gradient {
            sum.add(replica, gradient.to_device(device)?, |a, b| a + b);
        }
    }
    Ok(())
}

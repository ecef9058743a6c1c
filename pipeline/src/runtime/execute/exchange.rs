//! The exchange of gradients and parameters between the replicas of a stage.
//!
//! Each replica sends the gradients of a piece to the replica that updates it. That replica adds them in the order of the
//! replicas, and sends the new parameters back. The number of bytes equals the bytes of an all-reduce, and the order does not
//! depend on the link. The gradients of a bucket are freed when they are sent or summed.

use std::ops::Range;
use std::sync::Arc;

use tinderbox_fake::DynTensor;

use super::on_rank::{OnRank, read_norms};
use crate::runtime::clip::{GradientChange, Norms, SquareSums, sums_of};
use crate::runtime::pieces::{Piece, PieceValues, Pieces, from_message, to_message};
use crate::runtime::stage::check_length;
use crate::schedule::{Action, RankIndex, StageIndex};
use crate::sum::TreeSum;
use crate::{ActionResult, LinkMessage};

impl OnRank<'_> {
    /// The other replicas, with their ranks of a stage.
    fn others(&self, stage: StageIndex) -> Vec<(usize, RankIndex)> {
        let setup = &self.rank.setup;
        let others = (0..setup.layout.replicas).filter(|other| *other != setup.replica);
        let others = others.map(|replica| (replica, setup.layout.rank_in(replica, stage)));
        others.collect()
    }

    fn pieces(&mut self, stage: StageIndex) -> Arc<Pieces> {
        self.rank.stage_mut(stage).pieces.clone()
    }

    /// Sends the values of the pieces of a replica to ranks, in its messages.
    fn send_pieces(
        &mut self,
        to: &[RankIndex],
        buckets: &[Range<usize>],
        values: PieceValues,
        message: impl Fn(usize) -> LinkMessage,
    ) -> ActionResult {
        let mut values = values.into_iter().map(to_message);
        for (bucket, places) in buckets.iter().enumerate() {
            let values: Vec<DynTensor> = values.by_ref().take(places.len()).collect();
            let tag = self.tag(message(bucket));
            let Some((last, others)) = to.split_last() else {
                continue;
            };
            for to in others {
                self.link.send(*to, tag, values.clone())?;
            }
            // The receiver can add in place to values that are not held here.
            self.link.send(*last, tag, values)?;
        }
        Ok(())
    }

    /// Receives the values of pieces.
    fn receive_pieces(
        &mut self,
        from: RankIndex,
        pieces: &[Piece],
        message: LinkMessage,
    ) -> ActionResult<PieceValues> {
        let values = self.receive_from(from, message)?;
        check_length(pieces.len(), values.len())?;
        let read = pieces.iter().zip(values);
        read.map(|(piece, value)| from_message(piece, value))
            .collect()
    }

    /// The messages that an action will wait for, with their senders.
    fn awaited(&mut self, action: &Action) -> Vec<(RankIndex, LinkMessage)> {
        let mut awaited = Vec::new();
        match *action {
            Action::Receive(message) => {
                let from = self.rank_of(message.sender());
                awaited.push((from, LinkMessage::Schedule(message)));
            }
            Action::Sum { stage } => {
                let buckets = self.pieces(stage).buckets(self.rank.setup.replica).len();
                let squares = self.needs_norms().then_some(LinkMessage::Squares { stage });
                let gradients = |bucket| LinkMessage::Gradients { stage, bucket };
                let messages = (0..buckets).map(gradients).chain(squares);
                for (_, from) in self.others(stage) {
                    awaited.extend(messages.clone().map(|message| (from, message)));
                }
            }
            Action::Gather { stage } => {
                let pieces = self.pieces(stage);
                let parameters = |bucket| LinkMessage::Parameters { stage, bucket };
                for (replica, from) in self.others(stage) {
                    let buckets = (0..pieces.buckets(replica).len()).map(parameters);
                    awaited.extend(buckets.map(|message| (from, message)));
                }
            }
            _ => {}
        }
        awaited
    }

    /// Announces the messages that an action will wait for to the link.
    pub(super) fn announce(&mut self, action: &Action) -> ActionResult {
        for (from, message) in self.awaited(action) {
            self.link.post_receive(from, self.tag(message))?;
        }
        Ok(())
    }

    /// Whether the update needs the norms of the gradients of all stages.
    pub(super) fn needs_norms(&self) -> bool {
        let settings = &self.rank.setup.settings;
        settings.needs_norms(self.round.loss_scale)
    }

    /// Completes the gradients of this replica, and sends each to the replica that updates its parameter.
    pub(super) fn reduce(&mut self, stage: StageIndex) -> ActionResult {
        let own = self.rank.setup.replica;
        let pieces = self.pieces(stage);
        let own_stage = self.rank.stage_mut(stage);
        let mut complete = own_stage.complete();
        own_stage.set_gradients(0, std::mem::take(&mut complete[own]));
        let message = |bucket| LinkMessage::Gradients { stage, bucket };
        for (replica, to) in self.others(stage) {
            let gradients = std::mem::take(&mut complete[replica]);
            self.send_pieces(&[to], pieces.buckets(replica), gradients, message)?;
        }
        Ok(())
    }

    /// Sums the gradients of the pieces that this replica updates over all replicas, and sends their squares to the others.
    pub(super) fn sum(&mut self, stage: StageIndex) -> ActionResult {
        let setup = self.rank.setup.clone();
        let own = setup.replica;
        let pieces = self.pieces(stage);
        for (bucket, places) in pieces.buckets(own).iter().enumerate() {
            let own_stage = self.rank.stage_mut(stage);
            let mut sums: Vec<TreeSum<DynTensor>> = vec![TreeSum::default(); places.len()];
            let mut kept = own_stage.gradients.complete[places.clone()].to_vec();
            own_stage.set_gradients(places.start, vec![None; places.len()]);
            for replica in 0..setup.layout.replicas {
                let gradients = if replica == own {
                    std::mem::take(&mut kept)
                } else {
                    let from = setup.layout.rank_in(replica, stage);
                    let received = &pieces.of(own)[places.clone()];
                    self.receive_pieces(from, received, LinkMessage::Gradients { stage, bucket })?
                };
                for (sum, gradient) in sums.iter_mut().zip(gradients) {
                    if let Some(gradient) = gradient {
                        sum.add(replica, gradient.to_device(&setup.device)?, |a, b| a + b);
                    }
                }
            }
            let sums = sums.iter_mut().map(|sum| sum.finish(|a, b| a + b));
            let sums = sums.collect();
            self.rank.stage_mut(stage).set_gradients(places.start, sums);
        }
        if self.needs_norms() {
            let squares = self.own_squares(stage)?;
            let message = squares.to_message();
            let tag = self.tag(LinkMessage::Squares { stage });
            for (_, to) in self.others(stage) {
                self.link.send(to, tag, vec![message.clone()])?;
            }
            self.own_squares.insert(stage, squares);
        }
        Ok(())
    }

    /// The sums of squares of the pieces that this replica updates, 0 for missing gradients. They are computed once, and kept
    /// until they are added to the norms of all replicas.
    fn own_squares(&mut self, index: StageIndex) -> ActionResult<Norms> {
        if let Some(squares) = self.own_squares.remove(&index) {
            return Ok(squares);
        }
        let loss_is_finite = self.loss_is_finite()?;
        let stage = self.rank.stage_mut(index);
        let sums = SquareSums::of(&stage.gradients.complete);
        let sums = sums.read(|sums| sums.to_data())?;
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
    fn norms_of_all(&mut self, index: StageIndex) -> ActionResult<Norms> {
        let setup = self.rank.setup.clone();
        let pieces = self.pieces(index);
        let mut squares = vec![0.0; self.rank.stage_mut(index).parameters().len()];
        let mut loss_is_finite = true;
        for replica in 0..setup.layout.replicas {
            let of_replica = if replica == setup.replica {
                self.own_squares(index)?
            } else {
                let from = setup.layout.rank_in(replica, index);
                read_norms(&self.receive_from(from, LinkMessage::Squares { stage: index })?)?
            };
            loss_is_finite &= of_replica.loss_is_finite;
            let pieces = pieces.of(replica);
            let counts = pieces.iter().map(|piece| sums_of(&piece.size()));
            check_length(counts.clone().sum(), of_replica.squares.len())?;
            let mut sums = of_replica.squares.into_iter();
            for (piece, count) in pieces.iter().zip(counts) {
                for sum in sums.by_ref().take(count) {
                    squares[piece.place] += sum;
                }
            }
        }
        Ok(Norms {
            squares,
            loss_is_finite,
        })
    }

    /// Sends the values that this replica has updated to the other replicas.
    pub(super) fn send_updated(&mut self, stage: StageIndex, updated: PieceValues) -> ActionResult {
        let pieces = self.pieces(stage);
        let buckets = pieces.buckets(self.rank.setup.replica);
        let to: Vec<RankIndex> = self.others(stage).into_iter().map(|(_, to)| to).collect();
        let message = |bucket| LinkMessage::Parameters { stage, bucket };
        self.send_pieces(&to, buckets, updated, message)
    }

    /// Receives the values of a stage that the other replicas have updated.
    pub(super) fn gather(&mut self, stage: StageIndex) -> ActionResult {
        let mut given = vec![Vec::new(); self.rank.setup.layout.replicas];
        let pieces = self.pieces(stage);
        for (replica, from) in self.others(stage) {
            for (bucket, places) in pieces.buckets(replica).iter().enumerate() {
                let received = &pieces.of(replica)[places.clone()];
                let message = LinkMessage::Parameters { stage, bucket };
                given[replica].extend(self.receive_pieces(from, received, message)?);
            }
        }
        self.rank.stage_mut(stage).gather(given)?;
        self.share_on_rank(stage)
    }

    /// Returns the change of the gradients of all stages before the update; computed once per round.
    pub(super) fn change(&mut self) -> ActionResult<GradientChange> {
        if let Some(change) = self.change {
            return Ok(change);
        }
        let settings = &self.rank.setup.settings;
        let stops = settings.stop_on_non_finite;
        let (max, scale) = (settings.max_norm(), self.round.loss_scale);
        if !self.needs_norms() {
            return Ok(*self.change.insert(GradientChange::Keep));
        }
        let squares = self.squared_norms()?;
        // A loss scale is a power of two, so the division is exact.
        let norm = squares.iter().sum::<f64>().sqrt() / scale.unwrap_or(1.0);
        self.report.gradient_norm = Some(norm);
        let loss_is_finite = self.norms.values().all(|norms| norms.loss_is_finite);
        // With a loss scale, steps whose gradients overflow are skipped.
        let is_finite = loss_is_finite && (norm.is_finite() || scale.is_some());
        let mut change = GradientChange::of(norm, max, scale);
        if stops && !is_finite {
            let of = squares.iter().enumerate().filter(|(_, s)| !s.is_finite());
            self.report.stopped = Some(of.map(|(position, _)| position).collect());
            change = GradientChange::Skip;
        }
        Ok(*self.change.insert(change))
    }

    /// The squared norms of the gradients of all stages, in the order of the table. All of them were received.
    fn squared_norms(&mut self) -> ActionResult<Vec<f64>> {
        for index in self.rank.stage_indices() {
            self.norms_of(index)?;
        }
        let order = self.rank.setup.layout.norm_order.iter();
        let squares = order.map(|(stage, place)| {
            let of_stage = self.norms.get(stage);
            let square = of_stage.and_then(|norms| norms.squares.get(*place));
            *square.expect("certified lists update after the norms of all stages are known")
        });
        Ok(squares.collect())
    }

    /// The squared norms of the gradients of a stage of this rank, computed once.
    pub(super) fn norms_of(&mut self, index: StageIndex) -> ActionResult<&Norms> {
        if !self.norms.contains_key(&index) {
            let norms = self.norms_of_all(index)?;
            self.norms.insert(index, norms);
        }
        Ok(&self.norms[&index])
    }

    /// Whether the losses that this rank has computed are finite; true if this is not checked. A stage computes its loss
    /// before the gradients of its parameters are complete.
    fn loss_is_finite(&self) -> ActionResult<bool> {
        let stops = self.rank.setup.settings.stop_on_non_finite;
        let weighs = |k: usize| self.round.micro_batch(k).weight != 0.0;
        let losses = self.unread.losses.iter();
        let mut is_finite = true;
        for (_, loss) in losses.filter(|(k, _)| stops && weighs(*k)) {
            is_finite &= loss.to_data()?.iter::<f64>().all(f64::is_finite);
        }
        Ok(is_finite)
    }
}

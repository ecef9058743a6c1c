//! The parts of the parameters of a stage that each replica updates.

use std::ops::Range;

use burn::tensor::{DType, Device, TensorData};
use tinderbox_fake::{DynTensor, Region};

use super::clip::rows_per_sum;
use crate::{ActionError, ActionResult};

/// The bytes after which a message with gradients or parameters ends.
const BUCKET_BYTES: u64 = 25 << 20;

/// A parameter that is divided among replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    /// Its index among the parameters of its stage.
    pub(crate) place: usize,
    pub(crate) shape: Vec<u64>,
    pub(crate) dtype: DType,
    /// Whether it has gradients. A parameter without gradients may have a saved state of the optimizer.
    pub(crate) trains: bool,
    /// Whether its rows can be updated one by one: its optimizer works element by element, and nothing else reads the
    /// whole gradient.
    pub(crate) by_row: bool,
}

impl Owned {
    fn rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    fn row_bytes(&self) -> u64 {
        let elements: u64 = self.shape.iter().skip(1).product();
        match self.trains {
            true => elements.saturating_mul(self.dtype.size() as u64),
            false => 0,
        }
    }

    /// The number of rows between two places at which the parameter can be cut. The sums of squares of its gradient end at
    /// these places, so that the norm has the same bits for every division.
    fn step(&self) -> u64 {
        let rows = self.rows().max(1);
        match self.by_row {
            true => rows_per_sum(&self.shape).min(rows),
            false => rows,
        }
    }
}

/// A parameter, or some of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The index of the parameter among the parameters of its stage.
    pub(crate) place: usize,
    /// The shape of the parameter.
    pub(crate) shape: Vec<u64>,
    /// The positions in the first dimension.
    pub(crate) rows: Range<u64>,
    dtype: DType,
}

impl Piece {
    /// Whether it is the whole parameter.
    pub(crate) fn is_whole(&self) -> bool {
        self.rows == (0..self.shape[0])
    }

    /// The elements of the parameter in this piece.
    pub(crate) fn region(&self) -> Region {
        let whole = Region::whole(&self.shape).expect("a parameter's elements can be counted");
        whole.with_range(0, self.rows.clone())
    }

    /// Returns this piece of a tensor of the parameter, without a copy on the CPU.
    pub(crate) fn of(&self, whole: DynTensor) -> DynTensor {
        match self.is_whole() {
            true => whole,
            false => whole.slice(&self.region()),
        }
    }

    fn bytes(&self) -> u64 {
        self.region().num_elements() * self.dtype.size() as u64
    }

    /// The shape of its tensors.
    pub(crate) fn size(&self) -> Vec<u64> {
        self.region().size().to_vec()
    }
}

/// The pieces of a stage.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    /// The pieces that each replica updates, in the order of the parameters.
    of_replicas: Vec<Vec<Piece>>,
    /// The positions of the pieces in each message from or to a replica.
    buckets: Vec<Vec<Range<usize>>>,
}

impl Pieces {
    /// Divides parameters among replicas: each gets an equal part of the bytes, in the order of the parameters, so that
    /// few parameters are cut.
    pub(crate) fn new(owned: &[Owned], replicas: usize) -> Self {
        let mut of_replicas = vec![Vec::new(); replicas];
        let total: u64 = owned.iter().map(|one| one.rows() * one.row_bytes()).sum();
        // The product does not fit in 64 bits for large models.
        let end_of = |k: usize| (u128::from(total) * (k as u128 + 1) / replicas as u128) as u64;
        let (mut replica, mut before) = (0, 0);
        for one in owned {
            let mut first = 0;
            let mut give = |replica: usize, rows: Range<u64>| {
                of_replicas[replica].push(Piece {
                    place: one.place,
                    shape: one.shape.clone(),
                    rows,
                    dtype: one.dtype,
                });
            };
            let end = before + one.rows() * one.row_bytes();
            while replica + 1 < replicas && end_of(replica) < end {
                let (wanted, step) = (end_of(replica) - before, one.step());
                let step_bytes = step * one.row_bytes();
                // The nearest place where it can be cut.
                let at = (2 * wanted + step_bytes) / (2 * step_bytes) * step;
                let at = at.min(one.rows());
                if at > first {
                    give(replica, first..at);
                    first = at;
                }
                replica += 1;
            }
            if first < one.rows() || one.rows() == 0 {
                give(replica, first..one.rows());
            }
            before = end;
        }
        let buckets = of_replicas.iter().map(|pieces| buckets(pieces));
        Self {
            buckets: buckets.collect(),
            of_replicas,
        }
    }

    /// The number of replicas.
    pub(crate) fn replicas(&self) -> usize {
        self.of_replicas.len()
    }

    /// The pieces that a replica updates.
    pub(crate) fn of(&self, replica: usize) -> &[Piece] {
        &self.of_replicas[replica]
    }

    /// The messages with the pieces of a replica, by the positions of their pieces.
    pub(crate) fn buckets(&self, replica: usize) -> &[Range<usize>] {
        &self.buckets[replica]
    }
}

fn buckets(pieces: &[Piece]) -> Vec<Range<usize>> {
    let mut buckets: Vec<Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (position, piece) in pieces.iter().enumerate() {
        match buckets.last_mut().filter(|_| bytes < BUCKET_BYTES) {
            Some(last) => last.end = position + 1,
            None => {
                buckets.push(position..position + 1);
                bytes = 0;
            }
        }
        bytes += piece.bytes();
    }
    buckets
}

/// The values of pieces; `None` for a piece without a value.
pub(crate) type PieceValues = Vec<Option<DynTensor>>;

/// Converts a value of a piece for a message; a missing value becomes a tensor without elements.
pub(crate) fn to_message(value: Option<DynTensor>) -> DynTensor {
    value.unwrap_or_else(|| {
        DynTensor::from_data(TensorData::new(Vec::<f32>::new(), [0]), &Device::flex())
    })
}

/// Reads a value of a piece from a message.
pub(crate) fn from_message(piece: &Piece, value: DynTensor) -> ActionResult<Option<DynTensor>> {
    let shape: Vec<u64> = value.shape().iter().map(|size| *size as u64).collect();
    match (value.bytes(), shape == piece.size()) {
        (0, _) => Ok(None),
        (_, true) => Ok(Some(value)),
        (_, false) => Err(ActionError::PieceShape {
            expected: piece.size(),
            found: shape,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clip::SUM_ELEMENTS;

    fn trained(place: usize, shape: &[u64], by_row: bool) -> Owned {
        Owned {
            trains: true,
            place,
            shape: shape.to_vec(),
            dtype: DType::F32,
            by_row,
        }
    }

    /// Place, first and last row of the pieces of each replica.
    fn rows(pieces: &Pieces) -> Vec<Vec<(usize, u64, u64)>> {
        let of_replica = |pieces: &[Piece]| {
            let rows = pieces.iter().map(|p| (p.place, p.rows.start, p.rows.end));
            rows.collect()
        };
        let all = (0..pieces.replicas()).map(|replica| of_replica(pieces.of(replica)));
        all.collect()
    }

    const MI: u64 = SUM_ELEMENTS as u64;

    #[test]
    fn parameters_are_divided_in_their_order() {
        let all = [
            trained(0, &[4], true),
            trained(1, &[2, 2], true),
            trained(3, &[8], true),
        ];
        assert_eq!(
            rows(&Pieces::new(&all, 2)),
            [vec![(0, 0, 4), (1, 0, 2)], vec![(3, 0, 8)]]
        );
        // A small parameter is not cut. The replica with the nearest boundary gets it.
        assert_eq!(
            rows(&Pieces::new(&all, 4)),
            [vec![(0, 0, 4)], vec![(1, 0, 2)], vec![(3, 0, 8)], vec![]]
        );
        assert_eq!(rows(&Pieces::new(&[], 2)), [vec![], vec![]]);
    }

    #[test]
    fn large_parameters_are_cut_where_sums_of_squares_end() {
        // 1000 * 1048 elements are the most whole rows of a sum.
        let wide = trained(0, &[8000, 1000], true);
        assert_eq!(
            rows(&Pieces::new(&[wide], 2)),
            [vec![(0, 0, 4192)], vec![(0, 4192, 8000)]]
        );
        let rows_of_one = trained(0, &[3, 4 * MI], true);
        assert_eq!(
            rows(&Pieces::new(&[rows_of_one], 2)),
            [vec![(0, 0, 2)], vec![(0, 2, 3)]]
        );
        // Its optimizer needs all of it.
        let whole = trained(0, &[8000, 1000], false);
        assert_eq!(
            rows(&Pieces::new(&[whole, trained(1, &[2, 2], true)], 2)),
            [vec![(0, 0, 8000)], vec![(1, 0, 2)]]
        );
    }

    /// Any sizes: every row has one replica, and a boundary differs from the boundary of equal parts by at most half of what
    /// can't be cut.
    #[test]
    fn every_row_belongs_to_one_replica() {
        let sizes = [
            [0, 5],
            [7, 0],
            [1, 3],
            [5 * MI, 1],
            [900, 4000],
            [3, 2 * MI + 1],
        ];
        for (a, b) in sizes.iter().flat_map(|a| sizes.iter().map(move |b| (a, b))) {
            for by_row in [false, true] {
                let all = [
                    trained(0, a, by_row),
                    trained(1, b, true),
                    trained(2, &[1, 1], true),
                    trained(3, a, true),
                    Owned {
                        trains: false,
                        ..trained(4, b, false)
                    },
                ];
                for replicas in [1, 2, 4, 8] {
                    let pieces = Pieces::new(&all, replicas);
                    let mut next = vec![0; 5];
                    let mut last = (0, 0);
                    let bytes = |one: &Owned| one.rows() * one.row_bytes();
                    let total: u64 = all.iter().map(bytes).sum();
                    let step = all.iter().map(|one| one.step() * one.row_bytes());
                    let (widest, mut given) = (step.max().unwrap(), 0);
                    for replica in 0..replicas {
                        let of_replica = pieces.of(replica).iter();
                        let of_replica = of_replica.filter(|piece| all[piece.place].trains);
                        given += of_replica.map(Piece::bytes).sum::<u64>();
                        let equal = total * (replica as u64 + 1) / replicas as u64;
                        assert!(
                            2 * given.abs_diff(equal) <= widest + 1,
                            "{a:?} {b:?} {replica}"
                        );
                    }
                    for (replica, of) in rows(&pieces).into_iter().enumerate() {
                        for (place, start, end) in of {
                            assert_eq!(start, next[place]);
                            next[place] = end;
                            assert!(last <= (replica, place));
                            last = (replica, place);
                        }
                    }
                    let expected: Vec<u64> = all.iter().map(|one| one.rows()).collect();
                    assert_eq!(next, expected);
                }
            }
        }
    }

    #[test]
    fn messages_end_after_25_mib() {
        let all: Vec<Owned> = (0..10).map(|k| trained(k, &[MI, 4], true)).collect();
        let pieces = Pieces::new(&all, 2);
        assert_eq!(pieces.buckets(0), [0..2, 2..4, 4..5]);
        let bytes = |rows: &[Range<usize>]| rows.last().unwrap().end;
        assert_eq!(bytes(pieces.buckets(1)), pieces.of(1).len());
    }
}

//! The rows, by family.

mod activation;
mod attention;
mod conv;
mod layer;
mod loss;
mod norm;
mod pool;
mod recurrent;
mod sequence_loss;
mod shape;
mod transformer;

use crate::row::Subject;

/// Rows of one family.
type Family = Vec<Box<dyn Subject>>;

/// Every row.
pub fn all() -> Family {
    [
        layer::rows(),
        conv::rows(),
        norm::rows(),
        recurrent::rows(),
        attention::rows(),
        transformer::rows(),
        pool::rows(),
        shape::rows(),
        activation::rows(),
        loss::rows(),
        sequence_loss::rows(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A family from its rows.
macro_rules! family {
    ($($row:expr),* $(,)?) => {
        vec![$(Box::new($row)),*]
    };
}
use family;

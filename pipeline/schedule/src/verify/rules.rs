//! The rules for the order of two actions of one rank, in the words of an error.

/// The text of a rule.
pub type Rule = &'static str;

pub const BACKWARD_AFTER_FORWARD: Rule = "a backward reads what its own forward kept";
pub const WEIGHT_AFTER_INPUT: Rule = "a weight gradient reads what its input gradient kept";
pub const CONSUMER_AFTER_PRODUCER: Rule = "it reads values that the other computes";
pub const SEND_AFTER_COMPUTE: Rule = "values are sent after they are computed";
pub const COMPUTE_AFTER_RECEIVE: Rule = "values are received before they are read";
pub const GRADIENT_ORDER: Rule =
    "a stage adds its gradients in micro-batch order, so that every schedule gives the same bits";
pub const STATE_ORDER: Rule = "a stage whose forward updates a running state, as batch norm does, runs its \
    forwards in micro-batch order";
pub const REDUCE_AFTER_BACKWARD: Rule = "gradients are reduced after the last backward";
pub const UPDATE_AFTER_BACKWARD: Rule = "parameters are updated after the last backward";
pub const UPDATE_AFTER_REDUCE: Rule = "parameters are updated after their gradients are reduced";
pub const SUM_AFTER_REDUCES: Rule =
    "a rank sends all its values and gradients before it waits for other replicas";
pub const UPDATE_AFTER_SUM: Rule =
    "parameters are updated after the gradients of all replicas are summed";
pub const NORMS_AFTER_SUMS: Rule =
    "norms are exchanged after all gradients of the rank are summed over the replicas";
pub const GATHER_AFTER_UPDATES: Rule =
    "a rank sends its updated parameters before it waits for the parameters of others";
pub const SEND_AFTER_GATHER: Rule =
    "tied values are sent after the parts of all replicas are gathered";
pub const SEND_AFTER_UPDATE: Rule = "tied values are sent after their update";
pub const RECEIVE_AFTER_UPDATE: Rule = "tied values are received after the stage's own update";
pub const UPDATE_AFTER_COPY: Rule =
    "tied values are updated after the last backward of the stage that shares them";
pub const NORM_AFTER_REDUCE: Rule = "norms are computed of reduced gradients";
pub const UPDATE_AFTER_NORMS: Rule =
    "a clip by the norm of all gradients comes before the first update";
pub const SEND_BEFORE_FREE: Rule =
    "a micro-batch's values are freed after its backward, so they are sent before it";

//! Checks whether a plan is for a model.

use std::collections::BTreeMap;
use std::fmt;

use tinderbox_ids::ParameterPath;
use tinderbox_ids::text::count_text;

use super::escape::visible;
use super::{Plan, PlanParameter};

/// Maximum parameters of each kind that a message names.
const NAMED: usize = 5;

/// The differences between the parameters of a model and the parameters of a plan.
///
/// Its text names up to five parameters of each kind; the fields have all parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDifference {
    /// Parameters of the plan that the model does not have, in the plan's order.
    pub missing: Vec<ParameterPath>,
    /// Parameters of the model that the plan does not have, in the model's order.
    pub added: Vec<ParameterPath>,
    /// Parameters with another shape or dtype, as planned and as found, in the plan's order.
    pub changed: Vec<(PlanParameter, PlanParameter)>,
    /// The first position at which the order differs or a parameter is repeated, where nothing else
    /// differs.
    pub order: Option<usize>,
}

impl std::error::Error for ModelDifference {}

impl Plan {
    /// Compares the parameters of a model with the parameters of the plan. Linear in the parameters,
    /// times the logarithm of their number.
    ///
    /// # Errors
    ///
    /// When parameters are missing or added, have another shape or dtype, or another order.
    pub fn check_parameters(&self, found: &[PlanParameter]) -> Result<(), ModelDifference> {
        let planned = &self.parameters;
        if planned == found {
            return Ok(());
        }
        let by_path = |all: &[PlanParameter]| -> BTreeMap<ParameterPath, PlanParameter> {
            let pairs = all.iter().map(|one| (one.path.clone(), one.clone()));
            pairs.collect()
        };
        let (of_plan, of_model) = (by_path(planned), by_path(found));
        let lacks = |all: &[PlanParameter], other: &BTreeMap<ParameterPath, PlanParameter>| {
            let paths = all.iter().map(|one| one.path.clone());
            let lacking = paths.filter(|path| !other.contains_key(path));
            lacking.collect::<Vec<_>>()
        };
        let changed = planned.iter().filter_map(|planned| {
            let found = of_model.get(&planned.path)?;
            (found != planned).then(|| (planned.clone(), found.clone()))
        });
        let (missing, added) = (lacks(planned, &of_model), lacks(found, &of_plan));
        let changed: Vec<_> = changed.collect();
        let is_reordered = missing.is_empty() && added.is_empty() && changed.is_empty();
        let same = planned.iter().zip(found).take_while(|(a, b)| a == b);
        Err(ModelDifference {
            missing,
            added,
            changed,
            order: is_reordered.then(|| same.count()),
        })
    }
}

impl fmt::Display for ModelDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |path: &ParameterPath| format!("`{}`", visible(path.as_str()));
        let mut kinds = Vec::new();
        let mut list = |what: &str, texts: Vec<String>| {
            if !texts.is_empty() {
                let verb = if texts.len() == 1 { "is" } else { "are" };
                let count = count_text(texts.len(), "parameter");
                kinds.push(format!("{count} {verb} {what} ({})", shown(texts)));
            }
        };
        list("missing", self.missing.iter().map(quoted).collect());
        list("added", self.added.iter().map(quoted).collect());
        let changed = self.changed.iter().map(|(planned, found)| {
            let path = quoted(&planned.path);
            let [planned, found] = [planned, found].map(|one| form(&one.dtype, &one.shape));
            format!("{path}: {planned} planned, {found} found")
        });
        list("of another shape or dtype", changed.collect());
        if let Some(order) = self.order {
            kinds.push(format!(
                "the parameters have another order, or one is repeated, from position {order} on"
            ));
        }
        let kinds = kinds.join("; ");
        write!(
            f,
            "the plan is for another model: {kinds}; create a plan for this one"
        )
    }
}

/// The first texts, and the number of the others.
pub(super) fn shown(mut texts: Vec<String>) -> String {
    let more = texts.len().saturating_sub(NAMED);
    texts.truncate(NAMED);
    if more > 0 {
        texts.push(format!("and {more} more"));
    }
    texts.join(", ")
}

/// Dtype and shape: `f32[2, 3]`.
pub(super) fn form(dtype: &str, shape: &[usize]) -> String {
    format!("{}{shape:?}", visible(dtype))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::samples;

    #[test]
    fn the_model_of_the_plan_is_accepted() {
        let plan = samples::four_stages();
        assert_eq!(plan.check_parameters(&plan.parameters), Ok(()));
    }

    #[test]
    fn differences_are_named() {
        let plan = samples::two_stages();
        let refused = |change: fn(&mut Vec<PlanParameter>)| {
            let mut found = plan.parameters.clone();
            change(&mut found);
            plan.check_parameters(&found).unwrap_err().to_string()
        };
        insta::assert_snapshot!(refused(|all| { all.remove(3); }), @"the plan is for another model: 1 parameter is missing (`blocks.0.attention.bias`); create a plan for this one");
        insta::assert_snapshot!(refused(|all| {
            let mut one = all[0].clone();
            one.path = "extra.\u{1b}".into();
            all.push(one);
        }), @r"the plan is for another model: 1 parameter is added (`extra.\u{1b}`); create a plan for this one");
        insta::assert_snapshot!(refused(|all| {
            all[0].shape = vec![3];
            all[1].dtype = "bf16".to_owned();
        }), @"the plan is for another model: 2 parameters are of another shape or dtype (`embedding.weight`: f32[512, 12288] planned, f32[3] found, `embedding.bias`: f32[24576] planned, bf16[24576] found); create a plan for this one");
        insta::assert_snapshot!(refused(|all| all.swap(4, 5)), @"the plan is for another model: the parameters have another order, or one is repeated, from position 4 on; create a plan for this one");
        insta::assert_snapshot!(refused(|all| all.push(all[0].clone())), @"the plan is for another model: the parameters have another order, or one is repeated, from position 16 on; create a plan for this one");
        insta::assert_snapshot!(refused(Vec::clear), @"the plan is for another model: 16 parameters are missing (`embedding.weight`, `embedding.bias`, `blocks.0.attention.weight`, `blocks.0.attention.bias`, `blocks.0.feed_forward.weight`, and 11 more); create a plan for this one");
    }
}

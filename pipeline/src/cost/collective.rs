//! Operations between devices.
//!
//! A sum over `p` devices of a tensor of `n` bytes moves `2 n (p - 1) / p` bytes into each device
//! and as many out, and takes `(p - 1) / p` additions per element: the ring of Patarasuk and Yuan,
//! doi:10.1016/j.jpdc.2008.09.002, which no algorithm beats. A mean divides each element once more.
//!
//! Here, bytes read are those that a device sends and bytes written those that it receives. They go
//! over links, not through memory, so a machine's bandwidth for them is another.

use burn_backend::distributed::ReduceOperation;
use burn_ir::{AllReduceOpIr, DistributedOperationIr};

use super::count::{Count, OperationCost};
use super::size::{bytes, elements};

/// What one device computes, sends and receives.
pub(super) fn distributed(operation: &DistributedOperationIr) -> OperationCost {
    match operation {
        DistributedOperationIr::AllReduce(op) => op.count(),
        DistributedOperationIr::SyncCollective => OperationCost::default(),
    }
}

/// The share `(devices - 1) / devices` of an amount, rounded up.
fn share_of_others(amount: u64, devices: u64) -> u64 {
    let others = u128::from(amount) * u128::from(devices.saturating_sub(1));
    u64::try_from(others.div_ceil(u128::from(devices.max(1)))).unwrap_or(u64::MAX)
}

impl Count for AllReduceOpIr {
    fn count(&self) -> OperationCost {
        let devices = self.device_ids.len() as u64;
        let additions = share_of_others(elements(&self.tensor), devices);
        let divisions = match self.op {
            ReduceOperation::Sum => 0,
            ReduceOperation::Mean => elements(&self.tensor),
        };
        let moved = share_of_others(bytes(&self.tensor), devices).saturating_mul(2);
        OperationCost {
            flops: additions.saturating_add(divisions),
            bytes_read: moved,
            bytes_written: moved,
        }
    }
}

#[cfg(test)]
mod tests {
    use burn_ir::{DeviceIdIr, OperationIr};

    use super::*;
    use crate::cost::fixture::{check, output, tensor};

    fn all_reduce(op: ReduceOperation, devices: u16) -> OperationIr {
        let device = |index_id| DeviceIdIr {
            type_id: 0,
            index_id,
        };
        let devices = (0..devices).map(device).collect();
        let reduce = AllReduceOpIr::create(tensor(0, &[100]), op, devices, output);
        OperationIr::Distributed(DistributedOperationIr::AllReduce(reduce))
    }

    #[test]
    fn a_ring_sends_everything_but_its_own_share_twice() {
        check(all_reduce(ReduceOperation::Sum, 4), (75, 600, 600));
        check(all_reduce(ReduceOperation::Mean, 4), (175, 600, 600));
        // 400 * 2 / 3, rounded up, twice.
        check(all_reduce(ReduceOperation::Sum, 3), (67, 534, 534));
    }

    #[test]
    fn one_device_sends_nothing() {
        check(all_reduce(ReduceOperation::Sum, 1), (0, 0, 0));
        check(all_reduce(ReduceOperation::Sum, 0), (0, 0, 0));
        let sync = DistributedOperationIr::SyncCollective;
        check(OperationIr::Distributed(sync), (0, 0, 0));
    }
}

//! Values that stay on a stage between evaluations.

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor};
use tinderbox_deferred::Deferred;

use crate::{Carried, Machine, Outputs, Pipeline, Traceable, Whole};

type Step = (Tensor<2>, Whole<Tensor<1, Int>>, Carried<Whole<Tensor<2>>>);

fn step(place: i32) -> Step {
    let device = Device::flex();
    let rows = Tensor::zeros([64, 4], &device);
    let place = Tensor::from_ints([place], &device);
    let x = Tensor::ones([1, 4], &device);
    (x, Whole(place), Carried(Whole(rows)))
}

fn forward(net: &Linear, (x, Whole(place), Carried(Whole(rows))): Step) -> Outputs {
    let rows = rows.select_assign(0, place, net.forward(x), IndexingUpdateOp::Assign);
    Outputs::none().with("sum", rows.clone().sum()).carry(rows)
}

/// Its stage has the only handle of a value: Burn writes a row of it in place.
#[test]
fn a_value_is_written_in_place() {
    let model = Deferred::new(|device: &Device| LinearConfig::new(4, 4).init(device)).unwrap();
    let trace = model.trace_forward(&step(0), forward).unwrap();
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan).start().unwrap();
    let mut carry = pipeline.carry();
    let mut addresses = Vec::new();
    for place in 0..4 {
        pipeline.evaluate_carried(&mut carry, step(place)).unwrap();
        let address = pipeline.on_ranks(|_, stages| {
            let values = stages[0].carried.values();
            let bytes = values.map(|value| value.host_bytes().unwrap().as_ptr() as usize);
            bytes.collect::<Vec<_>>()
        });
        addresses.extend(address.unwrap().concat());
    }
    assert_eq!(addresses.len(), 4);
    // The first is a copy of the value of the batch.
    let first = addresses[0];
    assert!(addresses.iter().all(|address| *address == first));
}

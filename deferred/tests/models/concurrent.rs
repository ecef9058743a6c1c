//! Materializations on several threads do not wait for each other.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{Deferred, MaterializeOptions, Observer, ParameterPath};

/// Reports that a value is complete, and waits for permission to continue.
struct Waits(Mutex<(Sender<()>, Receiver<()>)>);

impl Observer for Waits {
    fn completed(&self, _: &ParameterPath, _: u64) {
        let (started, ended) = &*self.0.lock().unwrap();
        started.send(()).unwrap();
        // Fails when the sender is dropped: the other values do not wait.
        let _ = ended.recv_timeout(Duration::from_secs(60));
    }
}

#[test]
fn one_is_whole_while_another_is_half_done() {
    let model: Deferred<Linear> =
        Deferred::new(|device| LinearConfig::new(3, 4).init(device)).unwrap();
    let source = model.initializer(Seed::new(1));
    let device = Device::flex();
    let ((begin, started), (end, ended), (done, whole)) = (channel(), channel::<()>(), channel());
    let half = Waits(Mutex::new((begin, ended)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let options = MaterializeOptions::on(&device).observer(&half);
            model.materialize(options, &source).unwrap();
        });
        started.recv().unwrap();
        scope.spawn(|| {
            model.materialize(&device, &source).unwrap();
            done.send(()).unwrap();
        });
        let whole = whole.recv_timeout(Duration::from_secs(20));
        drop(end);
        whole.expect("the other materialization does not wait");
    });
}

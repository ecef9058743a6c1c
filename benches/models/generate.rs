//! Tokens per second of a pipeline and of a loop in plain Burn with the same caches.

use burn::module::Module;
use burn::tensor::Device;
use tinderbox::{Deferred, Generate, Machine, Outputs, Pipeline, Traceable};
use tinderbox_benches::figures::median;
use tinderbox_models::decoder::decode::Plain;
use tinderbox_models::decoder::model::{Llama, LlamaConfig, Step};

use crate::BENCH;

const PROMPT: [i32; 16] = [
    82, 79, 77, 69, 79, 58, 10, 87, 104, 97, 116, 32, 115, 97, 121, 32,
];
const TOKENS: usize = 96;
const SEED: u64 = 1;

/// Prints the speed after the prompt in one stage as a multiple of plain Burn's, each with all cores: of the example's
/// model of 5 million parameters, and of one of 51 million.
pub fn figures() {
    let small = LlamaConfig::of_bytes(PROMPT.len() + TOKENS);
    let large = LlamaConfig {
        hidden: 768,
        layers: 8,
        heads: 12,
        head_size: 64,
        feed_forward: 2048,
        ..small.clone()
    };
    compare(&small, "generate_small");
    compare(&large, "generate");
}

fn compare(config: &LlamaConfig, name: &str) {
    let of_model = config.clone();
    let model = Deferred::new(move |device| of_model.init(device)).expect("it is recorded");
    let host = Device::flex();
    let example = Step::new(&[0], 0, config.caches(1, &host), &host);
    let trace = model
        .trace_forward(&example, |llama: &Llama, step| {
            let (scores, caches) = llama.forward(step);
            Outputs::none().with("scores", scores).carry(caches)
        })
        .expect("it is traced");
    let machine = Machine::local(1).expect("a machine of one rank");
    let plan = trace.plan(&machine).expect("it is planned");
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .seed(SEED)
        .start()
        .expect("it starts");
    // In the same memory: the speed of a product depends on the pages of its weights.
    let plain: Llama = pipeline.gather(&host).expect("it is gathered");
    let generate = Generate::new(TOKENS);
    let (mut ratios, mut speeds) = (Vec::new(), Vec::new());
    for turn in 0..=BENCH.turns() {
        let mut decoder = Plain::new(&plain, config, &host);
        let of_plain = generate.run_with(&mut decoder, &PROMPT, |_| ());
        let of_plain = of_plain.expect("it generates");
        let of_pipeline = generate.run(&mut pipeline, &PROMPT, config.steps(), |_| ());
        let of_pipeline = of_pipeline.expect("it generates");
        assert_eq!(of_plain.tokens, of_pipeline.tokens);
        let speed = of_plain.tokens_per_s().expect("several tokens");
        // The first turn loads programs and allocates memory.
        if turn > 0 {
            let of_pipeline = of_pipeline.tokens_per_s().expect("several tokens");
            ratios.push(of_pipeline / speed);
            speeds.push(speed);
        }
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "{} parameters: {:.3} to {:.3} times the speed of plain Burn",
        plain.num_params(),
        ratios[0],
        ratios[ratios.len() - 1]
    );
    let speed = format!("{name}_plain_tokens_per_s");
    BENCH.figure(&speed, median(speeds), "tokens/s");
    BENCH.figure(&format!("{name}_tokens_vs_burn"), median(ratios), "ratio");
}

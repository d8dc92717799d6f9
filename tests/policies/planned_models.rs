//! What plans of known models cost, over the bytes that exceed the budget.

use crate::models::{bench, layers_twice, llama_8b, table_three_times, there_and_back, unet};
use crate::models::{large, large_twice, Model, CUDA, HOST};
use weightstream::figures::DeviceModel;
use weightstream::residency::planned::{lru_price, plan};
use weightstream::schedule::floor;

/// Budgets, in percent of all weights; the first one is the floor.
const PERCENT: [u64; 6] = [0, 10, 25, 50, 75, 90];

fn capacity(model: &Model, device: &DeviceModel, percent: u64) -> u64 {
    let floor = floor(&model.trace, &model.weights, device.granule);
    (model.total() / 100 * percent).max(floor.bytes())
}

/// Cost over what exceeds the budget, at each of [`PERCENT`].
fn costs(model: &Model, device: &DeviceModel) -> [f64; 6] {
    PERCENT.map(|percent| {
        let capacity = capacity(model, device, percent);
        let plan = plan(&[(&model.trace).into()], &model.weights, device, capacity);
        let cost = plan.unwrap().price.in_bytes(device.bytes_per_copy);
        cost as f64 / (model.total() - capacity) as f64
    })
}

/// What the planner before this one reached, which had many more shapes of rings; and by how much a plan may cost more.
#[test]
fn plans_for_a_gpu_are_as_cheap_as_with_many_shapes() {
    let before = [
        (bench(), [1.0306, 1.0306, 1.0264, 1.0249, 1.0313, 1.0491]),
        (llama_8b(), [1.0193, 1.0193, 1.0184, 1.0181, 1.0209, 1.0323]),
        (unet(), [1.0860, 1.0873, 1.0860, 1.0631, 1.0755, 1.1191]),
    ];
    for (model, before) in before {
        let found = costs(&model, &CUDA);
        println!("{}: {found:.4?}, before {before:.4?}", model.name);
        for (found, before) in found.iter().zip(before) {
            assert!(
                found / before <= 1.005,
                "{}: {found}, before {before}",
                model.name
            );
        }
    }
}

/// One copy serves both runs of a layer.
#[test]
fn layers_that_run_twice_are_copied_once() {
    for device in [&CUDA, &HOST] {
        let found = costs(&layers_twice(), device);
        println!("{found:.4?}");
        assert!(found.iter().all(|cost| *cost <= 1.08), "{found:?}");
    }
}

/// Bars a little above what was found.
#[test]
fn plans_of_other_programs_stay_as_cheap_as_they_are() {
    let bars = [
        (there_and_back(), &CUDA, 2.05),
        (table_three_times(), &CUDA, 1.05),
        (bench(), &HOST, 1.03),
        (llama_8b(), &HOST, 1.02),
        (unet(), &HOST, 1.045),
        (there_and_back(), &HOST, 2.04),
        (table_three_times(), &HOST, 1.03),
    ];
    for (model, device, bar) in bars {
        let found = costs(&model, device);
        println!("{}: {found:.4?}", model.name);
        assert!(
            found.iter().all(|cost| *cost <= bar),
            "{}: {found:?}",
            model.name
        );
    }
}

/// To be run by itself, in release: what planning takes depends on the machine and on what else it does.
#[test]
#[ignore = "prints how long planning takes"]
fn ten_thousand_probes() {
    for (model, device) in [(large(), &CUDA), (large(), &HOST), (large_twice(), &CUDA)] {
        for percent in [5, 25, 50, 75, 90, 99] {
            let capacity = capacity(&model, device, percent);
            let began = std::time::Instant::now();
            let found = plan(&[(&model.trace).into()], &model.weights, device, capacity).unwrap();
            let planned = began.elapsed().as_secs_f64() * 1e3;
            let began = std::time::Instant::now();
            let lru = lru_price(&model.trace, &model.weights, 512, capacity).map(|lru| lru.bytes);
            println!(
                "{}, {percent} %: {planned:.1} ms; {} bytes; the LRU, played in {:.1} ms, {lru:?}",
                model.name,
                found.price.bytes,
                began.elapsed().as_secs_f64() * 1e3,
            );
        }
    }
}

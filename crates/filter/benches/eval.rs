//! What a subscription by SQL92 costs for each message.

#![allow(clippy::unwrap_used, reason = "what fails here fails the run")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use filter::Expression;

/// As a Java producer with three properties of its own leaves them.
const PROPERTIES: &[u8] = b"region\x01eu-central\x02amount\x01250\x02KEYS\x01order-4711\x02\
    UNIQ_KEY\x017F0000010B2C4DC639969F7E2A350001\x02CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TAGS\x01TagA\x02color\x01red\x02";

fn evaluating(c: &mut Criterion) {
    let mut group = c.benchmark_group("eval");
    group.throughput(Throughput::Elements(1));
    for (name, text) in [
        ("one term", "amount > 100"),
        ("three terms", "amount > 100 AND region = 'eu-central' AND color IS NOT NULL"),
        ("three terms, none of them there", "weight > 100 OR country = 'x' OR shape IS NOT NULL"),
        (
            "fraction, list and part of a text",
            "amount BETWEEN 99.5 AND 1e3 AND color IN ('red', 'green') AND region STARTSWITH 'eu'",
        ),
    ] {
        let expression = Expression::compile(text).unwrap();
        group.bench_function(name, |b| b.iter(|| black_box(&expression).matches(black_box(PROPERTIES))));
    }
    group.finish();
}

fn compiling(c: &mut Criterion) {
    let text = "amount > 100 AND region = 'eu-central' AND color IS NOT NULL";
    c.bench_function("compile three terms", |b| b.iter(|| Expression::compile(black_box(text)).unwrap()));
}

criterion_group!(benches, evaluating, compiling);
criterion_main!(benches);

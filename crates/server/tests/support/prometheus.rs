//! Reads Prometheus' text form (version 0.0.4) as strictly as its description allows, and fails at what is not in it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

/// One value: its labels, and the number.
pub type Sample = (BTreeMap<String, String>, f64);

/// What is said of one metric.
#[derive(Default)]
pub struct Family {
    pub kind: String,
    /// By name: those of a histogram end in `_bucket`, `_sum` and `_count`.
    pub samples: Vec<(String, Sample)>,
}

/// Head and body of the answer.
pub fn ask(port: u16, what: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "{what} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The value of the only line that begins so.
pub fn value(page: &str, begins: &str, has: &str) -> f64 {
    let lines: Vec<_> = page.lines().filter(|line| line.starts_with(begins) && line.contains(has)).collect();
    assert_eq!(lines.len(), 1, "{begins} {has}: {lines:?} in {page}");
    lines[0].rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// All metrics of a page.
pub fn read(page: &str) -> BTreeMap<String, Family> {
    assert!(page.ends_with('\n'), "the last line has no end");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut current, mut helped) = (String::new(), BTreeSet::new());
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, about) = rest.split_once(' ').expect(line);
            assert!(is_name(name) && !about.is_empty() && helped.insert(name.to_owned()), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            let family = Family { kind: kind.to_owned(), ..Family::default() };
            assert!(helped.contains(name) && families.insert(name.to_owned(), family).is_none(), "{line}");
            current = name.to_owned();
        } else {
            let (name, sample) = sample(line);
            let family = families.get_mut(&current).expect(line);
            let end = name.strip_prefix(current.as_str()).unwrap_or_else(|| panic!("{line} stands below {current}"));
            let is_right = match family.kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"].contains(&end),
                _ => end.is_empty(),
            };
            assert!(is_right, "{line}");
            family.samples.push((name, sample));
        }
    }
    families.iter().for_each(|(name, family)| check(name, family));
    families
}

/// What a metric of its kind has to be.
fn check(name: &str, family: &Family) {
    assert_eq!(family.kind == "counter", name.ends_with("_total"), "{name}");
    let mut seen = BTreeSet::new();
    for (name, (labels, value)) in &family.samples {
        assert!(seen.insert((name.clone(), labels.clone())), "{name} {labels:?} twice");
        assert!(family.kind == "gauge" || *value >= 0.0, "{name} {labels:?} {value}");
    }
    // Of each histogram the classes grow, and the last one holds all.
    let mut below: BTreeMap<BTreeMap<String, String>, (f64, f64)> = BTreeMap::new();
    for (sample, (labels, value)) in family.samples.iter().filter(|_| family.kind == "histogram") {
        let mut labels = labels.clone();
        if sample.ends_with("_bucket") {
            let bound = labels.remove("le").expect(sample);
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect(sample) };
            if let Some((before, count)) = below.insert(labels, (bound, *value)) {
                assert!(before < bound && count <= *value, "{sample} {bound} {value}");
            }
        } else if sample.ends_with("_count") {
            assert_eq!(below.get(&labels), Some(&(f64::INFINITY, *value)), "{sample} {labels:?}");
        }
    }
}

/// `name{label="value",…} number`
fn sample(line: &str) -> (String, Sample) {
    let (name, rest) = line.split_once('{').expect(line);
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    let mut letters = rest.chars();
    let mut label = String::new();
    loop {
        match letters.next().expect(line) {
            '=' => {
                assert!(is_name(&label) && !label.contains(':') && letters.next() == Some('"'), "{line}");
                let mut value = String::new();
                loop {
                    match letters.next().expect(line) {
                        '"' => break,
                        '\\' => value.push(match letters.next() {
                            Some('n') => '\n',
                            Some(same @ ('\\' | '"')) => same,
                            other => panic!("{other:?} is no escape: {line}"),
                        }),
                        other => value.push(other),
                    }
                }
                assert!(labels.insert(std::mem::take(&mut label), value).is_none(), "a label twice: {line}");
                match letters.next().expect(line) {
                    ',' => {}
                    '}' => break,
                    other => panic!("{other}: {line}"),
                }
            }
            other => label.push(other),
        }
    }
    let value = letters.as_str().strip_prefix(' ').expect(line);
    (name.to_owned(), (labels, value.parse().expect(line)))
}

fn is_name(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphabetic() || letter == '_' || letter == ':';
    name.starts_with(is_letter) && name.chars().all(|letter| is_letter(letter) || letter.is_ascii_digit())
}

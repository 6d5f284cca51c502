//! Every recorded answer of the published classes is our answer.

mod recorded;

use filter::bloom::BloomFilter;
use filter::{EvalError, Expression};
use recorded::unescape;

const EXPRESSIONS: &str = include_str!("data/expressions.tsv");
const BLOOM: &str = include_str!("data/bloom.tsv");

fn lines<'a>(data: &'a str, kind: &'a str) -> impl Iterator<Item = Vec<&'a str>> {
    data.lines().map(|line| line.split('\t').collect::<Vec<_>>()).filter(move |fields| fields[0] == kind)
}

fn letter(result: Result<Option<bool>, EvalError>) -> char {
    match result {
        Ok(Some(true)) => 'T',
        Ok(Some(false)) => 'F',
        Ok(None) => 'N',
        Err(_) => 'E',
    }
}

#[test]
fn what_apache_accepts_has_the_same_result_for_every_message() {
    let messages: Vec<_> = lines(EXPRESSIONS, "properties").map(|fields| unescape(fields[1])).collect();
    let mut pairs = 0;
    for fields in lines(EXPRESSIONS, "accepts") {
        let text = unescape(fields[1]);
        let expression = Expression::compile(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(fields[2].len(), messages.len(), "a result for each message");
        for (message, expected) in messages.iter().zip(fields[2].chars()) {
            let result = expression.eval(message.as_bytes());
            assert_eq!(letter(result), expected, "{text:?} for {message:?}");
            assert_eq!(expression.matches(message.as_bytes()), expected == 'T');
            pairs += 1;
        }
    }
    assert!(pairs > 50_000, "{pairs} pairs");
}

#[test]
fn what_apache_refuses_is_refused_for_the_same_reason_at_the_same_place() {
    let mut places = 0;
    for fields in lines(EXPRESSIONS, "refuses") {
        let text = unescape(fields[1]);
        let error = match Expression::compile(&text) {
            Ok(expression) => panic!("{text:?} became {expression}"),
            Err(error) => error,
        };
        // Apache looks ahead behind a plus sign, and whatever is wrong there, it is the sign that it complains about.
        if text.contains('+') {
            continue;
        }
        // Its cast of TRUE to text while it compares the limits of a BETWEEN is an accident that needs no name of its own.
        let class = fields[2].replace("ClassCastException", "RuntimeException");
        assert!(error.remark().starts_with(&format!("{class}: ")), "{text:?}: {}", error.remark());
        let (line, column) = (fields[3], fields[4]);
        if line == "-" || text.contains('\t') {
            continue;
        }
        // Behind a NOT that leads nowhere we name what was found there; Apache names the NOT.
        let apache = offset(&text, line.parse().unwrap(), column.parse().unwrap());
        if !text[apache..].to_ascii_uppercase().starts_with("NOT") {
            assert_eq!(
                (error.line.to_string().as_str(), error.column.to_string().as_str()),
                (line, column),
                "{text:?}"
            );
            assert_eq!(error.offset, apache, "{text:?}");
            places += 1;
        }
    }
    assert!(places > 200, "{places} places");
}

fn offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive(['\n', '\r']).take(line - 1).map(str::len).sum();
    start + text[start..].char_indices().nth(column - 1).map_or(text.len() - start, |(at, _)| at)
}

#[test]
fn printed_expressions_mean_the_same() {
    for fields in lines(EXPRESSIONS, "accepts") {
        let expression = Expression::compile(&unescape(fields[1])).unwrap();
        assert_eq!(Expression::compile(&expression.to_string()), Ok(expression.clone()), "{expression}");
    }
}

#[test]
fn bloom_filters_have_the_sizes_of_apache() {
    for fields in lines(BLOOM, "size") {
        let [f, n, k, m] = [1, 2, 3, 4].map(|index| fields[index].parse::<u32>().unwrap());
        let filter = BloomFilter::new(f, n).unwrap();
        assert_eq!((filter.hashes(), filter.bits()), (k, m), "{f} % for {n}");
    }
}

#[test]
fn consumers_have_the_bits_that_apache_gives_them() {
    for fields in lines(BLOOM, "bits") {
        let filter = BloomFilter::new(fields[1].parse().unwrap(), fields[2].parse().unwrap()).unwrap();
        let name = unescape(fields[3]);
        let data = filter.data(&name);
        let positions: Vec<_> = fields[4].split(',').map(|position| position.parse().unwrap()).collect();
        assert_eq!(data.positions, positions, "{name:?}");

        let mut bitmap = filter.bitmap();
        assert_eq!(filter.is_hit(&data, &bitmap), Some(false));
        filter.set(&data, &mut bitmap);
        let hex: String = bitmap.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, fields[5], "{name:?}");
        assert_eq!(filter.is_hit(&data, &bitmap), Some(true));
    }
}

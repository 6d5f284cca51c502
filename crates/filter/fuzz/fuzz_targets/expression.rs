//! Any text is an expression or a refusal that points into it; what was compiled is printed and compiled again as the same.
#![no_main]

use filter::Expression;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &[u8])| {
    let (text, properties) = input;
    match Expression::compile(text) {
        Ok(expression) => {
            let _ = expression.eval(properties);
            // Only blanks make it longer, and those could lead beyond the limit.
            if text.len() < filter::EXPRESSION_BYTES_MAX / 4 {
                assert_eq!(Expression::compile(&expression.to_string()).expect("our own text"), expression);
            }
        }
        Err(error) => assert!(text.is_char_boundary(error.offset) && error.line > 0 && error.column > 0),
    }
});

//! The macro that makes [`Key`](crate::key::Key)s of lines.

/// Writes lines of the table as `Key`s. The lines are data: they are aligned by hand and left alone by the formatter.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident: $section:expr;
     $($state:ident $(($why:expr))? $name:literal $kind:ident $sign:tt $default:literal $about:literal;)*) => {
        $(#[$doc])*
        pub(super) const $table: &[Key] = &[$(Key {
            name: $name,
            section: $section,
            kind: $kind,
            default: table!(@default $sign $default),
            state: table!(@state $state $(($why))?),
            is_live: table!(@live $state),
            about: $about,
        }),*];
    };
    (@default = $value:literal) => { crate::key::Default::Value($value) };
    (@default ~ $found:literal) => { crate::key::Default::Found($found) };
    (@state used) => { crate::key::State::Used };
    (@state live) => { crate::key::State::Used };
    (@state accepted($why:expr)) => { crate::key::State::Accepted($why) };
    (@state not_needed($why:expr)) => { crate::key::State::NotNeeded($why) };
    (@state off($why:expr)) => { crate::key::State::Off($why) };
    (@state refused($why:expr)) => { crate::key::State::Refused($why) };
    (@live live) => { true };
    (@live $other:ident) => { false };
}
pub(super) use table;

//! Addresses become names of functions, with those that the compiler has put into others.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use addr2line::Loader;

use super::files::Mapped;

/// The names of functions of a process.
pub struct Names<'a> {
    mapped: &'a [Mapped],
    /// What a file says about its functions; nothing if it says nothing.
    files: HashMap<&'a Path, Option<Loader>>,
    known: HashMap<u64, Rc<[String]>>,
}

impl<'a> Names<'a> {
    /// Opens the files: they are reached by way of the process, which may end before its functions are asked for.
    pub fn new(mapped: &'a [Mapped]) -> Names<'a> {
        let mut files = HashMap::new();
        for path in mapped.iter().filter_map(|mapped| mapped.path.as_deref()) {
            files.entry(path).or_insert_with(|| Loader::new(path).ok());
        }
        Names { mapped, files, known: HashMap::new() }
    }

    /// The functions at this address, the outermost first. At least one; the name of the file in brackets if it is not known.
    pub fn at(&mut self, address: u64) -> Rc<[String]> {
        if let Some(known) = self.known.get(&address) {
            return Rc::clone(known);
        }
        let found = self.find(address).into();
        self.known.insert(address, Rc::clone(&found));
        found
    }

    fn find(&self, address: u64) -> Vec<String> {
        let Some(mapped) = self.mapped.iter().find(|mapped| mapped.addresses.contains(&address)) else {
            return vec!["[unknown]".to_owned()];
        };
        let unnamed = || if mapped.name.starts_with('[') { mapped.name.clone() } else { format!("[{}]", mapped.name) };
        let loader = mapped.path.as_deref().and_then(|path| self.files.get(path)?.as_ref());
        let Some(loader) = loader else { return vec![unnamed()] };
        let in_file = address.wrapping_sub(mapped.bias);
        let mut found = Vec::new();
        if let Ok(mut frames) = loader.find_frames(in_file) {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
                let file = frame.location.as_ref().and_then(|location| location.file);
                found.push(name.map_or_else(unnamed, |name| placed(readable(&name), file)));
            }
        }
        // The table of symbols has the whole name of the outermost; debugging information may have its last part alone.
        if let Some(symbol) = loader.find_symbol(in_file) {
            found.pop();
            found.push(readable(symbol));
        }
        if found.is_empty() {
            found.push(unnamed());
        }
        found.reverse();
        found
    }
}

/// Without the hash that the compiler appends.
fn readable(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

/// Debugging information that has lines alone knows the last part of an inlined function's name. Which one it is, its file says.
fn placed(name: String, file: Option<&str>) -> String {
    // `<T as Trait>::f` and `a::f<T>` have their place; `f<a::T>` has that of its type alone.
    if name.starts_with('<') || name.split('<').next().is_some_and(|own| own.contains("::")) {
        return name;
    }
    let file = file.and_then(|file| {
        // Sources in other languages need not lie in a `src` of their package. Then this one is cargo's, and the registry's name follows.
        let (before, within) = match file.rsplit_once("/registry/src/").and_then(|(_, rest)| rest.split_once('/')) {
            Some((_, rest)) if !rest.contains("/src/") => return Some(rest.to_owned()),
            Some(_) | None => file.rsplit_once("/src/")?,
        };
        let folder = before.rsplit('/').next()?;
        // The version of a package of others.
        let package = match folder.rsplit_once('-') {
            Some((package, version)) if version.starts_with(|letter: char| letter.is_ascii_digit()) => package,
            Some(_) | None => folder,
        };
        Some(format!("{package}/src/{within}"))
    });
    match file {
        Some(file) => format!("{name} [{file}]"),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn somewhere() -> u64 {
        // Not folded into another function: it does something of its own.
        std::hint::black_box(41) + 1
    }

    #[test]
    fn a_function_of_this_program_is_found_and_an_address_that_is_none_is_unknown() {
        let mapped = Mapped::all(i32::try_from(std::process::id()).unwrap()).unwrap();
        let mut names = Names::new(&mapped);
        assert_eq!(somewhere(), 42);
        let found = names.at(somewhere as fn() -> u64 as usize as u64);
        assert!(found.iter().any(|name| name.ends_with("names::tests::somewhere")), "{found:?}");
        assert_eq!(*names.at(1), ["[unknown]".to_owned()]);
    }

    #[inline(always)]
    fn within() -> u64 {
        std::hint::black_box(40) + 2
    }

    #[inline(never)]
    fn around() -> u64 {
        std::hint::black_box(within()) + 1
    }

    #[test]
    fn an_inlined_call_stands_with_its_file_behind_the_function_that_it_is_in() {
        let mapped = Mapped::all(i32::try_from(std::process::id()).unwrap()).unwrap();
        let mut names = Names::new(&mapped);
        assert_eq!(around(), 43);
        let begin = around as fn() -> u64 as usize as u64;
        let found: Vec<_> = (begin..begin + 16).map(|address| names.at(address).to_vec()).collect();
        let is_around = |name: &String| name.ends_with("names::tests::around");
        let is_within = |name: &String| name == "within [doctor/src/profile/names.rs]";
        let stands = |stack: &Vec<String>| {
            let outer = stack.iter().position(is_around);
            outer.is_some_and(|outer| stack[outer..].iter().any(is_within))
        };
        assert!(found.iter().any(stands), "{found:?}");
    }

    #[test]
    fn names_are_shown_without_their_hash() {
        assert_eq!(readable("_ZN5store10commit_log6append17h0123456789abcdefE"), "store::commit_log::append");
        assert_eq!(readable("writev"), "writev");
    }

    #[test]
    fn inlined_functions_are_told_apart_by_their_files() {
        let placed = |name: &str, file| placed(name.to_owned(), file);
        assert_eq!(placed("append", Some("crates/store/src/commit_log.rs")), "append [store/src/commit_log.rs]");
        assert_eq!(
            placed("park", Some("/r/tokio-util-1.54.0/src/runtime/park.rs")),
            "park [tokio-util/src/runtime/park.rs]"
        );
        // The registry is nobody's business.
        assert_eq!(
            placed("mi_free", Some("/r/registry/src/registry.example-0/libmimalloc-sys-0.1.4/c/src.c")),
            "mi_free [libmimalloc-sys-0.1.4/c/src.c]"
        );
        assert_eq!(
            placed("poll", Some("/r/registry/src/registry.example-0/tokio-1.54.0/src/park.rs")),
            "poll [tokio/src/park.rs]"
        );
        assert_eq!(placed("a::park", Some("/r/tokio-1.54.0/src/park.rs")), "a::park");
        assert_eq!(
            placed("write<a::T>", Some("/rustc/0/library/core/src/ptr/mod.rs")),
            "write<a::T> [core/src/ptr/mod.rs]"
        );
        assert_eq!(placed("<a::T as b::C>::write", Some("/x/src/b.rs")), "<a::T as b::C>::write");
        assert_eq!(placed("main", None), "main");
    }
}

//! Which top-level modules a source file of the library uses.
//!
//! In: a file's tokens and its own module path. Out: every module named through `crate::` or a climb with `super::`
//! that leaves the file's own module. Guarantee: `use` groups, nested groups and inline modules are followed.

use super::tokens::{Kind, Token};

/// A use of a top-level module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModuleUse {
    /// Its name; `*` for everything in the crate's root.
    pub(super) module: String,
    /// Counted from 1.
    pub(super) line: usize,
}

/// The uses in `tokens`, the contents of the module at `path` (`["plan", "cell"]` for `plan/cell.rs`).
pub(super) fn module_uses(tokens: &[Token], path: &[String]) -> Vec<ModuleUse> {
    let mut uses = Vec::new();
    let mut inside = path.to_vec();
    // Depth of braces, and the depths at which inline modules opened.
    let mut depth = 0usize;
    let mut inline = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let continues_path = at > 0 && tokens[at - 1].kind == Kind::Path;
        match &token.kind {
            Kind::Mark('{') => {
                depth += 1;
                if let Some(name) = inline_module(&tokens[..at]) {
                    inside.push(name);
                    inline.push(depth);
                }
            }
            Kind::Mark('}') => {
                if inline.last() == Some(&depth) {
                    inline.pop();
                    inside.pop();
                }
                depth = depth.saturating_sub(1);
            }
            Kind::Word(word) if ["crate", "super", "self"].contains(&word.as_str()) && !continues_path => {
                follow(&tokens[at..], &inside, &mut uses);
            }
            _ => {}
        }
    }
    uses
}

/// The name of the inline module whose `{` stands right behind `before`.
fn inline_module(before: &[Token]) -> Option<String> {
    match before {
        [.., keyword, Token { kind: Kind::Word(name), .. }] if keyword.is_word("mod") => Some(name.clone()),
        _ => None,
    }
}

/// Follows a path or group at the start of `tokens`, seen from the module `from`.
fn follow(tokens: &[Token], from: &[String], uses: &mut Vec<ModuleUse>) {
    let Some(first) = tokens.first() else { return };
    match &first.kind {
        Kind::Word(word) if word == "crate" => step(tokens, &[], uses),
        Kind::Word(word) if word == "super" => step(tokens, &from[..from.len().saturating_sub(1)], uses),
        Kind::Word(word) if word == "self" => step(tokens, from, uses),
        // From the crate's root, the next name is a top-level module.
        Kind::Word(word) if from.is_empty() => uses.push(ModuleUse { module: word.clone(), line: first.line }),
        Kind::Mark('*') if from.is_empty() => uses.push(ModuleUse { module: "*".to_string(), line: first.line }),
        Kind::Mark('{') => {
            for element in group_elements(&tokens[1..]) {
                follow(element, from, uses);
            }
        }
        _ => {}
    }
}

/// Goes on behind the `::` that follows the first token, if one does.
fn step(tokens: &[Token], from: &[String], uses: &mut Vec<ModuleUse>) {
    if tokens.get(1).is_some_and(|token| token.kind == Kind::Path) {
        follow(&tokens[2..], from, uses);
    }
}

/// The elements of a `use` group, `tokens` beginning behind its `{`.
fn group_elements(tokens: &[Token]) -> Vec<&[Token]> {
    let mut elements = Vec::new();
    let mut start = 0;
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Mark('{') => depth += 1,
            Kind::Mark('}') if depth == 0 => {
                elements.push(&tokens[start..at]);
                return elements;
            }
            Kind::Mark('}') => depth -= 1,
            Kind::Mark(',') if depth == 0 => {
                elements.push(&tokens[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    elements
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn used(source: &str, path: &[&str]) -> Vec<String> {
        let path: Vec<_> = path.iter().map(|name| name.to_string()).collect();
        module_uses(&tokens(source), &path).into_iter().map(|found| found.module).collect()
    }

    #[test]
    fn paths_from_the_root() {
        for (source, modules) in [
            ("use crate::plan::Cell;", &["plan"][..]),
            ("use crate::{base::{Rank, Deadline}, route, plan::{self}};", &["base", "route", "plan"]),
            ("fn f(x: &crate::comm::Communicator) -> crate::base::Rank {}", &["comm", "base"]),
            ("use crate::*;", &["*"]),
            ("use crate as root; use other::crate_name; use x::super_thing;", &[]),
            ("pub(crate) struct A; pub(in crate::plan) struct B;", &["plan"]),
            ("// crate::plan\nlet x = \"crate::plan\";", &[]),
        ] {
            assert_eq!(used(source, &["route"]), modules, "{source}");
        }
    }

    #[test]
    fn climbs() {
        for (source, path, modules) in [
            ("use super::cell::Cell;", &["plan", "cell"][..], &[][..]),
            ("use super::super::route::Flow;", &["plan", "cell"], &["route"]),
            ("use super::route::Flow;", &["plan"], &["route"]),
            ("use super::{super::route, cell};", &["plan", "cell"], &["route"]),
            ("use super::super::*;", &["plan", "cell"], &["*"]),
            ("use self::super::super::route;", &["plan", "cell"], &["route"]),
            ("mod tests { use super::*; use super::super::oracle; }", &["plan", "cell"], &[]),
            ("mod tests { use super::super::super::route; }", &["plan", "cell"], &["route"]),
            ("mod a { fn f() { if x {} } } use super::route;", &["plan"], &["route"]),
            ("mod a { mod b { use super::super::super::comm; } }", &["plan"], &["comm"]),
        ] {
            assert_eq!(used(source, path), modules, "{source}");
        }
    }
}

//! Tensor name patterns. In: texts such as `*.experts.{expert}.{gate,up}_proj.weight`. Out: [`NamePattern`], which
//! matches dotted names. Guarantee: a match covers the whole name; any text is a pattern or an error.

use thiserror::Error;

/// A pattern that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PatternError {
    /// An empty pattern or component.
    #[error("pattern {pattern:?} has an empty component; write names separated by single dots")]
    EmptyComponent {
        /// The pattern.
        pattern: String,
    },
    /// `*` beside other characters.
    #[error("component {component:?} of pattern {pattern:?} mixes * with text; * stands for whole dotted components")]
    PartialStar {
        /// The component.
        component: String,
        /// The pattern.
        pattern: String,
    },
    /// Braces that do not pair up, nest or list one thing.
    #[error(
        "component {component:?} of pattern {pattern:?} has unusable braces; \
         write {{a,b}} for alternatives, or {{expert}} as a whole component"
    )]
    Braces {
        /// The component.
        component: String,
        /// The pattern.
        pattern: String,
    },
    /// `{expert}` twice.
    #[error("pattern {pattern:?} has {{expert}} twice; a tensor belongs to one expert")]
    TwoExperts {
        /// The pattern.
        pattern: String,
    },
}

/// One dotted component of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Component {
    /// `*`: one component or more.
    Any,
    /// `{expert}`: a decimal number.
    Expert,
    /// Text with alternatives.
    Text(Vec<Part>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    OneOf(Vec<String>),
}

/// A pattern over dotted names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamePattern {
    text: String,
    components: Vec<Component>,
}

/// What a match found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// Expert index and the position of its component, when the pattern has `{expert}`.
    pub(super) expert: Option<(u64, usize)>,
}

impl NamePattern {
    pub(super) fn parse(text: &str) -> Result<Self, PatternError> {
        let components =
            split_components(text).map(|component| read(component, text)).collect::<Result<Vec<_>, _>>()?;
        if components.iter().filter(|&component| *component == Component::Expert).count() > 1 {
            return Err(PatternError::TwoExperts { pattern: text.to_string() });
        }
        Ok(Self { text: text.to_string(), components })
    }

    /// `first.*.name`, with `name` as it is.
    pub(super) fn below(first: &str, name: &str) -> Self {
        let literal = |text: &str| Component::Text(vec![Part::Literal(text.to_string())]);
        let components = [literal(first), Component::Any].into_iter().chain(name.split('.').map(literal)).collect();
        Self { text: format!("{first}.*.{name}"), components }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn has_expert(&self) -> bool {
        self.components.contains(&Component::Expert)
    }

    /// Whether some component spells out `number`.
    pub(super) fn spells(&self, number: &str) -> bool {
        self.components
            .iter()
            .any(|component| matches!(component, Component::Text(parts) if text_matches(parts, number)))
    }

    /// Number of components and alternatives that it leaves open.
    pub(super) fn open_components(&self) -> usize {
        let open = |component: &Component| match component {
            Component::Any | Component::Expert => 1,
            Component::Text(parts) => parts.iter().filter(|part| matches!(part, Part::OneOf(_))).count(),
        };
        self.components.iter().map(open).sum()
    }

    /// What the open components of the pattern stand for when it matches all of `name`; of several ways the one in
    /// which the first `*` are shortest.
    pub(super) fn captures(&self, name: &[&str]) -> Option<Vec<String>> {
        let mut captures = Vec::new();
        captures_of(&self.components, name, &mut captures).then_some(captures)
    }

    /// The name that the pattern stands for with these captures, of which it takes as many as it leaves open.
    pub(super) fn filled(&self, captures: &[String]) -> String {
        let mut captures = captures.iter().map(String::as_str);
        let mut component = |component: &Component| match component {
            Component::Any | Component::Expert => captures.next().unwrap_or_default().to_string(),
            Component::Text(parts) => parts
                .iter()
                .map(|part| match part {
                    Part::Literal(text) => text.as_str(),
                    Part::OneOf(_) => captures.next().unwrap_or_default(),
                })
                .collect(),
        };
        self.components.iter().map(&mut component).collect::<Vec<_>>().join(".")
    }

    /// Matches the whole of `name`, given as its components. Each `*` first takes one component and grows only
    /// when what follows does not fit; growing the last one is enough, as in every glob without captures before it.
    pub(super) fn matches(&self, name: &[&str]) -> Option<Match> {
        if let (Some(Component::Text(parts)), Some(last)) = (self.components.last(), name.last())
            && !text_matches(parts, last)
        {
            return None;
        }
        let (mut at, mut position) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        let mut expert = None;
        while position < name.len() {
            match self.components.get(at) {
                Some(Component::Any) => {
                    star = Some((at + 1, position + 1));
                    (at, position) = (at + 1, position + 1);
                    continue;
                }
                Some(Component::Expert) => {
                    if let Some(index) = plain_number(name[position]) {
                        expert = Some((index, position));
                        (at, position) = (at + 1, position + 1);
                        continue;
                    }
                }
                Some(Component::Text(parts)) if text_matches(parts, name[position]) => {
                    (at, position) = (at + 1, position + 1);
                    continue;
                }
                _ => {}
            }
            let (after, taken) = star?;
            star = Some((after, taken + 1));
            (at, position) = (after, taken + 1);
        }
        (at == self.components.len()).then_some(Match { expert })
    }
}

/// Splits at dots outside braces.
fn split_components(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0i64;
    text.split(move |character| {
        depth += i64::from(character == '{') - i64::from(character == '}');
        character == '.' && depth <= 0
    })
}

fn read(component: &str, pattern: &str) -> Result<Component, PatternError> {
    let owned = || (component.to_string(), pattern.to_string());
    match component {
        "" => return Err(PatternError::EmptyComponent { pattern: pattern.to_string() }),
        "*" => return Ok(Component::Any),
        "{expert}" => return Ok(Component::Expert),
        _ if component.contains('*') => {
            let (component, pattern) = owned();
            return Err(PatternError::PartialStar { component, pattern });
        }
        _ => {}
    }
    let mut parts = Vec::new();
    let mut rest = component;
    while let Some(open) = rest.find(['{', '}']) {
        let (literal, braced) = rest.split_at(open);
        let inside = braced.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let list = inside.filter(|(list, _)| list.contains(',') && !list.contains(['{', '.']));
        let Some((list, after)) = list else {
            let (component, pattern) = owned();
            return Err(PatternError::Braces { component, pattern });
        };
        parts.push(Part::Literal(literal.to_string()));
        parts.push(Part::OneOf(list.split(',').map(|word| word.trim().to_string()).collect()));
        rest = after;
    }
    parts.push(Part::Literal(rest.to_string()));
    Ok(Component::Text(parts))
}

/// A decimal number without sign, and without leading zeros so that an expert has one name.
pub(super) fn plain_number(component: &str) -> Option<u64> {
    let plain =
        component.bytes().all(|byte| byte.is_ascii_digit()) && (component == "0" || !component.starts_with('0'));
    plain.then(|| component.parse().ok()).flatten()
}

fn captures_of(components: &[Component], name: &[&str], captures: &mut Vec<String>) -> bool {
    let Some((component, rest)) = components.split_first() else { return name.is_empty() };
    let known = captures.len();
    let found = match component {
        Component::Any => (1..=name.len()).any(|taken| {
            captures.truncate(known);
            captures.push(name[..taken].join("."));
            captures_of(rest, &name[taken..], captures)
        }),
        Component::Expert => name.first().is_some_and(|first| {
            captures.push(first.to_string());
            plain_number(first).is_some() && captures_of(rest, &name[1..], captures)
        }),
        Component::Text(parts) => {
            name.first().is_some_and(|first| text_captures(parts, first, captures))
                && captures_of(rest, &name[1..], captures)
        }
    };
    if !found {
        captures.truncate(known);
    }
    found
}

fn text_captures(parts: &[Part], text: &str, captures: &mut Vec<String>) -> bool {
    match parts.split_first() {
        None => text.is_empty(),
        Some((Part::Literal(literal), rest)) => {
            text.strip_prefix(literal.as_str()).is_some_and(|text| text_captures(rest, text, captures))
        }
        Some((Part::OneOf(words), rest)) => words.iter().any(|word| {
            let known = captures.len();
            captures.push(word.clone());
            let found = text.strip_prefix(word.as_str()).is_some_and(|text| text_captures(rest, text, captures));
            if !found {
                captures.truncate(known);
            }
            found
        }),
    }
}

fn text_matches(parts: &[Part], text: &str) -> bool {
    match parts.split_first() {
        None => text.is_empty(),
        Some((Part::Literal(literal), [])) => literal == text,
        Some((Part::Literal(literal), rest)) => {
            text.strip_prefix(literal.as_str()).is_some_and(|text| text_matches(rest, text))
        }
        Some((Part::OneOf(words), rest)) => {
            words.iter().any(|word| text.strip_prefix(word.as_str()).is_some_and(|text| text_matches(rest, text)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, name: &str) -> Option<Match> {
        let components: Vec<&str> = name.split('.').collect();
        NamePattern::parse(pattern).unwrap().matches(&components)
    }

    #[test]
    fn stars_take_one_component_or_more() {
        for (pattern, name, expected) in [
            ("*.q_proj.weight", "q_proj.weight", false),
            ("*.q_proj.weight", "a.q_proj.weight", true),
            ("*.q_proj.weight", "a.b.c.q_proj.weight", true),
            ("*.q_proj.weight", "a.b.q_proj.weight.scale", false),
            ("a.*", "a", false),
            ("a.*", "a.b.c", true),
            ("*", "", true),
            ("*.*", "a", false),
            ("a.*.b.*.c", "a.b.b.c.c", true),
            ("a.*.b.*.c", "a.b.c", false),
            ("*.b.b.c", "b.b.b.c", true),
            ("*.{query,key}.{weight,bias}", "x.key.bias", true),
            ("*.{query,key}.{weight,bias}", "x.value.bias", false),
            ("{gate,up}_proj{,_fused}", "up_proj_fused", true),
            ("{gate,up}_proj{,_fused}", "up_proj", true),
            ("{a,ab}{b,c}", "abc", true),
            ("{a,ab}{b,c}", "abb", true),
            ("{a,ab}{b,c}", "abbc", false),
        ] {
            assert_eq!(matches(pattern, name).is_some(), expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn experts_are_captured() {
        let found = |name| matches("*.experts.{expert}.w", name).map(|found| found.expert);
        assert_eq!(found("m.0.experts.17.w"), Some(Some((17, 3))));
        assert_eq!(found("experts.3.experts.5.w"), Some(Some((5, 3))));
        for name in
            ["m.experts.x.w", "m.experts.07.w", "m.experts.-1.w", "m.experts..w", "m.experts.99999999999999999999.w"]
        {
            assert_eq!(found(name), None, "{name}");
        }
        assert_eq!(matches("*.w", "a.w"), Some(Match { expert: None }));
    }

    #[test]
    fn bad_patterns() {
        let fail = |text: &str| NamePattern::parse(text).unwrap_err();
        for text in ["", "a..b", ".a", "a."] {
            assert!(matches!(fail(text), PatternError::EmptyComponent { .. }), "{text}");
        }
        for text in ["a*", "*.b*c", "**"] {
            assert!(matches!(fail(text), PatternError::PartialStar { .. }), "{text}");
        }
        for text in ["{a", "a}", "{a}", "{}", "{a,{b,c}}", "{a.b,c}", "x{expert}", "}a{"] {
            assert!(matches!(fail(text), PatternError::Braces { .. }), "{text}");
        }
        assert!(matches!(fail("{expert}.{expert}"), PatternError::TwoExperts { .. }));
    }

    /// `*` against every length it may take.
    fn naive(pattern: &[&str], name: &[&str]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((&"*", rest)) => (1..=name.len()).any(|taken| naive(rest, &name[taken..])),
            Some((word, rest)) => name.first() == Some(word) && naive(rest, &name[1..]),
        }
    }

    #[test]
    fn captures_are_put_into_other_patterns() {
        let captures = |pattern: &str, name: &str| {
            NamePattern::parse(pattern).unwrap().captures(&name.split('.').collect::<Vec<_>>())
        };
        let found = captures("*.self.{q,k}_{a,b}.*", "x.0.self.k_b.weight").unwrap();
        assert_eq!(found, ["x.0", "k", "b", "weight"]);
        let other = NamePattern::parse("all.*.{one,two}{a,b}.*").unwrap();
        assert_eq!((other.open_components(), other.filled(&found)), (4, "all.x.0.kb.weight".to_string()));
        assert_eq!(captures("*.b.*", "a.b.b.b"), Some(vec!["a".into(), "b.b".into()]));
        assert_eq!(captures("*.{expert}.w", "a.7.3.w"), Some(vec!["a.7".into(), "3".into()]));
        assert_eq!(captures("*.a", "a"), None);
        assert_eq!(captures("{a,ab}c", "abc"), Some(vec!["ab".into()]));
        assert_eq!(captures("a.b", "a.b"), Some(vec![]));
    }

    proptest! {
        #[test]
        fn any_text_is_a_pattern_or_an_error(text in "[*.{},ab]{0,16}", name in "[ab.]{0,12}") {
            if let Ok(pattern) = NamePattern::parse(&text) {
                let _ = pattern.matches(&name.split('.').collect::<Vec<_>>());
            }
        }

        #[test]
        fn equals_trying_every_length(
            pattern in prop::collection::vec(prop::sample::select(vec!["*", "a", "b"]), 1..7),
            name in prop::collection::vec(prop::sample::select(vec!["a", "b"]), 1..9),
        ) {
            let parsed = NamePattern::parse(&pattern.join(".")).unwrap();
            prop_assert_eq!(parsed.matches(&name).is_some(), naive(&pattern, &name));
        }
    }
}

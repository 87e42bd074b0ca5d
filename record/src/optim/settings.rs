//! The settings of an optimizer: fields of a struct that have a name in texts, a default and a range.

use super::schedule::Schedule;

/// Where the numbers of a setting lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Span {
    Any,
    /// 0 and more.
    Positive,
    /// From 0 to below 1.
    Fraction,
    /// 0 and less.
    Negative,
    /// 1 and more.
    FromOne,
}

impl Span {
    fn holds(self, v: f64) -> bool {
        match self {
            Span::Any => v.is_finite(),
            Span::Positive => v >= 0.0 && v.is_finite(),
            Span::Fraction => (0.0..1.0).contains(&v),
            Span::Negative => v <= 0.0 && v.is_finite(),
            Span::FromOne => v >= 1.0 && v.is_finite(),
        }
    }

    fn says(self) -> &'static str {
        match self {
            Span::Any => "a number",
            Span::Positive => "a number of at least 0",
            Span::Fraction => "a number from 0 to below 1",
            Span::Negative => "a number of at most 0",
            Span::FromOne => "a number of at least 1",
        }
    }
}

/// What a setting can be.
pub(super) trait Value: Sized {
    fn read(text: &str) -> Option<Self>;
    fn write(&self) -> String;
    /// What is wrong with it, as what would fit.
    fn problem(&self, span: Span) -> Option<String>;
    /// What texts of it look like.
    fn says(span: Span) -> String;
}

impl Value for f64 {
    fn read(text: &str) -> Option<f64> {
        text.parse().ok()
    }
    fn write(&self) -> String {
        format!("{self}")
    }
    fn problem(&self, span: Span) -> Option<String> {
        (!span.holds(*self)).then(|| span.says().to_string())
    }
    fn says(span: Span) -> String {
        span.says().to_string()
    }
}

impl Value for Option<f64> {
    fn read(text: &str) -> Option<Option<f64>> {
        match text {
            "auto" => Some(None),
            number => Some(Some(f64::read(number)?)),
        }
    }
    fn write(&self) -> String {
        self.as_ref().map_or("auto".to_string(), f64::write)
    }
    fn problem(&self, span: Span) -> Option<String> {
        self.and_then(|v| v.problem(span))
    }
    fn says(span: Span) -> String {
        format!("{}, or auto", span.says())
    }
}

impl Value for bool {
    fn read(text: &str) -> Option<bool> {
        text.parse().ok()
    }
    fn write(&self) -> String {
        format!("{self}")
    }
    fn problem(&self, _: Span) -> Option<String> {
        None
    }
    fn says(_: Span) -> String {
        "true or false".to_string()
    }
}

impl Value for usize {
    fn read(text: &str) -> Option<usize> {
        text.parse().ok()
    }
    fn write(&self) -> String {
        format!("{self}")
    }
    fn problem(&self, span: Span) -> Option<String> {
        (!span.holds(*self as f64)).then(|| Self::says(span))
    }
    fn says(span: Span) -> String {
        span.says().replacen("a number", "a whole number", 1)
    }
}

impl Value for Schedule {
    fn read(text: &str) -> Option<Schedule> {
        Schedule::read(text)
    }
    fn write(&self) -> String {
        self.to_string()
    }
    fn problem(&self, _: Span) -> Option<String> {
        (!self.is_sound()).then(|| Schedule::FORMS.to_string())
    }
    fn says(_: Span) -> String {
        Schedule::FORMS.to_string()
    }
}

/// The settings of an optimizer by their names.
pub(super) trait Settings {
    /// What texts call the optimizer.
    fn name(&self) -> &'static str;
    /// Names and values, in the order of the struct.
    fn entries(&self) -> Vec<(&'static str, String)>;
    /// Sets one by its name; else says what would fit.
    fn set(&mut self, key: &str, text: &str) -> Result<(), String>;
    /// The first one that is out of its range, and what would fit.
    fn problem(&self) -> Option<(String, String)>;
}

/// A struct of settings. A line is the field, its name in texts, its range, type and default.
macro_rules! settings {
    ($(#[$meta:meta])* $name:ident $text:literal {
        $($(#[$doc:meta])* $field:ident $key:literal $span:ident: $ty:ty = $default:expr;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $($(#[$doc])* #[doc = concat!("`", $key, "` in texts.")] pub $field: $ty,)*
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default,)* }
            }
        }

        impl $crate::optim::settings::Settings for $name {
            fn name(&self) -> &'static str {
                $text
            }
            fn entries(&self) -> Vec<(&'static str, String)> {
                use $crate::optim::settings::Value;
                vec![$(($key, self.$field.write()),)*]
            }
            fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
                use $crate::optim::settings::{Span, Value};
                match key {
                    $($key => {
                        let says = || <$ty as Value>::says(Span::$span);
                        let value = <$ty as Value>::read(text).ok_or_else(says)?;
                        match value.problem(Span::$span) {
                            Some(fits) => return Err(fits),
                            None => self.$field = value,
                        }
                    })*
                    _ => return Err([$($key),*].join(", ")),
                }
                Ok(())
            }
            fn problem(&self) -> Option<(String, String)> {
                use $crate::optim::settings::{Span, Value};
                $(if let Some(fits) = self.$field.problem(Span::$span) {
                    return Some((format!("{} = {}", stringify!($field), self.$field.write()), fits));
                })*
                None
            }
        }
    };
}

pub(super) use settings;

//! Enums that list themselves: the short name of each variant, and the list of all names, are derived from the variants.

/// Declares an enum, its `KINDS` and its `kind()`.
macro_rules! listed {
    ($(#[$of_enum:meta])* pub enum $name:ident {
        $($(#[$of_variant:meta])* $variant:ident $({ $($fields:tt)* })?,)*
    }) => {
        $(#[$of_enum])*
        pub enum $name {
            $($(#[$of_variant])* $variant $({ $($fields)* })?,)*
        }

        impl $name {
            pub const KINDS: [&'static str; [$(stringify!($variant)),*].len()] =
                [$($crate::listed::kebab_case!($variant)),*];

            /// A short name for each variant: its name in kebab-case. `KINDS` has them all.
            pub fn kind(&self) -> &'static str {
                match self {
                    $($name::$variant { .. } => $crate::listed::kebab_case!($variant),)*
                }
            }
        }
    };
}

/// `start-etcd` of `StartEtcd`, when it is compiled.
macro_rules! kebab_case {
    ($name:ident) => {{
        const NAME: &[u8] = stringify!($name).as_bytes();
        const BYTES: [u8; $crate::listed::length(NAME)] = $crate::listed::kebab(NAME);
        const TEXT: &str = match std::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!("the names of variants are ASCII"),
        };
        TEXT
    }};
}

pub(crate) use {kebab_case, listed};

pub(crate) const fn length(name: &[u8]) -> usize {
    let (mut length, mut at) = (name.len(), 1);
    while at < name.len() {
        if name[at].is_ascii_uppercase() {
            length += 1;
        }
        at += 1;
    }
    length
}

pub(crate) const fn kebab<const LENGTH: usize>(name: &[u8]) -> [u8; LENGTH] {
    let (mut text, mut to, mut from) = ([b'-'; LENGTH], 0, 0);
    while from < name.len() {
        if from > 0 && name[from].is_ascii_uppercase() {
            to += 1;
        }
        text[to] = name[from].to_ascii_lowercase();
        (to, from) = (to + 1, from + 1);
    }
    text
}

#[cfg(test)]
mod tests {
    listed! {
        /// Of all shapes that are used.
        pub enum Deed {
            Rest,
            /// With fields or without.
            StartEtcd {},
        }
    }

    #[test]
    fn names_follow_from_the_variants() {
        assert_eq!(Deed::KINDS, ["rest", "start-etcd"]);
        assert_eq!([Deed::Rest.kind(), Deed::StartEtcd {}.kind()], Deed::KINDS);
    }
}

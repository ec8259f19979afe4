//! The table's grammar, and what it says as values.
//!
//! One line of [`messages!`] is one field of Kafka's definition:
//!
//! ```text
//! name: Type [versions] nullable[versions] tag N = default, ignorable;
//! ```
//!
//! `docs/formats/kafka-wire.md` tells how to read it. Everything but name, type and versions is left out where Kafka's
//! definition leaves it out, and means what it means there.

use crate::{Context, EncodeError, Kind, Versions, Writer};

/// One field of the table.
#[derive(Debug, Clone, Copy)]
pub struct FieldSpec {
    /// Kafka's name in snake case.
    pub name: &'static str,
    /// The type.
    pub kind: Kind,
    /// Versions that have the field.
    pub versions: Versions,
    /// Versions in which it may be null.
    pub nullable: Versions,
    /// Its tag, if it is a tagged field (in all its versions: Kafka has no other).
    pub tag: Option<u32>,
    /// Whether a version that lacks the field leaves it out although it is set.
    pub ignorable: bool,
    /// Writes the field's default, for whoever builds a message by names.
    pub write_default: fn(&mut Writer, Context) -> Result<(), EncodeError>,
}

impl FieldSpec {
    /// Whether `version` has it outside the tagged fields.
    #[must_use]
    pub const fn is_plain_in(&self, version: i16) -> bool {
        self.tag.is_none() && self.versions.contains(version)
    }

    /// Whether `version` has it as a tagged field.
    #[must_use]
    pub const fn is_tagged_in(&self, version: i16) -> bool {
        self.tag.is_some() && self.versions.contains(version)
    }

    /// The context of the field's value, from that of the structure around it.
    #[must_use]
    pub const fn context(&self, around: Context) -> Context {
        Context {
            version: around.version,
            flexible: around.flexible,
            nullable: self.nullable.contains(around.version),
            tagged: self.tag.is_some(),
            field: self.name,
        }
    }
}

/// One structure of the table: a message, or what a message is made of.
#[derive(Debug, Clone, Copy)]
pub struct StructSpec {
    /// Kafka's name.
    pub name: &'static str,
    /// Its fields, in the order of the wire.
    pub fields: &'static [FieldSpec],
}

macro_rules! versions {
    () => {
        $crate::Versions::NONE
    };
    (none) => {
        $crate::Versions::NONE
    };
    ($min:literal +) => {
        $crate::Versions { min: $min, max: i16::MAX }
    };
    ($min:literal - $max:literal) => {
        $crate::Versions { min: $min, max: $max }
    };
    ($only:literal) => {
        $crate::Versions { min: $only, max: $only }
    };
}

macro_rules! optional {
    () => {
        None
    };
    ($value:literal) => {
        Some($value)
    };
}

macro_rules! is_ignorable {
    () => {
        false
    };
    (ignorable) => {
        true
    };
}

macro_rules! default_value {
    ($type:ty,) => {
        <$type as $crate::Value>::initial()
    };
    ($type:ty, $default:expr) => {
        $default
    };
}

/// What a structure is beyond its fields, by its role: a message, a record's key, a record's value, or a part of one.
macro_rules! part_of_role {
    (struct $name:ident) => {};
    // Kafka has one version of each key, and none of them is flexible: what stands before it is the record's type.
    (key $name:ident : $record:ident) => {};
    (value $name:ident : $record:ident, [$($valid:tt)*], [$($flexible:tt)*]) => {
        impl $crate::coordinator::RecordValue for $name {
            const VERSIONS: $crate::Versions = versions!($($valid)*);
            const FLEXIBLE: $crate::Versions = versions!($($flexible)*);
            const SPEC: &'static $crate::StructSpec = &Self::SPEC;
        }
    };
    ($role:ident $name:ident : $api:ident, [$($valid:tt)*], [$($flexible:tt)*]) => {
        impl $crate::Message for $name {
            const API: $crate::ApiKey = $crate::ApiKey::$api;
            const VERSIONS: $crate::Versions = versions!($($valid)*);
            const FLEXIBLE: $crate::Versions = versions!($($flexible)*);
            const SPEC: &'static $crate::StructSpec = &Self::SPEC;
        }
    };
}

/// The table of one API, or of one kind of record.
macro_rules! messages {
    ($(
        $role:ident $name:ident $(: $api:ident $(, versions [$($valid:tt)*], flexible [$($flexible:tt)*])?)? {
            $(
                $field:ident : $type:ty [$($versions:tt)*]
                    $(nullable[$($nullable:tt)*])? $(tag $tag:literal)? $(= $default:expr)? $(, $ignorable:ident)? ;
            )*
        }
    )*) => { $(
        #[doc = concat!("Kafka's `", stringify!($name), "`.")]
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $(
                #[doc = concat!("In versions ", stringify!($($versions)*), $(", null in ", stringify!($($nullable)*),)? ".")]
                pub $field: $type,
            )*
        }

        #[allow(non_upper_case_globals, reason = "a constant for each field carries the field's name")]
        impl $name {
            $(
                const $field: $crate::FieldSpec = $crate::FieldSpec {
                    name: stringify!($field),
                    kind: <$type as $crate::Value>::KIND,
                    versions: versions!($($versions)*),
                    nullable: versions!($($($nullable)*)?),
                    tag: optional!($($tag)?),
                    ignorable: is_ignorable!($($ignorable)?),
                    write_default: |writer, context| {
                        let value: $type = default_value!($type, $($default)?);
                        $crate::Value::write(&value, writer, context)
                    },
                };
            )*
            /// What the table says of it.
            pub const SPEC: $crate::StructSpec =
                $crate::StructSpec { name: stringify!($name), fields: &[$(Self::$field),*] };
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: default_value!($type, $($default)?)),* }
            }
        }

        impl $crate::Value for $name {
            const KIND: $crate::Kind = $crate::Kind::Struct(&Self::SPEC);

            fn initial() -> Self {
                Self::default()
            }

            #[allow(unused_mut, unused_variables, reason = "a structure may have no field, and no tagged one")]
            fn read(reader: &mut $crate::Reader, context: $crate::Context) -> Result<Self, $crate::DecodeError> {
                let mut value = Self::default();
                $(
                    if Self::$field.is_plain_in(context.version) {
                        value.$field = $crate::Value::read(reader, Self::$field.context(context))?;
                    }
                )*
                if context.flexible {
                    reader.tagged_fields(|reader, tag| {
                        $(
                            if Self::$field.tag == Some(tag) && Self::$field.versions.contains(context.version) {
                                value.$field = $crate::Value::read(reader, Self::$field.context(context))?;
                                return Ok(true);
                            }
                        )*
                        Ok(false)
                    })?;
                }
                Ok(value)
            }

            #[allow(unused_mut, unused_variables, reason = "a structure may have no field, and no tagged one")]
            fn write(&self, writer: &mut $crate::Writer, context: $crate::Context) -> Result<(), $crate::EncodeError> {
                let mut tagged: u32 = 0;
                $(
                    if Self::$field.is_plain_in(context.version) {
                        $crate::Value::write(&self.$field, writer, Self::$field.context(context))?;
                    } else if (Self::$field.tag.is_some() || !Self::$field.ignorable)
                        && self.$field != default_value!($type, $($default)?)
                    {
                        if Self::$field.is_tagged_in(context.version) {
                            tagged += 1;
                        } else if !Self::$field.ignorable {
                            return Err($crate::EncodeError::FieldNotInVersion {
                                field: Self::$field.name,
                                version: context.version,
                            });
                        }
                    }
                )*
                if context.flexible {
                    writer.uvarint(tagged);
                    $(
                        if let Some(tag) = Self::$field.tag
                            && tagged > 0
                            && Self::$field.is_tagged_in(context.version)
                            && self.$field != default_value!($type, $($default)?)
                        {
                            let context = Self::$field.context(context);
                            writer.tagged_field(tag, context, |writer| {
                                $crate::Value::write(&self.$field, writer, context)
                            })?;
                        }
                    )*
                }
                Ok(())
            }

            #[allow(unused_mut, reason = "a structure may have no field")]
            fn bytes_min(context: $crate::Context) -> usize {
                let mut bytes = usize::from(context.flexible);
                $(
                    if Self::$field.is_plain_in(context.version) {
                        bytes += <$type as $crate::Value>::bytes_min(Self::$field.context(context));
                    }
                )*
                bytes
            }
        }

        impl $crate::Nullable for $name {
            fn read_nullable(
                reader: &mut $crate::Reader,
                context: $crate::Context,
            ) -> Result<Option<Self>, $crate::DecodeError> {
                // One byte before it: below zero for null, as Kafka reads it, and zero in a tagged field.
                let is_null = match context.tagged {
                    true => reader.uvarint()? == 0,
                    false => <i8 as $crate::Value>::read(reader, context)? < 0,
                };
                if is_null {
                    return Ok(None);
                }
                <Self as $crate::Value>::read(reader, context).map(Some)
            }

            fn write_nullable(
                value: Option<&Self>,
                writer: &mut $crate::Writer,
                context: $crate::Context,
            ) -> Result<(), $crate::EncodeError> {
                match value {
                    Some(value) => {
                        $crate::Value::write(&1_i8, writer, context)?;
                        $crate::Value::write(value, writer, context)
                    }
                    None => $crate::Value::write(if context.tagged { &0_i8 } else { &-1 }, writer, context),
                }
            }

            fn bytes_min_nullable(_: $crate::Context) -> usize {
                1
            }
        }

        part_of_role! { $role $name $(: $api $(, [$($valid)*], [$($flexible)*])?)? }
    )* };
}

//! How each type of the table reads and writes itself.

use bytes::Bytes;

use crate::{
    DecodeError, EncodeError, Reader, Records, Str, StructSpec, Uuid, Writer, reader::STRING_BYTES_MAX,
};

/// Where a value stands: what decides its encoding.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// The version of the message.
    pub version: i16,
    /// Whether the message has compact lengths and tagged fields in this version.
    pub flexible: bool,
    /// Whether the field may be null in this version.
    pub nullable: bool,
    /// Whether it is a tagged field.
    pub tagged: bool,
    /// Kafka's name of the field, in snake case.
    pub field: &'static str,
}

impl Context {
    const fn not_null(self) -> Self {
        Self { nullable: false, ..self }
    }
}

/// The type of a field, for whoever walks the table.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// One byte, zero or not.
    Bool,
    /// A big-endian integer of so many bytes.
    Int(usize),
    /// A double, big-endian.
    Float,
    /// Sixteen bytes.
    Uuid,
    /// UTF-8 after its length.
    String,
    /// Bytes after their length.
    Bytes,
    /// Record batches after their length.
    Records,
    /// Elements after their count. `element_size` is an element's size in memory.
    Array {
        /// The type of the elements.
        element: &'static Self,
        /// Bytes that an element takes in memory, without what it points at.
        element_size: usize,
    },
    /// Fields one after the other.
    Struct(&'static StructSpec),
}

/// A type that a field of a message can have.
pub trait Value: Sized {
    /// The type, without whether it may be null.
    const KIND: Kind;

    /// The value of a field for which the table names no default.
    fn initial() -> Self;

    /// Reads a value.
    ///
    /// # Errors
    /// What the bytes lack.
    fn read(reader: &mut Reader, context: Context) -> Result<Self, DecodeError>;

    /// Writes the value.
    ///
    /// # Errors
    /// Why the value has no encoding in this version; what was written is then useless.
    fn write(&self, writer: &mut Writer, context: Context) -> Result<(), EncodeError>;

    /// Bytes that the shortest encoding takes.
    fn bytes_min(context: Context) -> usize;
}

/// A type that can be null where the table says so.
pub trait Nullable: Value {
    /// Reads a value or null.
    ///
    /// # Errors
    /// What the bytes lack.
    fn read_nullable(reader: &mut Reader, context: Context) -> Result<Option<Self>, DecodeError>;

    /// Writes a value or null.
    ///
    /// # Errors
    /// Why the value has no encoding in this version.
    fn write_nullable(value: Option<&Self>, writer: &mut Writer, context: Context)
    -> Result<(), EncodeError>;

    /// Bytes that the shortest encoding takes where null is one.
    fn bytes_min_nullable(context: Context) -> usize {
        Self::bytes_min(context)
    }
}

impl<T: Nullable> Value for Option<T> {
    const KIND: Kind = T::KIND;

    fn initial() -> Self {
        Some(T::initial())
    }

    fn read(reader: &mut Reader, context: Context) -> Result<Self, DecodeError> {
        if context.nullable {
            T::read_nullable(reader, context.not_null())
        } else {
            T::read(reader, context).map(Some)
        }
    }

    fn write(&self, writer: &mut Writer, context: Context) -> Result<(), EncodeError> {
        match self {
            _ if context.nullable => T::write_nullable(self.as_ref(), writer, context.not_null()),
            Some(value) => value.write(writer, context),
            None => Err(EncodeError::UnexpectedNull { field: context.field, version: context.version }),
        }
    }

    fn bytes_min(context: Context) -> usize {
        if context.nullable { T::bytes_min_nullable(context.not_null()) } else { T::bytes_min(context) }
    }
}

fn unexpected_null(context: Context) -> DecodeError {
    DecodeError::UnexpectedNull { field: context.field }
}

macro_rules! number {
    ($($type:ty = $kind:expr),*) => { $(
        impl Value for $type {
            const KIND: Kind = $kind;

            fn initial() -> Self {
                Self::default()
            }

            fn read(reader: &mut Reader, _: Context) -> Result<Self, DecodeError> {
                Ok(Self::from_be_bytes(reader.array()?))
            }

            fn write(&self, writer: &mut Writer, _: Context) -> Result<(), EncodeError> {
                writer.put(&self.to_be_bytes());
                Ok(())
            }

            fn bytes_min(_: Context) -> usize {
                size_of::<Self>()
            }
        }
    )* };
}

number!(
    i8 = Kind::Int(1),
    i16 = Kind::Int(2),
    u16 = Kind::Int(2),
    i32 = Kind::Int(4),
    u32 = Kind::Int(4),
    i64 = Kind::Int(8),
    f64 = Kind::Float
);

impl Value for bool {
    const KIND: Kind = Kind::Bool;

    fn initial() -> Self {
        false
    }

    fn read(reader: &mut Reader, _: Context) -> Result<Self, DecodeError> {
        Ok(reader.array()? != [0])
    }

    fn write(&self, writer: &mut Writer, _: Context) -> Result<(), EncodeError> {
        writer.put(&[u8::from(*self)]);
        Ok(())
    }

    fn bytes_min(_: Context) -> usize {
        1
    }
}

impl Value for Uuid {
    const KIND: Kind = Kind::Uuid;

    fn initial() -> Self {
        Self::ZERO
    }

    fn read(reader: &mut Reader, _: Context) -> Result<Self, DecodeError> {
        reader.array().map(Self)
    }

    fn write(&self, writer: &mut Writer, _: Context) -> Result<(), EncodeError> {
        writer.put(&self.0);
        Ok(())
    }

    fn bytes_min(_: Context) -> usize {
        16
    }
}

/// A type that begins with its length, where null is a length too: reading and writing go through the nullable form.
macro_rules! sized {
    ([$($generics:tt)*] $type:ty, $kind:expr, |$context:ident| $bytes_min:expr) => {
        impl<$($generics)*> Value for $type {
            const KIND: Kind = $kind;

            fn initial() -> Self {
                Self::default()
            }

            fn read(reader: &mut Reader, context: Context) -> Result<Self, DecodeError> {
                Self::read_nullable(reader, context)?.ok_or_else(|| unexpected_null(context))
            }

            fn write(&self, writer: &mut Writer, context: Context) -> Result<(), EncodeError> {
                Self::write_nullable(Some(self), writer, context)
            }

            fn bytes_min($context: Context) -> usize {
                $bytes_min
            }
        }
    };
}

/// Whether a field says to a person what is wrong. It may repeat what a client sent, with words around it: where that is more than
/// a string holds its end is cut, since an answer without the end is worth more than none.
fn is_prose(field: &str) -> bool {
    field.ends_with("error_message")
}

const fn length_bytes_min(context: Context) -> usize {
    if context.flexible { 1 } else { 4 }
}

sized!([] Str, Kind::String, |context| if context.flexible { 1 } else { 2 });
sized!([] Bytes, Kind::Bytes, |context| length_bytes_min(context));
sized!([] Records, Kind::Records, |context| length_bytes_min(context));
sized!(
    [T: Value] Vec<T>,
    Kind::Array { element: &T::KIND, element_size: size_of::<T>() },
    |context| length_bytes_min(context)
);

impl Nullable for Str {
    fn read_nullable(reader: &mut Reader, context: Context) -> Result<Option<Self>, DecodeError> {
        match reader.string_length(context)? {
            Some(length) => Self::from_utf8(reader.slice(length)?).map(Some),
            None => Ok(None),
        }
    }

    fn write_nullable(
        value: Option<&Self>,
        writer: &mut Writer,
        context: Context,
    ) -> Result<(), EncodeError> {
        let bytes = value.map(|text| match &**text.as_bytes() {
            long if long.len() > STRING_BYTES_MAX && is_prose(context.field) => {
                &long[..text.floor_char_boundary(STRING_BYTES_MAX)]
            }
            bytes => bytes,
        });
        writer.string_length(bytes.map(<[u8]>::len), context)?;
        writer.put(bytes.unwrap_or_default());
        Ok(())
    }
}

impl Nullable for Bytes {
    fn read_nullable(reader: &mut Reader, context: Context) -> Result<Option<Self>, DecodeError> {
        reader.length(context)?.map(|length| reader.slice(length)).transpose()
    }

    fn write_nullable(
        value: Option<&Self>,
        writer: &mut Writer,
        context: Context,
    ) -> Result<(), EncodeError> {
        writer.length(value.map(Self::len), context)?;
        if let Some(bytes) = value {
            writer.share(bytes);
        }
        Ok(())
    }
}

impl Nullable for Records {
    fn read_nullable(reader: &mut Reader, context: Context) -> Result<Option<Self>, DecodeError> {
        reader.length(context)?.map(|length| reader.slice(length).map(Self::from)).transpose()
    }

    fn write_nullable(
        value: Option<&Self>,
        writer: &mut Writer,
        context: Context,
    ) -> Result<(), EncodeError> {
        writer.length(value.map(Self::len), context)?;
        value.iter().flat_map(|records| records.chunks()).for_each(|slice| writer.share(slice));
        Ok(())
    }
}

impl<T: Value> Nullable for Vec<T> {
    fn read_nullable(reader: &mut Reader, context: Context) -> Result<Option<Self>, DecodeError> {
        let Some(count) = reader.length(context)? else { return Ok(None) };
        let context = context.not_null();
        reader.charge(count, T::bytes_min(context), size_of::<T>(), context.field)?;
        let mut elements = Self::with_capacity(count);
        for _ in 0..count {
            elements.push(T::read(reader, context)?);
        }
        Ok(Some(elements))
    }

    fn write_nullable(
        value: Option<&Self>,
        writer: &mut Writer,
        context: Context,
    ) -> Result<(), EncodeError> {
        writer.length(value.map(Self::len), context)?;
        value.into_iter().flatten().try_for_each(|element| element.write(writer, context.not_null()))
    }
}

//! Why an operation of the semantic index was refused.
use std::fmt;
use std::path::PathBuf;

/// Why the index refused; its state is unchanged in every case, unless the variant says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub enum BrokerError {
    /// A vector or query has another number of components than the index.
    Dimension {
        /// Components of a vector of this index.
        expected: usize,
        /// Components given.
        got: usize,
        /// The embedding model of the index, or empty.
        model: String,
    },
    /// Two arrays that belong together differ in length.
    Length {
        /// What is too long or too short.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length that was wanted.
        expected: usize,
    },
    /// Vectors with a component that is not finite, or without any direction. Row numbers of the batch, at most
    /// [`BrokerError::ROWS`] of them, and the number of bad rows.
    BadRows {
        /// Rows that hold a NaN or an infinity.
        not_finite: Vec<usize>,
        /// Rows whose components are all zero.
        zero: Vec<usize>,
        /// Bad rows in all.
        count: usize,
    },
    /// The id occurs twice in one batch, or is already in the index and may not be replaced.
    DuplicateId(u64),
    /// The index has no vector of this id.
    UnknownId(u64),
    /// A parameter is out of range; the text says which and what it may be.
    OutOfRange(String),
    /// The index holds its maximum of vectors.
    Full {
        /// That maximum.
        max: usize,
    },
    /// A write failed half way because its thread panicked; the index can still be searched, not written.
    HalfFailed,
    /// The file is not a whole, undamaged index of this kind. Nothing of it was used.
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file holds vectors of another model than the caller expects.
    Model {
        /// The model that the caller named.
        expected: String,
        /// The model of the file.
        got: String,
    },
    /// The operating system refused to read or write the file.
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
}

impl BrokerError {
    /// How many row numbers an error lists.
    pub const ROWS: usize = 20;
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dimension { expected, got, model } if model.is_empty() => {
                write!(
                    f,
                    "the vectors have {got} components, those of the index {expected}"
                )
            }
            Self::Dimension { expected, got, model } => {
                write!(
                    f,
                    "the vectors have {got} components, those of the index {expected} (model {model})"
                )
            }
            Self::Length { what, got, expected } => write!(f, "{what} has length {got}, must be {expected}"),
            Self::BadRows {
                not_finite,
                zero,
                count,
            } => {
                write!(f, "{count} of the vectors cannot be indexed:")?;
                if !not_finite.is_empty() {
                    write!(f, " rows {not_finite:?} hold NaN or infinity")?;
                }
                if !zero.is_empty() {
                    let and = if not_finite.is_empty() { "" } else { ";" };
                    write!(f, "{and} rows {zero:?} are zero")?;
                }
                Ok(())
            }
            Self::DuplicateId(id) => write!(f, "the id {id} is there already"),
            Self::UnknownId(id) => write!(f, "no vector has the id {id}"),
            Self::OutOfRange(text) => f.write_str(text),
            Self::Full { max } => write!(f, "the index holds its maximum of {max} vectors"),
            Self::HalfFailed => {
                f.write_str("an earlier write failed half way; the index cannot be written any more")
            }
            Self::Corrupt { path, why } => write!(f, "{}: {why}", path.display()),
            Self::Model { expected, got } => {
                write!(f, "the vectors are of the model {got:?}, not of {expected:?}")
            }
            Self::File { path, why } => write!(f, "{}: {why}", path.display()),
        }
    }
}

impl std::error::Error for BrokerError {}

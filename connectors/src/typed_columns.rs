//! The columns wanted, found by name in files that say the types of their columns, and in the folders above them; the types over all
//! files.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, FaultKind};

use crate::column_types::{converted, shown, wider};
use crate::file::DataFile;
use crate::names::{NoColumn, did_you_mean, listed, named_like_a_range, no_column};
use crate::partition_columns::{Constant, PartitionColumns};

/// Where a column of a batch comes from.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// The column at this place among those that the decoder yields, which come in the file's order.
    File(usize),
    /// A folder `column=value`, or a column that the file lacks: the same for all rows of the file.
    Constant(Constant),
}

/// The columns wanted of one file.
#[derive(Debug)]
pub(crate) struct FoundColumns {
    /// Their types in batches, in the order wanted.
    pub(crate) schema: SchemaRef,
    /// The origin of each wanted column.
    origins: Vec<Origin>,
    /// The places of the decoded columns among the file's columns, ascending.
    pub(crate) places: Vec<usize>,
}

/// Finds the columns `wanted` among the columns of a file (`there`). As in Spark, a folder's value counts before a column of the same name;
/// a folder above the named path counts only if the file has no such column. `in_batches` gives the field that batches have.
///
/// # Errors
/// A user fault that names file and column if none is wanted, or the file lacks one or has it twice.
pub(crate) fn find(
    file: &DataFile,
    there: &Fields,
    wanted: &[String],
    optional: &[String],
    folders: &PartitionColumns,
    in_batches: impl Fn(&FieldRef) -> FieldRef,
) -> Result<FoundColumns, Fault> {
    if wanted.is_empty() {
        return Err(Fault::user(format!("no column of `{}` is read: the file has none, or none was named", file.name)));
    }
    let mut places = Vec::new();
    let mut fields = Vec::with_capacity(wanted.len());
    let mut origins = Vec::with_capacity(wanted.len());
    for column in wanted {
        if let Some((field, constant)) = folders.get(column, &file.partitions) {
            fields.push(Arc::new(field));
            origins.push(Origin::Constant(constant));
        } else if let Some(at) = place(file, there, column)? {
            fields.push(in_batches(&there[at]));
            origins.push(Origin::File(at));
            places.push(at);
        } else if let Some((field, constant)) = folders.get_above(column, &file.partitions) {
            fields.push(Arc::new(field));
            origins.push(Origin::Constant(constant));
        } else if optional.contains(column) {
            // Its type comes from the files that have it; see `unified`.
            fields.push(Arc::new(Field::new(column, DataType::Null, true)));
            origins.push(Origin::Constant(Constant::Null(DataType::Null)));
        } else {
            return Err(missing(column, wanted, file, there));
        }
    }
    places.sort_unstable();
    places.dedup();
    for origin in &mut origins {
        if let Origin::File(at) = origin {
            *at = places.binary_search(at).expect("it is one of them");
        }
    }
    Ok(FoundColumns { schema: Arc::new(Schema::new(fields)), origins, places })
}

/// The place of a column in a file that has it once.
fn place(file: &DataFile, there: &Fields, column: &str) -> Result<Option<usize>, Fault> {
    let mut places = there.iter().enumerate().filter(|(_, field)| field.name() == column).map(|(at, _)| at);
    match (places.next(), places.next()) {
        (first, None) => Ok(first),
        (first, Some(second)) => Err(Fault::user(format!(
            "`{}` has the column `{column}` twice, as columns {} and {}: write the file again with one of them, or \
             with another name",
            file.name,
            first.unwrap_or_default() + 1,
            second + 1
        ))),
    }
}

fn missing(column: &str, wanted: &[String], file: &DataFile, there: &Fields) -> Fault {
    let of_struct = column.split_once('.').filter(|(of, _)| {
        there.iter().any(|field| field.name() == of && matches!(field.data_type(), DataType::Struct(_)))
    });
    if let Some((of, _)) = of_struct {
        return Fault::user(format!(
            "`{}` has {}: `{of}` is a struct, whose fields are not read: write the field as a column of its own",
            file.name,
            no_column(column)
        ));
    }
    let there: Vec<&str> = there.iter().map(|field| field.name().as_str()).collect();
    let folders: Vec<&str> = file.partitions.iter().map(|(name, _)| name).collect();
    let near = did_you_mean(column, there.iter().chain(&folders).copied());
    let above = if folders.is_empty() { String::new() } else { format!(", and its folders {}", listed(folders)) };
    Fault::user(format!(
        "`{}` has {}{near}: expected {}; it has {}{above}{}",
        file.name,
        no_column(column),
        listed(wanted.iter().map(String::as_str)),
        listed(there.iter().copied()),
        named_like_a_range(there.iter().copied()),
    ))
    .kind(FaultKind::MissingColumn)
    .with_source(NoColumn(column.to_owned()))
}

impl FoundColumns {
    /// Sets the columns of batches: the types hold the values of all files.
    pub(crate) fn read_as(&mut self, schema: &SchemaRef) {
        self.schema = Arc::clone(schema);
        for (origin, field) in self.origins.iter_mut().zip(schema.fields()) {
            if let Origin::Constant(Constant::Null(kind)) = origin {
                *kind = field.data_type().clone();
            }
        }
    }

    /// The columns wanted, of decoded columns in the file's order.
    pub(crate) fn in_order(&self, decoded: &RecordBatch) -> Result<RecordBatch, Fault> {
        let columns = self.origins.iter().zip(self.schema.fields()).map(|(origin, field)| match origin {
            Origin::File(at) => converted(decoded.column(*at), field.data_type()),
            Origin::Constant(constant) => Ok(constant.rows(decoded.num_rows())),
        });
        columns
            .collect::<Result<_, _>>()
            .and_then(|columns| RecordBatch::try_new(Arc::clone(&self.schema), columns))
            .map_err(|e| Fault::internal("the decoded columns do not fit their schema").because(e))
    }
}

/// The columns of all files: each has the widest of its types, and nullability may differ. `None` without files.
///
/// # Errors
/// A user fault that names two files and a column if no type holds the values of both.
pub(crate) fn unified(files: &[(&DataFile, &SchemaRef)]) -> Result<Option<SchemaRef>, Fault> {
    let Some((&(first, schema), others)) = files.split_first() else { return Ok(None) };
    // Each column, and a file that has it in this type.
    let mut columns: Vec<(FieldRef, &DataFile)> =
        schema.fields().iter().map(|field| (Arc::clone(field), first)).collect();
    for &(other, schema) in others {
        for ((field, file), found) in columns.iter_mut().zip(schema.fields()) {
            let Some(wide) = wider(field.data_type(), found.data_type()) else {
                return Err(disagree((field, file), (found, other)));
            };
            if wide != *field.data_type() {
                *file = other;
            }
            let nullable = field.is_nullable() || found.is_nullable();
            *field = Arc::new(field.as_ref().clone().with_data_type(wide).with_nullable(nullable));
        }
    }
    Ok(Some(Arc::new(Schema::new(columns.into_iter().map(|(field, _)| field).collect::<Vec<_>>()))))
}

fn disagree(expected: (&Field, &DataFile), found: (&Field, &DataFile)) -> Fault {
    Fault::user(format!(
        "column `{}` has {} in `{}` but {} in `{}`: files of one data set must have the same types, write one of them \
         again, or read them separately",
        found.0.name(),
        shown(found.0.data_type()),
        found.1.name,
        shown(expected.0.data_type()),
        expected.1.name,
    ))
}
